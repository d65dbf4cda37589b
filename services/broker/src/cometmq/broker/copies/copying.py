# SPDX-License-Identifier: Apache-2.0
"""Starts and stops the replication of a broker; `app` calls it.

Members of a broker group are built in `joining.py`. The role of any other broker is fixed by its
settings, as in RocketMQ 4.9: its master's side serves slaves (`streams/serving.py`), and its
slave's side follows the log (`streams/rocketmq/slave.py`) and copies the tables
(`from_master.py`).
"""

from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Iterator
from contextlib import AsyncExitStack
from functools import partial
from importlib import import_module

from cometmq.broker.broker import Broker
from cometmq.broker.copies.discard import Discard
from cometmq.broker.copies.from_master import MasterCopies
from cometmq.broker.copies.joining import Joined, join, open_state
from cometmq.broker.copies.members import exposure
from cometmq.broker.copies.roles.parts import Around
from cometmq.broker.copies.streams.rocketmq.slave import SlaveFollower
from cometmq.broker.copies.streams.rocketmq.slave_addresses import SlaveAddresses, parse_allowed
from cometmq.broker.copies.streams.serving import IDLE_INTERVAL_MS, TICK_INTERVAL_MS, LogServer
from cometmq.broker.handlers.transactions import recall_transactions
from cometmq.broker.registration.identity import Invoker, slave_hosts
from cometmq.broker.storing.disk_jobs import Workers
from cometmq.ha.port import RecordPort
from cometmq.remoting.errors import SettingsError
from cometmq.remoting.transport.client import RemotingClient
from cometmq.remoting.transport.protocol import PeerProtocol
from cometmq.runtime.extras import INSTALL_EXTRA, needs_extra
from cometmq.runtime.tasks import every
from cometmq.runtime.worker import Worker


class Copying:
    def __init__(
        self,
        broker: Broker,
        workers: Workers,
        client: RemotingClient,
        *,
        discard: Discard,
        stack: AsyncExitStack,
    ) -> None:
        """`stack` stops everything that starts here, in reverse order."""
        self.joined: Joined | None = None
        self._broker = broker
        self._workers = workers
        self._client = client
        self._discard = discard
        self._stack = stack
        self._server = log_server(broker, workers.replicate, client)
        stack.callback(self._server.close)

    async def join(
        self,
        clients: Callable[[], Collection[PeerProtocol]],
        record: RecordPort | None,
    ) -> None:
        broker = self._broker
        assert broker.tables.journal is not None
        opened = await self._workers.store.submit(
            partial(open_state, broker.settings, broker.store, broker.tables.journal)
        )
        promoted = partial(recall_transactions, broker)
        around = Around(self._workers, self._client, self._server, clients, promoted)
        self.joined = join(broker, opened, around, journal=broker.tables.journal, record=record)
        self._stack.push_async_callback(self.joined.close)

    async def listen(self, host: str, port: int) -> None:
        await self._server.listen(host, port)
        risk = "" if self.joined is None else exposure(self._broker.settings)
        if risk:
            self._broker.log.warning(
                "group.exposed", risk=risk, port=port,
                action="give all brokers, electors and administrators of the group a groupKeyFile"
                " (docs/guides/high-availability.md)",
            )  # fmt: skip

    def begin(self) -> Iterable[tuple[str, Coroutine[None, None, None]]]:
        """Start the membership, if there is one; return the loops to run, with their names."""
        if self.joined is None:
            return replication_loops(self._broker, self._server, self._client)
        loops = self.joined.loops()
        self.joined.begin()
        return loops.items()

    async def serve_control(self) -> None:
        """Serve the control API; it is stopped first, so that electors notice the stop."""
        broker = self._broker
        if self.joined is None or broker.settings.control_port < 0:
            return
        try:
            control = import_module("cometmq.broker.copies.control")  # gRPC: 0.15 s and 4 MB
        except ModuleNotFoundError as error:
            if not needs_extra(error):
                raise
            raise SettingsError(f"controlPort: {error}: {INSTALL_EXTRA}") from error
        server = await control.serve_control(broker, self.joined, self._discard.order)
        broker.replication.elector_count = lambda: server.electors.count
        self._stack.push_async_callback(server.stop)

    async def leave(self) -> None:
        """Leave the broker group, if there is one; a master hands over first."""
        if self.joined is not None:
            self._discard.check(self.joined.member.state.role, self._broker.log)
            await self.joined.leave()

    async def store_closed(self) -> None:
        """Move the files of the closed store aside, if an order demanded it (`discard.py`)."""
        if self.joined is not None:
            broker, role = self._broker, self.joined.member.state.role
            finish = partial(
                self._discard.finish, broker.settings, role, broker.clock.now_ms(), broker.log
            )
            await self._workers.store.submit(finish)


def log_server(broker: Broker, worker: Worker, client: Invoker) -> LogServer:
    """Build the server for slaves; `worker` reads cold slices, `client` asks name servers."""

    def look_up() -> Awaitable[list[str] | None]:
        return slave_hosts(client, list(broker.registration.links), broker.settings.broker_name)

    return LogServer(
        broker.driver,
        broker.replication.slaves,
        worker=worker,
        settings=lambda: broker.settings,
        addresses=SlaveAddresses(
            parse_allowed(broker.settings.ha_slave_addresses),
            look_up,
            now_ms=broker.clock.monotonic_ms,
            log=broker.log,
        ),
        clock=broker.clock,
        log=broker.log,
    )


def replication_loops(
    broker: Broker, server: LogServer, client: Invoker
) -> Iterator[tuple[str, Coroutine[None, None, None]]]:
    """Yield the loops by name; those of the slave's side do nothing on a master."""
    follower, copies = slave_side(broker, client)

    def tick() -> None:
        server.tick()
        follower.tick()

    def tick_interval_ms() -> int:
        is_idle = server.connection_count == 0 and not broker.role.is_slave
        return IDLE_INTERVAL_MS if is_idle else TICK_INTERVAL_MS

    settings, log = broker.settings, broker.log
    yield "follow", follower.run()
    yield "slave-addresses", server.addresses.run()
    yield "replication", every(tick_interval_ms, tick, name="replication", log=log)
    yield (
        "copies",
        every(
            settings.slave_sync_interval_mills,
            copies.step,
            name="copies",
            log=log,
            first_ms=settings.slave_sync_delay_mills,
        ),
    )


def slave_side(broker: Broker, client: Invoker) -> tuple[SlaveFollower, MasterCopies]:
    """Build what follows the master's log and copies its tables; each calls the other."""

    def is_slave() -> bool:
        return broker.role.is_slave and not broker.process.is_stopping

    def inspect() -> Awaitable[None]:
        return copies.inspect()

    follower = SlaveFollower(
        broker.driver,
        broker.replication.following,
        is_slave=is_slave,
        address=lambda: master_ha_address(broker),
        inspect=inspect,
        settings=lambda: broker.settings,
        clock=broker.clock,
        log=broker.log,
    )
    copies = MasterCopies(broker, client, is_slave=is_slave, note_unfit=follower.note_unfit)
    return follower, copies


def master_ha_address(broker: Broker) -> str:
    """Return the master's HA address: the configured one, or the one that name servers report."""
    address = broker.settings.ha_master_address or broker.registration.registrant.master_ha_address
    return "" if address == broker.registration.registrant.identity.ha_server_addr else address
