# SPDX-License-Identifier: Apache-2.0
"""Play a script of sends on a broker, with the native lane or without, and compare them."""

import asyncio
import contextlib
import errno
import socket
import tempfile
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NamedTuple

import msgspec

from cometmq.remoting.bodies.topic_config import TopicConfigTable
from cometmq.remoting.transport.settings import ServerSettings
from cometmq.runtime.acl.accounts import Accounts
from cometmq.testing.broker.scripted import ScriptedBroker, Wire, frames_of
from cometmq.testing.broker.scripts import Step

from .send_script import PEERS, TOPIC


def prepare(broker: ScriptedBroker) -> None:
    for queue_nums, topic in ((4, TOPIC), (4, "Payments")):
        broker.broker.tables.topics.create(topic, queue_nums=queue_nums)
    for _ in range(PEERS):
        broker.connect()


async def play(broker: ScriptedBroker, steps: list[Step]) -> None:
    for step in steps:
        peer, wire = broker.connections[step.peer]
        match step.action:
            case "receive":
                if peer.is_open and not wire.is_closing():
                    broker.receive(peer, step.data)
            case "settle":
                await broker.settle()
            case "advance":
                broker.clock.advance(step.amount)
            case "fail":
                broker.disk.fault = lambda operation, path: (
                    errno.ENOSPC if operation == "write" and "commitlog" in path else 0
                )
            case "heal":
                broker.disk.fault = None
                broker.clock.advance(5_000)
                broker.broker.driver.tick()
                broker.broker.driver.tick()
                broker.broker.store.writer.note_replicated(broker.broker.store.commit_log.end)
            case "replicate":
                store = broker.broker.store
                store.writer.note_replicated(store.commit_log.end - step.amount)
            case "pause":
                peer.pause_writing()
            case "resume":
                peer.resume_writing()
            case "close":
                if len(broker.connections) < 12:
                    peer.connection_lost(None)
                    broker.connections[step.peer] = broker.connect()
                    broker.connections.pop()
            case "tick":
                broker.broker.driver.tick()
            case "role":
                broker.broker.store.write_state.role_writable = step.amount > 100


def state_of(broker: ScriptedBroker, wires: list[Any]) -> dict[str, Any]:
    store, stats = broker.broker.store, broker.broker.stats
    topics = broker.broker.tables.topics
    return {
        "log": broker.log_bytes(),
        "queues": broker.queue_entries(),
        "answers": [bytes(wire.sent) for wire in wires],
        "reading": [wire.is_reading for wire in wires],
        "closed": [wire.is_closing() for wire in wires],
        "in flight": [peer.in_flight for peer, _ in broker.connections],
        "transport": msgspec.to_builtins(broker.hub.stats),
        "store": store.stats()._asdict(),
        "topics": msgspec.json.encode(TopicConfigTable(topics.version, topics.table)),
        "statistics": {
            topic: (one.put_count, one.put_bytes, one.request_count, one.is_active)
            for topic, one in stats.topics.items()
        },
        "counts": (stats.put_count, stats.put_failed_count, stats.busy_count,
                   stats.chosen_queue_count, stats.get_count),
        "levels": {
            level: (one.put_count, one.put_bytes, one.is_active)
            for level, one in stats.levels.items()
        },
        "waiting": broker.broker.driver.sends.waiting_count,
    }  # fmt: skip


class Case(NamedTuple):
    """The settings of both brokers."""

    options: dict[str, str]
    server: ServerSettings = ServerSettings()
    needs_replicas: bool = False
    accounts: Accounts | None = None


CASES = {
    "asynchronous": Case({}),
    "IPv6": Case({"brokerIP1": "fd00::1"}),
    "small files": Case({"mappedFileSizeCommitLog": "40000", "maxIndexNum": "90"}),
    "synchronous": Case({"flushDiskType": "SYNC_FLUSH", "mappedFileSizeCommitLog": "100000"}),
    "replicated": Case({}, needs_replicas=True),
    "both": Case({"flushDiskType": "SYNC_FLUSH"}, needs_replicas=True),
    "no index": Case({"messageIndexEnable": "false"}),
    "bounded": Case(
        {
            "sendThreadPoolQueueCapacity": "9",
            "flushDiskType": "SYNC_FLUSH",
            "batchMessagesMax": "3",
        },
        ServerSettings(in_flight_per_connection_max=11, in_flight_max=30),
    ),
}


class LeavesSends:
    """A lane that leaves all sends to `stage`, because `Sockets` takes only a native object."""

    def __init__(self, lane: Any) -> None:
        self._lane = lane

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lane, name)

    def sends(self, count_max: int) -> None:
        """Leave them."""


class Panicking:
    """Native code that panics in one of its methods."""

    def __init__(self, native: Any, method: str) -> None:
        self._native = native
        self._method = method

    def __getattr__(self, name: str) -> Any:
        if name == self._method:
            return self._panic
        found = getattr(self._native, name)
        if name == "keep_halves":
            return lambda answers: found(answers._native)
        return found

    def _panic(self, *_: Any, **__: Any) -> None:
        from cometmq import accel  # optional

        raise accel.PanicException("a bug")

    def place(self, *args: Any) -> Any:
        if self._method == "place":
            self._panic()
        *placed, groups = self._native.place(*args)
        return *placed, [(waits, Panicking(one, self._method)) for waits, one in groups]


def run(
    case: Case,
    steps: list[Step],
    *,
    lane: bool,
    is_direct: bool = False,
    has_sockets: bool = False,
    panics_in: str = "",
    player: Callable[[ScriptedBroker, list[Step]], Awaitable[None]] = play,
    more: Callable[[ScriptedBroker], dict[str, Any]] = lambda _: {},
) -> tuple[dict[str, Any], int]:
    async def main(root: str) -> tuple[dict[str, Any], int]:
        options: Any = {
            "storePathRootDir": root,  # for the tables; the store is in memory
            "brokerIP1": "10.1.2.3", "maxMessageSize": "4096", "maxHashSlotNum": "2000",
            "maxIndexNum": "100000", "mappedFileSizeConsumeQueue": "20000",
            "mappedFileSizeCommitLog": "1000000",
        }  # fmt: skip
        options |= case.options | {"nativeLaneEnable": str(lane).lower()}
        broker = ScriptedBroker(
            server=case.server, is_direct=is_direct, accounts=case.accounts, **options
        )
        broker.broker.store.writer.needs_replicas = case.needs_replicas
        assert (broker.lane is not None) is lane
        if panics_in:
            assert broker.lane is not None
            if panics_in == "sends":
                assert broker.direct is not None
                faulty = FaultySockets(broker.direct.sockets)
                broker.direct.sockets = faulty
                # It takes native sockets only.
                broker.direct.reply = lambda *_: None  # type: ignore[method-assign]
            else:
                runs = broker.lane._runs
                runs._runs = Panicking(runs._runs, panics_in)  # type: ignore[assignment]
                panicking = Panicking(broker.lane._native, panics_in)
                broker.lane._native = panicking  # type: ignore[assignment]
                runs._native = panicking  # type: ignore[assignment]
                if broker.direct is not None:
                    broker.direct._lane = LeavesSends(broker.lane)
        wires: list[Any] = []
        connect = broker.connect

        def connect_and_keep(**options: Any) -> Any:
            if has_sockets:
                options["wire"] = SocketWire(len(broker.connections))
            connected = connect(**options)
            wires.append(connected.wire)
            return connected

        broker.connect = connect_and_keep  # type: ignore[method-assign]
        if has_sockets:
            broker.receive = partial(receive_by_socket, broker)  # type: ignore[method-assign]
        prepare(broker)
        await player(broker, steps)
        state = state_of(broker, wires) | more(broker)
        if has_sockets:
            assert broker.direct is not None
            broker.direct.close()
            for wire in wires:
                wire.end()
        broker.broker.store.close()
        state["files"] = {
            path.removeprefix(root): bytes(data) for path, data in broker.disk.contents.items()
        }
        return state, broker.lane.request_count if broker.lane else 0

    with tempfile.TemporaryDirectory() as root:
        return asyncio.run(main(root))


class SocketWire(Wire):
    """A transport with a socket, which `DirectIO` reads and writes."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.near, self.far = socket.socketpair()
        for one in (self.near, self.far):
            one.setblocking(False)

    def get_extra_info(self, name: str) -> Any:
        return self.near if name == "socket" else super().get_extra_info(name)

    def write(self, data: bytes) -> None:
        self.take()
        self.near.sendall(data)

    def take(self) -> None:
        """Receive what the broker has written."""
        with contextlib.suppress(BlockingIOError):
            while True:
                self.sent += self.far.recv(1 << 20)

    def end(self) -> None:
        self.near.close()
        self.far.close()


def receive_by_socket(broker: ScriptedBroker, peer: Any, data: bytes) -> None:
    wire: Any = next(wire for other, wire in broker.connections if other is peer)
    if peer.fd < 0:
        peer.data_received(data)  # the transport reads
    else:
        wire.far.sendall(data)


async def play_alone(broker: ScriptedBroker, steps: list[Step]) -> None:
    """Play a script, and give each step turns of its own."""
    for step in steps:
        await play_together(broker, [step])


async def play_together(broker: ScriptedBroker, steps: list[Step]) -> None:
    """Play a script whose chunks arrive together until the broker settles."""
    for step in steps:
        await play(broker, [step])
        if step.action == "settle" or len(steps) == 1:
            await broker.settle()
        for _, wire in broker.connections:
            if isinstance(wire, SocketWire):
                wire.take()


def compare(case: Case, steps: list[Step]) -> int:
    """Compare a broker without the lane to one with it, and to one with direct input as well;
    return how many requests the lane handled.
    """
    without, _ = run(case, steps, lane=False)
    counts = []
    for is_direct in (False, True):
        with_lane, count = run(case, steps, lane=True, is_direct=is_direct)
        for name, value in without.items():
            if name == "answers":
                for one, other in zip(value, with_lane[name], strict=True):
                    assert frames_of(other) == frames_of(one)
            assert with_lane[name] == value, name
        counts.append(count)
    assert counts[0] == counts[1]
    return counts[0]


class FaultySockets:
    """Native sockets that report a bug in the staging of sends."""

    def __init__(self, sockets: Any) -> None:
        self._sockets = sockets

    def take_rows(self, *arguments: Any) -> Any:
        from cometmq import accel  # optional

        *taken, staged = self._sockets.take_rows(*arguments)
        if staged is not None:
            staged = (*staged[:-1], accel.PanicException("a bug"))
        return *taken, staged

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sockets, name)
