# SPDX-License-Identifier: Apache-2.0
"""Masters and slaves in one process, with stores in memory and real sockets between them."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, Self

import msgspec

from cometmq.broker.copies.state import Replication
from cometmq.broker.copies.streams.rocketmq.frames import Transfer, TransferReader, encode_report
from cometmq.broker.copies.streams.rocketmq.slave import SlaveFollower
from cometmq.broker.copies.streams.rocketmq.slave_addresses import SlaveAddresses, parse_allowed
from cometmq.broker.copies.streams.serving import LogServer
from cometmq.broker.native import open_native_code
from cometmq.broker.settings import BrokerSettings
from cometmq.broker.storing.disk_jobs import Workers
from cometmq.broker.storing.log_syncs import NativeSyncer
from cometmq.broker.storing.store_driver import StoreDriver
from cometmq.remoting.log import NO_LOG
from cometmq.remoting.message.new_message import NewMessage
from cometmq.store.disk import Disk
from cometmq.store.results import PutResult
from cometmq.store.settings import BrokerRole
from cometmq.testing.broker.logs import RecordingLog
from cometmq.testing.runtime.clock import FakeClock
from cometmq.testing.store.builders import SMALL, StoreRig
from cometmq.testing.store.memory_disk import MemoryDisk

HOST: Final = "127.0.0.1"
DEADLINE_S: Final = 60.0

SMALL_SETTINGS: Final = BrokerSettings(
    broker_name="broker-a",
    **{name: getattr(SMALL, name) for name in SMALL.__struct_fields__},
)


async def until(condition: Callable[[], object]) -> None:
    """Wait until the condition holds; raise TimeoutError after `DEADLINE_S`."""
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110  # an arbitrary condition has no event
            await asyncio.sleep(0.002)


class Node:
    """A store with its driver and both sides of replication; the context manager closes them."""

    def __init__(
        self, disk: Disk | None = None, *, syncer: NativeSyncer | None = None, **changes: Any
    ) -> None:
        """`changes` are settings by their Python names. Create the object on the running loop."""
        self.settings = msgspec.structs.replace(SMALL_SETTINGS, **changes)
        self.disk = disk or MemoryDisk()
        native = open_native_code(self.settings, NO_LOG)
        self.rig = StoreRig(self.disk, self.settings, native=native)
        self.store = self.rig.store
        self.clock = FakeClock()
        self.log = RecordingLog()
        self.state = Replication()
        self.address = ""
        self.workers = Workers.start()
        self.driver = StoreDriver(
            self.store, workers=self.workers, clock=self.clock, log=self.log, syncer=syncer
        )
        self.server = LogServer(
            self.driver,
            self.state.slaves,
            worker=self.workers.replicate,
            settings=lambda: self.settings,
            addresses=SlaveAddresses(
                parse_allowed(self.settings.ha_slave_addresses),
                _nothing,  # there is no name server
                now_ms=self.clock.monotonic_ms,
                log=self.log,
            ),
            clock=self.clock,
            log=self.log,
        )
        self.store.writer.needs_replicas = self.settings.broker_role is BrokerRole.SYNC_MASTER
        self.store.writer.may_replicate = lambda end: self.state.slaves.may_replicate(
            end, self.settings.ha_slave_fallbehind_max
        )
        self.master_address = ""
        self.inspect: Callable[[], Awaitable[None]] = _nothing
        self.follower = SlaveFollower(
            self.driver,
            self.state.following,
            is_slave=lambda: True,
            address=lambda: self.master_address,
            inspect=self._inspect,
            settings=lambda: self.settings,
            clock=self.clock,
            log=self.log,
        )
        self._task: asyncio.Task[None] | None = None

    async def _inspect(self) -> None:
        await self.inspect()

    async def __aenter__(self) -> Self:
        self.address = f"{HOST}:{await self.server.listen(HOST, 0)}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop_following()
        self.server.close()
        await self.driver.drain()
        self.workers.close()

    def follow(self, address: str) -> None:
        self.master_address = address
        self._task = asyncio.get_running_loop().create_task(self.follower.run())

    async def stop_following(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    @property
    def end(self) -> int:
        return self.store.commit_log.end

    def put(self, message: NewMessage) -> list[PutResult]:
        """Store a message in this turn's commit; its result is appended to the list when known."""
        results: list[PutResult] = []
        self.driver.put(message, results.append)
        return results

    def log_bytes(self) -> bytes:
        """Return the log from its first byte to its end."""
        log = self.store.commit_log
        return log.read(log.min_offset, log.end - log.min_offset)


class RawSlave:
    """A connection to a master's replication port, on which the test sends and receives frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._transfers = TransferReader()

    @classmethod
    async def connect(cls, address: str) -> Self:
        """Connect without reporting anything yet."""
        host, _, port = address.rpartition(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    def report(self, offset: int) -> None:
        """Report or acknowledge the end of a log."""
        self.writer.write(encode_report(offset))

    async def receive(self, count: int) -> list[Transfer]:
        """Return the next transfers, which together contain at least this many bytes of the log."""
        found: list[Transfer] = []
        async with asyncio.timeout(DEADLINE_S):
            while sum(len(transfer.data) for transfer in found) < count or not found:
                data = await self.reader.read(1 << 16)
                if not data:
                    raise ConnectionResetError(f"closed after {found}")
                found += self._transfers.feed(data)
        return found

    async def is_closed(self) -> bool:
        """Wait until the other side closes the connection, ignoring any data that it sends
        first.
        """
        async with asyncio.timeout(DEADLINE_S):
            try:
                while await self.reader.read(1 << 16):
                    pass
            except ConnectionError:
                pass
        return True

    async def close(self) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except ConnectionError:
            return


async def _nothing() -> None: ...
