# SPDX-License-Identifier: Apache-2.0
"""Broker groups in one process, with real brokers, stores, sockets and an elector; the record is in
memory.

A kill leaves a broker's files as they are in the page cache, and tells other brokers nothing.
"""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from cometmq.broker.app import BrokerApp
from cometmq.broker.broker import Broker
from cometmq.broker.copies.joining import Joined
from cometmq.broker.copies.roles.member_driver import MemberDriver
from cometmq.broker.settings import BrokerSettings
from cometmq.broker.storing.disk_jobs import Workers
from cometmq.ha import actions, election, missing_record
from cometmq.ha.actions import Group, Status
from cometmq.ha.member import OrderRefused
from cometmq.ha.orders import Fence
from cometmq.ha.proof import KeyFile, Keys
from cometmq.ha.record import Record
from cometmq.ha.role import Role
from cometmq.remoting.transport.server import Server
from cometmq.runtime.clock import SystemClock
from cometmq.runtime.settings import load
from cometmq.store.message_store import MessageStore
from cometmq.testing.broker.clients import Client
from cometmq.testing.broker.logs import RecordingLog
from cometmq.testing.ha.memory import MemoryPlace, MemoryRecord
from cometmq.testing.runtime.reserved_ports import BROKER_NEIGHBOURS, HOST, reserve_port

DEADLINE_S: Final = 60.0
FAST: Final = {
    "renewDeadlineMills": "5000",
    "heardWithinMills": "1000",
    "replicaLagTimeoutMills": "5000",
    "haSendHeartbeatInterval": "50",
    "switchoverTimeoutMills": "30000",
    "slaveTimeout": "60000",
    "mappedFileSizeCommitLog": "1048576",
    "mappedFileSizeConsumeQueue": "60000",
}
"""Settings with small files and short intervals. All brokers share one loop, which may stall for a
second on a busy machine; the intervals are long enough that no election follows.
"""


class KillableApp(BrokerApp):
    """A broker that tests can stop as if its process had been killed."""

    _is_killed = False

    async def kill(self) -> None:
        """Stop without cleanup: connections break, and nothing more is saved."""
        self._is_killed = True
        for client in self._clients():
            client.reset()
        await self._stack.aclose()

    async def _drain(self, broker: Broker, server: Server[Broker]) -> None:
        if self._is_killed:
            await server.close(0)
        else:
            await super()._drain(broker, server)

    async def _save_tables(self, broker: Broker) -> None:
        if not self._is_killed:
            await super()._save_tables(broker)

    async def _close_store(self, workers: Workers, store: MessageStore) -> None:
        if self._is_killed:
            store._folder.release()  # as the kernel does
        else:
            await super()._close_store(workers, store)


class BrokerGroup:
    """The brokers of one broker group; `elect` runs a round of the elector."""

    def __init__(self, folder: Path, count: int, **settings: str) -> None:
        self._folder = folder
        self._settings = settings
        self._ports = [reserve_port(BROKER_NEIGHBOURS) for _ in range(count)]
        self.place = MemoryPlace()
        self.port = self.place.port()
        self.ports: dict[int, MemoryRecord] = {}
        self.apps: dict[int, KillableApp] = {}
        self.logs = [RecordingLog() for _ in range(count)]
        self.group = Group(
            name="broker-a",
            ordinals=tuple(range(count)),
            min_in_sync=int(settings.get("minInSync", "1")),
        )

    def address(self, ordinal: int) -> str:
        return f"{HOST}:{self._ports[ordinal]}"

    def copies(self, ordinal: int) -> Joined:
        found = self.apps[ordinal].copies
        assert found is not None
        return found

    def member(self, ordinal: int) -> MemberDriver:
        return self.copies(ordinal).member

    def status(self, ordinal: int) -> Status:
        return self.member(ordinal).status()

    @property
    def record(self) -> Record:
        assert self.place.current is not None, "no record yet"
        return self.place.current.record

    @property
    def in_sync(self) -> list[int]:
        return [copy.ordinal for copy in self.record.in_sync]

    @property
    def master(self) -> int | None:
        """The ordinal of the acting master that the record names, or None."""
        if self.place.current is None:
            return None
        ordinal, epoch = self.record.holder.ordinal, self.record.epoch
        if ordinal not in self.apps:
            return None
        status = self.status(ordinal)
        is_open = status.role is Role.MASTER and status.epoch == epoch
        return ordinal if is_open else None

    @property
    def open_master(self) -> int:
        """The ordinal of the acting master, which there must be."""
        master = self.master
        assert master is not None, "no master is open"
        return master

    async def start(self, ordinal: int) -> None:
        """Start a broker on the folder and port of its ordinal."""
        members = ";".join(f"{n}={self.address(n)}" for n in self.group.ordinals)
        given = {
            **FAST,
            "brokerName": self.group.name,
            "brokerId": str(ordinal),
            "brokerIP1": HOST,
            "bindAddress": HOST,
            "listenPort": str(self._ports[ordinal]),
            "storePathRootDir": str(self._folder / str(ordinal)),
            "groupRecord": "file:/not-used",
            "groupMembers": members,
            "groupKeyFile": str(self._key_file()),
            **self._settings,
        }
        loaded = load(BrokerSettings, prefix="COMETMQ_TEST", env={}, cli=given)
        self.ports[ordinal] = self.place.port()
        app = KillableApp(
            loaded, log=self.logs[ordinal], clock=SystemClock(), record=self.ports[ordinal]
        )
        await app.start()
        # The usual wait of 3 s would end only one second after a master drops a silent copy.
        if app.copies is not None:
            gate, wait_ms = app.copies.parts.gate, int(DEADLINE_S * 1000)
            gate.permission.wait_ms_max = gate.diversion.forward_ms_max = wait_ms
        self.apps[ordinal] = app

    def change_settings(self, **settings: str) -> None:
        """Change the settings with which brokers are started from now on."""
        self._settings = {**self._settings, **settings}

    def keys(self) -> Keys:
        return KeyFile(self._key_file()).keys

    def _key_file(self) -> Path:
        """Return the file with the key of the broker group, which is written first if it is
        missing.
        """
        path = self._folder / "group.key"
        if not path.exists():
            self._folder.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{secrets.token_hex(32)}\n")
        return path

    async def stop(self, ordinal: int) -> None:
        await self.apps.pop(ordinal).stop()

    async def kill(self, ordinal: int) -> None:
        """Stop a broker as if its process had been killed."""
        await self.apps.pop(ordinal).kill()

    async def elect(self, *lost: int, accept_loss: bool = False) -> None:
        """Perform one round of the elector, which treats the members in `lost` as dead."""
        found = await self.port.read()
        statuses = tuple(self.status(ordinal) for ordinal in self.apps)
        if found is None:
            epoch = missing_record.restore_epoch(statuses)
            for status in statuses:
                await self.member(status.copy.ordinal).obey(Fence(epoch))
            statuses = tuple(self.status(ordinal) for ordinal in self.apps)
            actions = missing_record.restore(
                self.group, statuses, epoch, "u", accept_loss=accept_loss
            )
        else:
            is_lost = found.record.holder.ordinal in lost
            actions = election.decide(self.group, found, statuses, is_master_lost=is_lost)
        for action in actions:
            with contextlib.suppress(OrderRefused):
                await self._perform(action)

    async def _perform(self, action: actions.Action) -> None:
        match action:
            case actions.Create(record=record):
                await self.port.create(record)
            case actions.Elect(base=base, record=record):
                await self.port.replace(base, record)
            case actions.Tell(ordinal=ordinal, order=order) if ordinal in self.apps:
                await self.member(ordinal).obey(order)
            case _:
                pass

    async def until_master(self, *lost: int) -> int:
        """Repeat elections until there is an acting master; return its ordinal."""
        async with asyncio.timeout(DEADLINE_S):
            while (master := self.master) is None or master in lost:
                await self.elect(*lost)
                await asyncio.sleep(0.02)
        return master

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not condition():  # noqa: ASYNC110  # an arbitrary condition has no event
                await asyncio.sleep(0.01)

    async def until_in_sync(self, *ordinals: int) -> None:
        await self.until(lambda: self.in_sync == sorted(ordinals))

    @asynccontextmanager
    async def client(self, ordinal: int) -> AsyncIterator[Client]:
        client = Client(self.address(ordinal))
        try:
            yield client
        finally:
            await client.close()


@asynccontextmanager
async def running_group(folder: Path, count: int, **settings: str) -> AsyncIterator[BrokerGroup]:
    """Start a broker group, elect its first master, and wait until all copies are in sync."""
    group = BrokerGroup(folder, count, **settings)
    try:
        for ordinal in range(count):
            await group.start(ordinal)
        await group.until_master()
        await group.until_in_sync(*range(count))
        yield group
    finally:
        for ordinal in tuple(group.apps):
            await group.stop(ordinal)
