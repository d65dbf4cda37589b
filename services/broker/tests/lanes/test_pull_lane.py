# SPDX-License-Identifier: Apache-2.0
"""A broker that answers pulls and renewals of queue locks through the native lane behaves like one
without the lane.
"""

import asyncio
import tempfile
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.broker.handlers import VIP_EXCLUDED
from cometmq.broker.lanes import pull_lane
from cometmq.broker.native import IS_BUILT
from cometmq.peers.long_forms import examples, seeds
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.header import decode_header
from cometmq.remoting.transport.lane_peer import LanePeer
from cometmq.testing.broker.scripted import ScriptedBroker, frames_of
from cometmq.testing.broker.scripts import Step, frame

from .odd_texts import MARK, TEXTS
from .pull_runs import CASES, answers_of, compare, count_shared, play
from .pull_script import GROUPS, Script, SharedScript

pytestmark = [
    pytest.mark.skipif(not IS_BUILT, reason="cometmq-accel is built only with cargo"),
    pytest.mark.usefixtures("whole_searches"),
]


@pytest.mark.parametrize("name", CASES)
@seeds(1, long=3)
def test_plain_pulls_give_the_same_broker_through_the_lane(name, seed):
    script = Script(seed, oddity=0)
    count, shared_count = compare(CASES[name], script.write(turns=30))
    if name == "off":
        assert count == shared_count == 0
    else:
        assert count > 0.6 * script.pull_count
        assert shared_count > 0


@pytest.mark.parametrize("name", CASES)
@examples(3, long=10)
@given(seed=st.integers(0, 2**32), oddity=st.sampled_from([0.1, 0.3, 1.0]))
def test_odd_pulls_and_disturbances_give_the_same_broker(name, seed, oddity):
    script = Script(seed, oddity=oddity)
    compare(CASES[name], script.write(turns=25))


@examples(30, long=300)
@given(
    texts=st.lists(TEXTS, min_size=1, max_size=8),
    field=st.sampled_from(["consumerGroup", "topic", "subscription", "expressionType"]),
    is_binary=st.booleans(),
)
def test_texts_of_any_bytes_give_the_same_broker(texts, field, is_binary):
    script = Script(1, oddity=0)
    script.send(8)
    ext = {
        "consumerGroup": GROUPS[0], "topic": "Orders", "queueId": "0", "queueOffset": "0",
        "maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "3000",
        "subscription": "*", "subVersion": "0", "expressionType": "TAG",
    }  # fmt: skip
    for number, text in enumerate([MARK, *texts]):
        data = frame(11, ext | {field: MARK.decode()}, opaque=number, is_binary=is_binary)
        script.steps += [Step("receive", 0, data.replace(MARK, text)), Step("settle")]
    script.steps += [Step("receive", 0, frame(11, ext, opaque=99)), Step("settle")]
    compare({}, script.steps)


@examples(5, long=20)
@given(seed=st.integers(0, 2**32), oddity=st.sampled_from([0, 0.3, 1.0]))
def test_groups_that_read_the_same_places_get_the_same_answers(seed, oddity):
    script = SharedScript(seed, oddity=oddity)
    steps = script.write(turns=25)
    assert script.pull_count > 100  # of twelve places
    count, _ = compare({}, steps)
    assert oddity or count > 0.6 * script.pull_count


def test_filters_of_one_turn_examine_a_bounded_number_of_entries(monkeypatch):
    monkeypatch.setattr(pull_lane, "TURN_STEPS_MAX", 500 * 256)
    script = Script(1, oddity=0)
    script.send(600)
    ext = {
        "consumerGroup": "g", "topic": "Orders", "queueId": "0", "queueOffset": "0",
        "maxMsgNums": "1000", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0",
        "subscription": "TagA", "subVersion": "0", "expressionType": "TAG",
    }  # fmt: skip
    data = b"".join(frame(11, ext, opaque=number) for number in range(20))

    async def main(root: str) -> list[int]:
        options: Any = {"storePathRootDir": root, "brokerIP1": "10.1.2.3"}
        broker = ScriptedBroker(**options)
        await play(broker, script.steps)
        peer, wire = broker.connections[0]
        assert broker.lane is not None
        counts = []
        for _ in range(5):
            wire.sent.clear()
            before = broker.lane.pull_count
            peer.data_received(data)
            counts.append(broker.lane.pull_count - before)
            assert len(frames_of(bytes(wire.sent))) == 20
            await broker.settle()
        return counts

    with tempfile.TemporaryDirectory() as root:
        first, *counts = asyncio.run(main(root))
    assert first == 0  # the lane does not know its readers yet
    assert all(0 < count < 10 for count in counts)


def test_filters_may_examine_as_many_entries_in_every_turn(monkeypatch):
    monkeypatch.setattr(pull_lane, "TURN_STEPS_MAX", 500 * 256)
    script = Script(1, oddity=0)
    script.send(1200)
    ext = {
        "consumerGroup": "g", "topic": "Orders", "queueId": "0", "queueOffset": "0",
        "maxMsgNums": "1000", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0",
        "subscription": "TagA", "subVersion": "0", "expressionType": "TAG",
    }  # fmt: skip

    async def main(root: str) -> list[int]:
        options: Any = {"storePathRootDir": root, "brokerIP1": "10.1.2.3"}
        broker = ScriptedBroker(**options)
        await play(broker, script.steps)
        assert broker.lane is not None
        counts = []
        for number in range(12):
            before = broker.lane.pull_count
            broker.connections[0].peer.data_received(frame(11, ext, opaque=number))
            counts.append(broker.lane.pull_count - before)
            await broker.settle()
        return counts

    with tempfile.TemporaryDirectory() as root:
        assert asyncio.run(main(root)) == [0, *[1] * 11]


def test_pulls_are_left_to_the_gate_of_a_group_while_it_forbids_reads():
    script = Script(1, oddity=0)
    steps = script.write(turns=10)
    data = b"".join(script.pull() for _ in range(20))

    async def main(root: str) -> list[int]:
        options: Any = {"storePathRootDir": root, "brokerIP1": "10.1.2.3"}
        broker = ScriptedBroker(**options)
        await play(broker, steps)
        assert broker.lane is not None
        counts = []
        for may_read in (True, False, True):
            broker.broker.role.may_read = lambda may_read=may_read: may_read
            before = broker.lane.pull_count
            broker.connections[0].peer.data_received(data)
            counts.append(broker.lane.pull_count - before)
        return counts

    with tempfile.TemporaryDirectory() as root:
        first, forbidden, last = asyncio.run(main(root))
    assert first == last > 0
    assert forbidden == 0


def test_a_pull_commits_no_offset_while_a_switchover_diverts_requests():
    script = Script(1, oddity=0)
    steps = script.write(turns=1)
    ext = {
        "consumerGroup": "g", "topic": "Orders", "queueId": "0", "queueOffset": "0",
        "maxMsgNums": "1", "sysFlag": "5", "suspendTimeoutMillis": "0",
        "subscription": "*", "subVersion": "0", "expressionType": "TAG",
    }  # fmt: skip

    async def main(root: str) -> list[tuple[int, int | None]]:
        options: Any = {"storePathRootDir": root, "brokerIP1": "10.1.2.3"}
        broker = ScriptedBroker(**options)
        await play(broker, steps)
        whole = broker.broker
        assert broker.lane is not None
        seen = []
        for number, whole.role.is_diverting in enumerate((False, False, True, False)):
            before = broker.lane.pull_count
            data = frame(11, ext | {"commitOffset": str(number)}, opaque=number)
            broker.connections[0].peer.data_received(data)
            committed = whole.tables.offsets.committed("g", "Orders", 0)
            seen.append((broker.lane.pull_count - before, committed))
        return seen

    with tempfile.TemporaryDirectory() as root:
        first, *seen = asyncio.run(main(root))
    assert first[1] == 0
    assert seen == [(1, 1), (1, 1), (1, 3)]


def test_the_vip_port_refuses_pulls():
    script = Script(1, oddity=0)
    steps = script.write(turns=10)
    data = b"".join(script.pull() for _ in range(20))

    async def main(root: str) -> None:
        options: Any = {"storePathRootDir": root, "brokerIP1": "10.1.2.3"}
        broker = ScriptedBroker(**options)
        await play(broker, steps)
        assert broker.lane is not None
        before = broker.lane.pull_count
        broker.connections[0].peer.data_received(data)
        count = broker.lane.pull_count
        assert count > before
        peer, wire = broker.connect(excluded=VIP_EXCLUDED)
        peer.data_received(data)
        await broker.settle()
        answers = [
            decode_header(serialization, head)
            for serialization, head, _ in frames_of(bytes(wire.sent))
        ]
        assert [one.code for one in answers] == [ResponseCode.REQUEST_CODE_NOT_SUPPORTED] * 20
        assert broker.lane.pull_count == count

    with tempfile.TemporaryDirectory() as root:
        asyncio.run(main(root))


class PanickingLog:
    def view(self) -> None:
        from cometmq import accel  # optional

        raise accel.PanicException("a bug")


class NoLog:
    """Its view is none, which is an error in native code."""

    def view(self) -> None:
        return


def test_a_bug_in_a_call_for_several_connections_leaves_their_pulls_to_handlers(monkeypatch):
    script = Script(1, oddity=0)
    script.send(200)
    ext = {
        "consumerGroup": "g", "topic": "Orders", "queueId": "0", "queueOffset": "0",
        "maxMsgNums": "3", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0",
        "subscription": "*", "subVersion": "0", "expressionType": "TAG",
    }  # fmt: skip

    async def main(root: str) -> list[tuple[int, int]]:
        options: Any = {"storePathRootDir": root, "brokerIP1": "10.1.2.3"}
        broker = ScriptedBroker(is_direct=True, **options)
        await play(broker, script.steps)
        assert broker.lane is not None
        shared, direct = count_shared(broker), broker.direct
        assert direct is not None
        counts = []
        for number in range(4):
            if number == 3:
                monkeypatch.setattr(broker.lane._pulls, "_log", NoLog())
            for _, wire in broker.connections:
                wire.sent.clear()
            peers = [cast("LanePeer", peer) for peer, _ in broker.connections]
            direct.serve([(peer, frame(11, ext, opaque=7)) for peer in peers])
            await broker.settle()
            counts.append((broker.lane.pull_count, shared()))
            (answer,) = {bytes(wire.sent) for _, wire in broker.connections}
            assert len(frames_of(answer)) == 1
        return counts

    with tempfile.TemporaryDirectory() as root:
        counts = asyncio.run(main(root))
    # A handler answers the first pull, and only then do the other connections show their habit.
    assert counts == [(3, 0), (7, 3), (11, 7), (11, 7)]


def test_after_a_panic_handlers_serve_all_pulls_and_sends():
    script = Script(1, oddity=0)
    steps = script.write(turns=10)
    data = b"".join(script.pull() for _ in range(20))

    async def main(root: str, *, panics: bool) -> tuple[Any, int]:
        options: Any = {"storePathRootDir": root, "brokerIP1": "10.1.2.3"}
        broker = ScriptedBroker(**options)
        await play(broker, steps)
        assert broker.lane is not None
        before = broker.lane.pull_count
        assert before > 0
        if panics:
            broker.lane._pulls._log = PanickingLog()  # type: ignore[assignment]
        peer, wire = broker.connections[0]
        peer.data_received(data)
        await broker.settle()
        count = broker.lane.pull_count - before
        peer.data_received(data)
        assert peer.is_open
        assert broker.lane.pull_count - before == 2 * count
        assert (broker.lane.sends(100) is None) is panics
        assert (broker.lane.stage(cast("LanePeer", peer), data, 100) is None) is panics
        return answers_of(wire, root), count

    with tempfile.TemporaryDirectory() as root:
        answers, count = asyncio.run(main(root, panics=False))
    assert count > 10
    with tempfile.TemporaryDirectory() as root:
        assert asyncio.run(main(root, panics=True)) == (answers, 0)
