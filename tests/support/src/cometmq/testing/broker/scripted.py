# SPDX-License-Identifier: Apache-2.0
"""A whole broker without sockets, threads or files, driven step by step.

The test feeds bytes to connections, which keep the bytes sent to them. The disk is in memory,
worker jobs run at once, and the clock moves only when the test advances it. Two such brokers that
get the same input are equal in every byte, so a test can compare two implementations.
"""

import asyncio
from collections.abc import Callable, Collection
from typing import Any, NamedTuple, TypeVar, cast

from cometmq.broker.acl.check import NO_RULES, AccessControl, Rules
from cometmq.broker.acl.keeper import AclKeeper
from cometmq.broker.assembly import Inputs, assemble
from cometmq.broker.broker import Broker
from cometmq.broker.filters.sql import forget_compiled, load_parser
from cometmq.broker.handlers import HANDLERS
from cometmq.broker.handlers.arrivals import Arrivals
from cometmq.broker.lanes.lane import BrokerLane, open_lane
from cometmq.broker.native import accel
from cometmq.broker.registration.addresses import Ports
from cometmq.broker.settings import BrokerSettings
from cometmq.broker.storing.disk_jobs import Workers
from cometmq.broker.tables.journal import Journal
from cometmq.remoting.commands import COMMANDS
from cometmq.remoting.connection import Codec
from cometmq.remoting.frame import FrameReader
from cometmq.remoting.log import NO_LOG, Log
from cometmq.remoting.transport.client import RemotingClient
from cometmq.remoting.transport.direct import DirectIO
from cometmq.remoting.transport.dispatch import Dispatcher, Hooks
from cometmq.remoting.transport.hub import Hub
from cometmq.remoting.transport.lane_peer import LanePeer
from cometmq.remoting.transport.server_peer import ServerPeer
from cometmq.remoting.transport.settings import ClientSettings, ServerSettings
from cometmq.runtime.acl.accounts import Accounts
from cometmq.runtime.settings import load
from cometmq.store.message_store import MessageStore
from cometmq.store.queues.consume_queue import entries_from
from cometmq.testing.runtime.clock import FakeClock
from cometmq.testing.store.memory_disk import MemoryDisk

T = TypeVar("T")

PEER_ADDRESSES = ("127.0.0.1", "fd00::7", "::ffff:10.0.0.9")
TURNS = 4  # of the loop: receive, commit, answers, woken pulls
# A file in memory is copied when it is synced, and kept until a collection: with files of the usual
# sizes, a broker that stored a message took 3 s and 1 GB.
SMALL_FILES = {
    "mappedFileSizeCommitLog": str(16 << 20),
    "mappedFileSizeConsumeQueue": "600000",
    "maxHashSlotNum": "2000",
    "maxIndexNum": "100000",
}
JOURNAL_FILE_BYTES = 1 << 20


class InlineWorker:
    """Runs each job when it is submitted."""

    def submit(self, job: Callable[[], T]) -> asyncio.Future[T]:
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        try:
            future.set_result(job())
        except Exception as error:  # noqa: BLE001  # as a thread would pass it on
            future.set_exception(error)
        return future


class Wire:
    """The transport of one connection; records the bytes written and the requests made."""

    def __init__(self, number: int) -> None:
        self._number = number
        self.sent = bytearray()
        self.is_reading = True
        self._is_closing = False

    def get_extra_info(self, _name: str) -> tuple[str, int]:
        address = PEER_ADDRESSES[self._number % len(PEER_ADDRESSES)]
        return (address, 40_000 + self._number)

    def set_write_buffer_limits(self, **_: int) -> None:
        return

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self._is_closing

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True

    def close(self) -> None:
        self._is_closing = True

    def abort(self) -> None:
        self._is_closing = True

    def write(self, data: bytes) -> None:
        self.sent += data


class Connected(NamedTuple):
    peer: ServerPeer
    wire: Wire


class ScriptedBroker:
    """A broker that runs only when the test drives it."""

    def __init__(
        self,
        *,
        server: ServerSettings | None = None,
        is_direct: bool = False,
        accounts: Accounts | None = None,
        rules: Rules = NO_RULES,
        log: Log = NO_LOG,
        **settings: str,
    ) -> None:
        """With `is_direct`, input passes through `DirectIO`, although there are no sockets. With
        `accounts`, access control is on.
        """
        server = server or ServerSettings()
        self.disk = MemoryDisk(is_sparse=True)
        self.clock = FakeClock()
        self._log = log
        loaded = load(BrokerSettings, prefix="COMETMQ_TEST", env={}, cli=SMALL_FILES | settings)
        self._store_settings = loaded.value
        worker: Any = InlineWorker()
        store = self._open_store()
        acl, files = None, cast("Any", None)  # nothing is read or changed
        if accounts is not None:
            control = AccessControl(accounts, clock_ms=self.clock.now_ms, rules=rules)
            acl = AclKeeper(files, control, worker=worker, log=NO_LOG)
        inputs = Inputs(
            loaded,
            self.clock,
            log,
            Workers(*[worker] * len(Workers._fields)),
            store,
            RemotingClient(ClientSettings(), log=NO_LOG, clock_ms=self.clock.monotonic_ms),
            Ports(10911, None, 10912),
            None,
            acl,
            Journal(
                self.disk,
                store.layout.journal,
                worker=worker,
                log=NO_LOG,
                log_end=lambda: store.commit_log.end,
                file_bytes=JOURNAL_FILE_BYTES,
            ),
        )
        self.broker = broker = assemble(inputs)
        # The parser and the compiled filters of a process would be known to later brokers only.
        load_parser()
        forget_compiled()
        broker.tables.filters.arriving.compiler.note_loaded()
        self.hub = Hub(Codec(COMMANDS), server, clock_ms=self.clock.monotonic_ms, log=NO_LOG)
        self._dispatcher = self._dispatch(())
        self.lane: BrokerLane | None = open_lane(broker)
        self.direct: DirectIO | None = None
        if is_direct:
            assert self.lane is not None
            self.direct = DirectIO(self.hub, self.lane, accel.Sockets())
        Arrivals(broker, self.hub.writes)
        broker.driver.turn.took_long.connect(self.hub.charge)
        self.connections: list[Connected] = []

    def _open_store(self) -> MessageStore:
        return MessageStore.open(
            self._store_settings,
            disk=self.disk,
            clock_ms=self.clock.now_ms,
            monotonic_ms=self.clock.monotonic_ms,
            log=NO_LOG,
        )

    def _dispatch(self, excluded: Collection[int]) -> Dispatcher[Broker]:
        acl = self.broker.admission.acl
        hooks: Hooks[Broker] = Hooks(() if acl is None else (acl.control.check,))
        dispatcher = Dispatcher(
            {code: handler for code, handler in HANDLERS.items() if code not in excluded},
            self.broker,
            hooks,
            self.hub,
        )
        dispatcher.is_limited = bool(excluded)
        return dispatcher

    def connect(self, *, excluded: Collection[int] = (), wire: Wire | None = None) -> Connected:
        """Open another connection; its port refuses the `excluded` codes."""
        dispatcher = self._dispatch(excluded) if excluded else self._dispatcher
        wire = wire or Wire(len(self.connections))
        peer: ServerPeer = (
            ServerPeer(self.hub, dispatcher)
            if self.lane is None
            else LanePeer(self.hub, dispatcher, self.lane, self.direct)
        )
        peer.connection_made(cast("asyncio.Transport", wire))
        self.connections.append(Connected(peer, wire))
        return self.connections[-1]

    def receive(self, peer: ServerPeer, data: bytes) -> None:
        """Pass a chunk to a connection."""
        if self.direct is not None and isinstance(peer, LanePeer):
            self.direct.serve([(peer, data)])
        else:
            peer.data_received(data)

    async def settle(self) -> None:
        """Run the loop until received requests are committed and answered."""
        for _ in range(TURNS):
            await asyncio.sleep(0)

    def log_bytes(self) -> bytes:
        log = self.broker.store.commit_log
        files = [self.disk.contents[file.path] for file in log.files.files]
        return b"".join(map(bytes, files))[: log.end - log.files.first]

    def queue_entries(self) -> dict[tuple[str, int], tuple[int, list[tuple[int, int, int]]]]:
        """Return the first offset and the entries of every queue."""
        store = self.broker.store
        found = {}
        for key in sorted(store.reader.queue_ids()):
            queue = store.reader.queue(*key)
            assert queue is not None
            count = queue.max_offset - queue.min_offset
            found[key] = queue.min_offset, entries_from(queue, queue.min_offset, count)
        return found


def frames_of(data: bytes) -> list[tuple[int, bytes, bytes]]:
    return FrameReader().feed(data)
