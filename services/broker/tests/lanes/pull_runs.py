# SPDX-License-Identifier: Apache-2.0
"""Play a script of pulls on a broker, with the native lane or without, and compare them."""

import asyncio
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, cast
from unittest.mock import patch

import msgspec

from cometmq.broker.clients.queue_locks import LOCK_LIFE_MS
from cometmq.broker.storing import store_reads
from cometmq.remoting.transport import dispatch
from cometmq.remoting.transport.flow import room, turns
from cometmq.remoting.transport.lane_peer import LanePeer
from cometmq.remoting.transport.peer import intake
from cometmq.remoting.transport.peer.lane_intake import MIXED, PULLS, SENDS
from cometmq.remoting.transport.server_peer import ServerPeer
from cometmq.runtime.acl.accounts import Accounts
from cometmq.store.log.damage import DamagedRange
from cometmq.store.queues.consume_queue import last_entry
from cometmq.testing.broker.scripted import ScriptedBroker, Wire, frames_of
from cometmq.testing.broker.scripts import Step

from .pull_script import PEERS, TOPICS


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

    with tempfile.TemporaryDirectory() as root, ExitStack() as stack:
        # Otherwise connections would wait for their turn when the machine is slow, in one of the
        # brokers only.
        for module in (dispatch, turns):
            stack.enter_context(patch.object(module, "monotonic", lambda: 0.0))
        for module in (intake, room, turns):
            stack.enter_context(patch.object(module, "thread_time", lambda: 0.0))
        for clock in ("perf_counter", "thread_time"):
            stack.enter_context(patch.object(time, clock, lambda: 0.0))
        stack.enter_context(patch.object(store_reads, "thread_time", lambda: 0.0))
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
    # It takes native sockets only.
    direct.reply = lambda *_: None  # type: ignore[method-assign]
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
