# SPDX-License-Identifier: Apache-2.0
"""A broker that answers pulls and renewals of queue locks through the native lane behaves like one
without the lane.
"""

import asyncio
import tempfile
from collections.abc import Callable
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cometmq.broker.clients.queue_locks import LOCK_LIFE_MS
from cometmq.broker.filters.sql import compile_sql
from cometmq.broker.handlers import VIP_EXCLUDED
from cometmq.broker.lanes import pull_lane
from cometmq.broker.native import IS_BUILT
from cometmq.broker.storing import store_reads
from cometmq.broker.testing.scripted import ScriptedBroker, Wire, frames_of
from cometmq.broker.testing.scripts import Step, frame
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.header import decode_header
from cometmq.remoting.transport.lane_peer import LanePeer
from cometmq.remoting.transport.peer.lane_intake import MIXED, PULLS, SENDS
from cometmq.remoting.transport.server_peer import ServerPeer
from cometmq.runtime.acl.accounts import Accounts
from cometmq.store.log.damage import DamagedRange
from cometmq.store.queues.consume_queue import last_entry

from .pull_script import EXPRESSIONS, PEERS, TOPICS, Script, SharedScript

pytestmark = pytest.mark.skipif(not IS_BUILT, reason="cometmq-accel is built only with cargo")


def disturb(broker: ScriptedBroker, step: Step) -> None:
    """Change the state that pulls depend on, without a request."""
    store, disk = broker.broker.store, broker.disk
    log = store.commit_log
    match step.action:
        case "advance":
            broker.clock.advance(step.amount)
            broker.broker.pending.hold.expire(broker.clock.monotonic_ms())
        case "cold" | "hot":
            disk.is_cold = step.action == "cold"
            store.pulls.forget()  # handlers have no such cache, and read the disk
        case "role":
            broker.broker.role.is_master = step.amount > 40
        case "divert":
            broker.broker.role.is_diverting = step.amount > 40
        case "expire" if len(log.files.files) > 2:
            for path in log.forget_first(1):
                disk.remove(path)
            for key in store.reader.queue_ids():
                queue = store.reader.queue(*key)
                assert queue is not None
                queue.trim(queue.first_at(log.min_offset), log.min_offset)
        case "truncate":
            queue = store.reader.queue("Orders", 1)
            entry = None if queue is None else last_entry(queue)
            if entry is not None:
                store.truncate(entry.physical_offset)
        case "damage":
            middle = (log.min_offset + log.end) // 2
            log.set_damage((DamagedRange(middle, middle + step.amount),))
            store.pulls.forget()
        case "rot":  # like damage on a disk: bytes already read do not change
            store.pulls.forget()
            middle = (log.min_offset + log.end) // 2
            path = log.files.file_at(middle).path
            data = disk.contents[path]
            at = (middle - log.files.first) % log.files.file_size
            data[at : at + step.amount] = bytes(len(data[at : at + step.amount]))
        case "checkpoint":
            store.upkeep.cleaner.remove_at_end()  # as before any checkpoint
            for key in store.reader.queue_ids():
                queue = store.reader.queue(*key)
                assert queue is not None
                queue.write_tail()
        case "busy":
            broker.broker.driver.sends.waiting_count = step.amount * 10
        case "lapse":
            broker.clock.advance(LOCK_LIFE_MS + 1)
        case "drop locks":
            broker.broker.clients.locks.expire(now_ms=broker.clock.monotonic_ms())


def habit_of(peer: ServerPeer) -> int:
    return peer.habit if isinstance(peer, LanePeer) else MIXED


class Arrived:
    """Chunks of several connections that direct input serves together, in their order."""

    def __init__(self, broker: ScriptedBroker) -> None:
        self._broker = broker
        self._chunks: list[tuple[ServerPeer, bytes]] = []

    def add(self, peer: ServerPeer, wire: Wire, data: bytes) -> None:
        if habit_of(peer) == SENDS or any(peer is one for one, _ in self._chunks):
            self.serve()
        if not peer.is_open or wire.is_closing():
            return
        self._chunks.append((peer, data))
        if habit_of(peer) != PULLS:
            self.serve()

    def serve(self) -> None:
        chunks, self._chunks = self._chunks, []
        direct = self._broker.direct
        if direct is not None:
            direct.serve(cast("list[tuple[LanePeer, bytes]]", chunks))
        for peer, data in chunks if direct is None else []:
            peer.data_received(data)


async def play(broker: ScriptedBroker, steps: list[Step]) -> None:
    arrived = Arrived(broker)
    for topic, queue_nums in TOPICS.items():
        broker.broker.tables.topics.create(topic, queue_nums=queue_nums)
    for _ in range(PEERS):
        broker.connect()
    for step in steps:
        peer, wire = broker.connections[step.peer]
        if step.action != "receive":
            arrived.serve()
        match step.action:
            case "receive":
                arrived.add(peer, wire, step.data)
            case "settle":
                await broker.settle()
            case "pause":
                peer.pause_writing()
            case "resume":
                peer.resume_writing()
            case "close":
                peer.connection_lost(None)
                broker.connections[step.peer] = broker.connect()
                broker.connections.pop()
            case "end":
                broker.disk.is_cold = False
                for one, _ in broker.connections:
                    one.resume_writing()
                await broker.settle()
            case _:
                disturb(broker, step)


def answers_of(wire: Any, root: str) -> list[tuple[int, bytes, bytes]]:
    """Return the frames, without rebalance requests, which depend on the real time."""
    return sorted(
        (serialization, head.replace(root.encode(), b""), body)
        for serialization, head, body in frames_of(bytes(wire.sent))
        if not head.startswith(b'{"code":40,')
    )


def state_of(broker: ScriptedBroker, wires: list[Any], root: str) -> dict[str, Any]:
    whole, stats = broker.broker, broker.broker.stats
    groups = {
        key: (one.get_count, one.get_bytes, one.pull_count, one.wait_ms, one.is_active)
        for key, one in stats.groups.items()
    }
    transport = msgspec.to_builtins(broker.hub.stats)
    del transport["bytes_sent"]  # see `answers_of`
    return {
        "answers": [answers_of(wire, root) for wire in wires],
        "reading": [wire.is_reading for wire in wires],
        "closed": [wire.is_closing() for wire in wires],
        "in flight": [peer.in_flight for peer, _ in broker.connections],
        "transport": transport,
        "store": whole.store.stats()._asdict(),
        "offsets": whole.tables.offsets.table,
        "statistics": groups,
        "counts": (stats.get_count, stats.get_bytes, stats.found_count, stats.miss_count,
                   stats.cold_read_count, stats.busy_count),
        "held": whole.pending.hold.count,
        "locks": whole.clients.locks._groups,
        "log": broker.log_bytes(),
    }  # fmt: skip


CASES = {
    "plain": {},
    "IPv6": {"brokerIP1": "fd00::1"},
    "small files": {
        "mappedFileSizeCommitLog": "40000", "mappedFileSizeConsumeQueue": "2000",
        "nativeCacheBytes": "60000",
    },
    "short answers": {
        "maxTransferCountOnMessageInMemory": "9", "maxTransferBytesOnMessageInMemory": "1500",
        "slaveReadEnable": "true",
    },
    "off": {"nativeCacheBytes": "0"},
}  # fmt: skip


def run(
    case: dict[str, str],
    steps: list[Step],
    *,
    lane: bool,
    is_direct: bool = False,
    accounts: Accounts | None = None,
) -> tuple[dict[str, Any], int, int]:
    async def main(root: str) -> tuple[dict[str, Any], int, int]:
        options: Any = {
            "storePathRootDir": root,  # for the tables; the store is in memory
            "brokerIP1": "10.1.2.3", "maxHashSlotNum": "2000", "maxIndexNum": "100000",
            "mappedFileSizeConsumeQueue": "20000", "mappedFileSizeCommitLog": "1000000",
            "enablePropertyFilter": "true",
        }  # fmt: skip
        options |= case | {"nativeLaneEnable": str(lane).lower()}
        broker = ScriptedBroker(is_direct=is_direct, accounts=accounts, **options)
        wires: list[Any] = []
        connect = broker.connect

        def connect_and_keep(**options: Any) -> Any:
            connected = connect(**options)
            wires.append(connected.wire)
            return connected

        broker.connect = connect_and_keep  # type: ignore[method-assign]
        shared = count_shared(broker)
        await play(broker, steps)
        state = state_of(broker, wires, root)
        count = broker.lane.pull_count if broker.lane else 0
        broker.broker.store.close()
        return state, count, shared()

    with tempfile.TemporaryDirectory() as root:
        return asyncio.run(main(root))


class CountingSockets:
    """Native sockets that count the connections answered together with others in one call."""

    def __init__(self, sockets: Any) -> None:
        self._sockets = sockets
        self.shared_count = 0

    def take_rows(self, rows: Any, first: int, pulling: Any, sending: Any) -> Any:
        after, left, answered, staged = self._sockets.take_rows(rows, first, pulling, sending)
        count = after - first - len(left) - (len(staged[0]) if staged is not None else 0)
        self.shared_count += count if count > 1 else 0
        return after, left, answered, staged

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sockets, name)


def count_shared(broker: ScriptedBroker) -> Callable[[], int]:
    """Return a function that counts the connections answered together with others in one call."""
    direct = broker.direct
    if direct is None:
        return lambda: 0
    sockets = CountingSockets(direct.sockets)
    direct.sockets = sockets
    return lambda: sockets.shared_count


def compare(
    case: dict[str, str], steps: list[Step], accounts: Accounts | None = None
) -> tuple[int, int]:
    """Compare a broker without the lane to one with it, and to one with direct input as well;
    return how many pulls the lane answered, and how many connections were answered together.
    """
    without, *_ = run(case, steps, lane=False, accounts=accounts)
    counts = []
    for is_direct in (False, True):
        with_lane, *more = run(case, steps, lane=True, is_direct=is_direct, accounts=accounts)
        for name, value in without.items():
            assert with_lane[name] == value, name
        counts.append(more)
    (count, _), (direct_count, shared_count) = counts
    assert count == direct_count
    return count, shared_count


@pytest.fixture(autouse=True)
def whole_searches(monkeypatch):
    """Complete each search in the turn in which it begins, because handlers and the lane would
    postpone different ones.
    """
    monkeypatch.setattr(pull_lane, "TURN_STEPS_MAX", 1 << 50)
    monkeypatch.setattr(store_reads, "TURN_READS_MAX", 1 << 30)
    monkeypatch.setattr(store_reads, "TURN_BYTES_MAX", 1 << 40)
    monkeypatch.setattr(store_reads, "SEARCH_S_MAX", 1e9)
    for expression in EXPRESSIONS:  # cached: one broker finds what the other has compiled
        compile_sql(expression)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("seed", range(3))
def test_plain_pulls_give_the_same_broker_through_the_lane(name, seed):
    script = Script(seed, oddity=0)
    count, shared_count = compare(CASES[name], script.write(turns=30))
    if name == "off":
        assert count == shared_count == 0
    else:
        assert count > 0.6 * script.pull_count
        assert shared_count > 0


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**32), oddity=st.sampled_from([0.1, 0.3, 1.0]))
def test_odd_pulls_and_disturbances_give_the_same_broker(name, seed, oddity):
    script = Script(seed, oddity=oddity)
    compare(CASES[name], script.write(turns=25))


@settings(max_examples=20, deadline=None)
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
        assert (broker.lane.sends() is None) is panics
        assert (broker.lane.stage(cast("LanePeer", peer), data, 100) is None) is panics
        return answers_of(wire, root), count

    with tempfile.TemporaryDirectory() as root:
        answers, count = asyncio.run(main(root, panics=False))
    assert count > 10
    with tempfile.TemporaryDirectory() as root:
        assert asyncio.run(main(root, panics=True)) == (answers, 0)
