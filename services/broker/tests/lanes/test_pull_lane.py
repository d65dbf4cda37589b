# SPDX-License-Identifier: Apache-2.0
"""A broker that answers pulls and renewals of queue locks through the native lane behaves like one
without the lane.
"""

import asyncio
import json
import tempfile
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cometmq.broker import store_driver
from cometmq.broker.clients.queue_locks import LOCK_LIFE_MS
from cometmq.broker.filters.sql import compile_sql
from cometmq.broker.handlers import VIP_EXCLUDED
from cometmq.broker.lanes import pull_lane
from cometmq.broker.native import IS_BUILT
from cometmq.broker.testing.scripted import ScriptedBroker, frames_of
from cometmq.broker.testing.scripts import Step, frame
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.header import decode_header
from cometmq.store.log.damage import DamagedRange

from .pull_script import EXPRESSIONS, PEERS, TOPICS, Script

pytestmark = pytest.mark.skipif(not IS_BUILT, reason="cometmq-accel is built only with cargo")


def disturb(broker: ScriptedBroker, step: Step) -> None:
    """Change the state that pulls depend on, without a request."""
    store, disk = broker.broker.store, broker.disk
    log = store.commit_log
    match step.action:
        case "advance":
            broker.clock.advance(step.amount)
            broker.broker.hold.expire(broker.clock.monotonic_ms())
        case "cold" | "hot":
            disk.is_cold = step.action == "cold"
            store.pulls.forget()  # handlers have no such cache, and read the disk
        case "role":
            broker.broker.is_master = step.amount > 40
        case "divert":
            broker.broker.is_diverting = step.amount > 40
        case "expire" if len(log.files.files) > 2:
            for path in log.forget_first(1):
                disk.remove(path)
            for key in store.queue_ids():
                queue = store.queue(*key)
                assert queue is not None
                queue.trim_tail(log.min_offset)
                queue.trim(queue.first_at(log.min_offset))
        case "truncate":
            queue = store.queue("Orders", 1)
            entry = None if queue is None else queue.last_entry()
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
            for key in store.queue_ids():
                queue = store.queue(*key)
                assert queue is not None
                queue.write_tail()
        case "busy":
            broker.broker.driver.waiting_count = step.amount * 10
        case "lapse":
            broker.clock.advance(LOCK_LIFE_MS + 1)
        case "drop locks":
            broker.broker.locks.expire(now_ms=broker.clock.monotonic_ms())


async def play(broker: ScriptedBroker, steps: list[Step]) -> None:
    for topic, queue_nums in TOPICS.items():
        broker.broker.topics.create(topic, queue_nums=queue_nums)
    for _ in range(PEERS):
        broker.connect()
    for step in steps:
        peer, wire = broker.connections[step.peer]
        match step.action:
            case "receive":
                if peer.is_open and not wire.is_closing():
                    peer.data_received(step.data)
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
        "offsets": whole.offsets.table,
        "statistics": groups,
        "counts": (stats.get_count, stats.get_bytes, stats.found_count, stats.miss_count,
                   stats.cold_read_count, stats.busy_count),
        "held": whole.hold.count,
        "locks": whole.locks._groups,
        "log": broker.log_bytes(),
    }  # fmt: skip


CASES = {
    "plain": {},
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


def run(case: dict[str, str], steps: list[Step], *, lane: bool) -> tuple[dict[str, Any], int]:
    async def main(root: str) -> tuple[dict[str, Any], int]:
        options: Any = {
            "storePathRootDir": root,  # for the tables; the store is in memory
            "brokerIP1": "10.1.2.3", "maxHashSlotNum": "2000", "maxIndexNum": "100000",
            "mappedFileSizeConsumeQueue": "20000", "mappedFileSizeCommitLog": "1000000",
            "enablePropertyFilter": "true",
        }  # fmt: skip
        options |= case | {"nativeLaneEnable": str(lane).lower()}
        broker = ScriptedBroker(**options)
        wires: list[Any] = []
        connect = broker.connect

        def connect_and_keep(**options: Any) -> Any:
            connected = connect(**options)
            wires.append(connected.wire)
            return connected

        broker.connect = connect_and_keep  # type: ignore[method-assign]
        await play(broker, steps)
        state = state_of(broker, wires, root)
        count = broker.lane.pull_count if broker.lane else 0
        broker.broker.store.close()
        return state, count

    with tempfile.TemporaryDirectory() as root:
        return asyncio.run(main(root))


def compare(case: dict[str, str], steps: list[Step]) -> int:
    """Run both brokers, compare them, and return how many pulls the lane answered."""
    without, _ = run(case, steps, lane=False)
    with_lane, count = run(case, steps, lane=True)
    for name, value in without.items():
        assert with_lane[name] == value, name
    return count


@pytest.fixture(autouse=True)
def whole_searches(monkeypatch):
    """Complete each search in its turn, because handlers and the lane would postpone different
    ones.
    """
    monkeypatch.setattr(pull_lane, "TURN_EXAMINED_MAX", 1 << 30)
    monkeypatch.setattr(store_driver, "TURN_READS_MAX", 1 << 30)
    monkeypatch.setattr(store_driver, "TURN_BYTES_MAX", 1 << 40)
    for expression in EXPRESSIONS:  # cached: one broker finds what the other has compiled
        compile_sql(expression)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("seed", range(3))
def test_plain_pulls_give_the_same_broker_through_the_lane(name, seed):
    script = Script(seed, oddity=0)
    count = compare(CASES[name], script.write(turns=30))
    if name == "off":
        assert count == 0
    else:
        assert count > 0.6 * script.pull_count


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**32), oddity=st.sampled_from([0.1, 0.3, 1.0]))
def test_odd_pulls_and_disturbances_give_the_same_broker(name, seed, oddity):
    script = Script(seed, oddity=oddity)
    compare(CASES[name], script.write(turns=25))


def test_filters_of_one_turn_examine_a_bounded_number_of_entries(monkeypatch):
    monkeypatch.setattr(pull_lane, "TURN_EXAMINED_MAX", 500)
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
            broker.broker.may_read = lambda may_read=may_read: may_read
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
        for number, whole.is_diverting in enumerate((False, False, True, False)):
            before = broker.lane.pull_count
            data = frame(11, ext | {"commitOffset": str(number)}, opaque=number)
            broker.connections[0].peer.data_received(data)
            committed = whole.offsets.committed("g", "Orders", 0)
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


def lock_frame(client: str, queue_id: int, opaque: int) -> bytes:
    body = {
        "clientId": client, "consumerGroup": "g",
        "mqSet": [{"brokerName": "b", "queueId": queue_id, "topic": "Orders"}],
    }  # fmt: skip
    return frame(RequestCode.LOCK_BATCH_MQ, {}, json.dumps(body).encode(), opaque=opaque)


class Locking:
    """Sends requests for locks, and counts those that reach the table of locks by a handler."""

    def __init__(self, root: str, **options: Any) -> None:
        self.broker = ScriptedBroker(storePathRootDir=root, brokerIP1="10.1.2.3", **options)
        self.peer, self.wire = self.broker.connect()
        self.handled = 0
        self.opaque = 0
        locks = self.broker.broker.locks
        self._lock = locks.lock
        locks.lock = self.lock  # type: ignore[method-assign]

    def lock(self, *arguments: Any, **options: Any) -> Any:
        self.handled += 1
        return self._lock(*arguments, **options)

    async def ask(self, client: str, queue_id: int) -> tuple[bool, int]:
        """Return whether the lock was granted, and how often a handler was called."""
        before, self.opaque = self.handled, self.opaque + 1
        self.wire.sent.clear()
        self.peer.data_received(lock_frame(client, queue_id, self.opaque))
        await self.broker.settle()
        ((serialization, head, body),) = frames_of(bytes(self.wire.sent))
        answer = decode_header(serialization, head)
        assert (answer.code, answer.opaque) == (ResponseCode.SUCCESS, self.opaque)
        return b'"queueId"' in body, self.handled - before


def test_renewals_are_native_until_a_lock_changes_hands():
    async def main(root: str) -> None:
        locking = Locking(root)
        clock = locking.broker.clock
        assert await locking.ask("one", 0) == (True, 1)
        clock.advance(LOCK_LIFE_MS)
        assert await locking.ask("one", 0) == (True, 0)
        clock.advance(LOCK_LIFE_MS)
        assert await locking.ask("two", 0) == (False, 1)  # the native renewal counted
        assert await locking.ask("one", 0) == (True, 0)
        assert await locking.ask("two", 1) == (True, 1)
        assert await locking.ask("one", 0) == (True, 1)
        assert await locking.ask("one", 0) == (True, 0)
        clock.advance(LOCK_LIFE_MS + 1)
        assert await locking.ask("two", 0) == (True, 1)
        assert await locking.ask("one", 0) == (False, 1)

    with tempfile.TemporaryDirectory() as root:
        asyncio.run(main(root))


def test_a_lock_released_in_the_same_chunk_is_not_renewed():
    async def main(root: str) -> None:
        locking = Locking(root)
        await locking.ask("one", 0)
        renewal = lock_frame("one", 0, 7)
        release = lock_frame("one", 0, 8).replace(b'"code":41', b'"code":42')
        locking.peer.data_received(renewal + release + renewal)
        await locking.broker.settle()
        assert locking.handled == 2
        assert locking.broker.broker.locks.count == 1

    with tempfile.TemporaryDirectory() as root:
        asyncio.run(main(root))


def test_handlers_serve_all_requests_for_locks_in_a_broker_group():
    async def main(root: str) -> None:
        locking = Locking(root, groupRecord="file:///nowhere")
        assert await locking.ask("one", 0) == (True, 1)
        assert await locking.ask("one", 0) == (True, 1)

    with tempfile.TemporaryDirectory() as root:
        asyncio.run(main(root))


class PanickingLog:
    def view(self) -> None:
        from cometmq import accel  # optional

        raise accel.PanicException("a bug")


def test_after_a_panic_handlers_serve_all_pulls():
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
        return answers_of(wire, root), count

    with tempfile.TemporaryDirectory() as root:
        answers, count = asyncio.run(main(root, panics=False))
    assert count > 10
    with tempfile.TemporaryDirectory() as root:
        assert asyncio.run(main(root, panics=True)) == (answers, 0)
