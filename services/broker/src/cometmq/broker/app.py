# SPDX-License-Identifier: Apache-2.0
"""Starts and stops a broker; the only module that makes things run.

Start: ports, store (recovered on a thread), tables and journal, server, name servers, timers. Stop:
unregister from the name servers first, so that clients move to other brokers; stop accepting;
answer held pulls; let open requests finish; flush; save the tables; close the store.
"""

import asyncio
from collections.abc import Awaitable
from contextlib import AbstractContextManager, AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Final

from cometmq.broker import metrics
from cometmq.broker.acl.accounts import Account
from cometmq.broker.acl.check import AccessControl
from cometmq.broker.acl.files import AclFiles
from cometmq.broker.acl.keeper import AclKeeper
from cometmq.broker.addresses import (
    Ports,
    advertised_host,
    check_advertised,
    choose_ports,
    host_port,
    packed_host,
)
from cometmq.broker.assembly import Inputs, assemble
from cometmq.broker.broker import Broker
from cometmq.broker.handlers import HANDLERS, VIP_EXCLUDED
from cometmq.broker.handlers.arrivals import connect_arrivals
from cometmq.broker.handlers.clients import connection_closed
from cometmq.broker.handlers.send_lane import open_lane
from cometmq.broker.handlers.transactions import recall_transactions
from cometmq.broker.replication.copies import Copied, MasterCopies
from cometmq.broker.replication.following import Follower
from cometmq.broker.replication.serving import TICK_INTERVAL_MS, LogServer
from cometmq.broker.role import MASTER_ID
from cometmq.broker.settings import BrokerSettings
from cometmq.broker.store_driver import Workers
from cometmq.broker.tables.journal import Journal
from cometmq.broker.timers import background_steps
from cometmq.remoting.command import Peer
from cometmq.remoting.errors import SettingsError
from cometmq.remoting.log import Log
from cometmq.remoting.transport.client import RemotingClient
from cometmq.remoting.transport.server import Server
from cometmq.remoting.transport.settings import ClientSettings, ServerSettings
from cometmq.runtime.admin_http import AdminHttp
from cometmq.runtime.boot import boot_id
from cometmq.runtime.clock import Clock
from cometmq.runtime.memory import memory_limit_bytes
from cometmq.runtime.places import check_port, listening, prepare_folder
from cometmq.runtime.settings import DEFAULT, Loaded
from cometmq.runtime.tasks import every
from cometmq.runtime.tls_keys import client_tls, server_tls
from cometmq.store.disk import OsDisk
from cometmq.store.message_store import MessageStore
from cometmq.store.settings import BrokerRole
from cometmq.store.writing.write_state import Refusal

ACL_FILE: Final = "plain_acl.yml"
VIP_NOTE: Final = "the second port of the broker"
HA_NOTE: Final = "the port for slaves"
FIRST_ROUND_WAIT_MS: Final = 2_000
"""Maximum time that a start waits for name servers that do not answer."""


class BrokerApp:
    """A broker with everything that it runs; call `start` and `stop` in the same task."""

    def __init__(
        self,
        settings: Loaded[BrokerSettings],
        *,
        log: Log,
        clock: Clock,
        admin: AdminHttp | None = None,
        config_path: Path | None = None,
        own_account: Account | None = None,
    ) -> None:
        """Open nothing yet.

        `own_account` is for programs in the same process, in addition to the accounts in the files.
        """
        self._own_account = own_account
        self._loaded = settings
        self._log = log
        self._clock = clock
        self._admin = admin
        self._config_path = config_path
        self._stack = AsyncExitStack()
        self._timers: list[asyncio.Task[None]] = []
        self._ports = Ports(0, None, 0)
        self._server: Server[Broker] | None = None
        self._broker: Broker | None = None

    @property
    def addresses(self) -> list[str]:
        """The main port, followed by the port for short requests."""
        ports = [self._ports.main, *([self._ports.vip] if self._ports.vip else [])]
        return [host_port(self.broker.host, port) for port in ports]

    @property
    def broker(self) -> Broker:
        assert self._broker is not None, "not started"
        return self._broker

    async def start(self) -> None:
        """Start; raise CometError or OSError if the settings or the environment do not allow it."""
        check_settings(self._loaded)
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise

    async def _start(self) -> None:
        settings = self._loaded.value
        ineffective = self._loaded.ineffective()
        if ineffective:
            self._log.warning("settings.ineffective", settings=ineffective)
        stack = self._stack
        with self._listening(settings.listen_port):
            self._ports = choose_ports(
                settings.listen_port, settings.bind_address, ha_port=explicit_ha_port(self._loaded)
            )
        check_environment(self._loaded, self._ports)
        workers = Workers.start()
        stack.callback(workers.close)
        acl = await workers.config.submit(self._open_acl) if settings.acl_enable else None
        await workers.store.submit(self._prepare_folders)
        store = await workers.store.submit(self._open_store)
        stack.push_async_callback(self._close_store, workers, store)
        journal = await workers.store.submit(partial(self._open_journal, store, workers))
        client = RemotingClient(
            ClientSettings(tls=client_tls(settings)),
            log=self._log,
            clock_ms=self._clock.monotonic_ms,
            on_close=self._namesrv_lost,
        )
        stack.push_async_callback(client.close)
        broker = assemble(
            Inputs(
                self._loaded,
                self._clock,
                self._log,
                workers,
                store,
                client,
                self._ports,
                self._config_path,
                None if acl is None else AclKeeper(*acl, worker=workers.config, log=self._log),
                journal,
            )
        )
        self._broker = broker
        stack.push_async_callback(self._save_tables, broker)
        stack.push_async_callback(broker.driver.settle)  # after everything that timers put last
        recall_transactions(broker)
        server = await self._listen(broker)
        log_server = await self._serve_slaves(broker, workers)
        group = await stack.enter_async_context(asyncio.TaskGroup())
        stack.callback(self._cancel_timers)
        stack.push_async_callback(self._drain, broker, server)
        self._start_timers(broker, group)
        self._start_replication(broker, log_server, client, group)
        await broker.registration.wait_for_first_round(FIRST_ROUND_WAIT_MS)
        if self._admin is not None:
            attach(self._admin, broker, server)
        self._log.info(
            "broker.ready",
            addresses=self.addresses,
            advertised=broker.address,
            advertised_by=self._advertised_by(),
            store=settings.store_path_root_dir,
            sends=broker.send_path,
        )

    async def stop(self) -> None:
        """Stop; afterwards all acknowledged messages are on disk."""
        if self._broker is None:
            return
        self._log.info("broker.stopping", addresses=self.addresses)
        await self._broker.registration.unregister()
        await self._stack.aclose()
        self._log.info("broker.stopped")

    def _advertised_by(self) -> str:
        settings = self._loaded.value
        if settings.broker_ip1:
            return self._loaded.label("brokerIP1")
        if self.broker.host == settings.bind_address:
            return self._loaded.label("bindAddress")
        return "the outward address of this machine; brokerIP1 sets another"

    def _namesrv_lost(self, peer: Peer) -> None:
        """Register again, because a name server drops a broker when their connection closes."""
        if self._broker is not None:
            self._broker.registration.connection_lost(peer.address)

    def _prepare_folders(self) -> None:
        settings, label = self._loaded.value, self._loaded.label
        root = Path(settings.store_path_root_dir).expanduser()
        prepare_folder(root, setting=label("storePathRootDir"))
        if settings.store_path_commit_log:
            commit_log = Path(settings.store_path_commit_log).expanduser()
            prepare_folder(commit_log, setting=label("storePathCommitLog"))

    def _open_store(self) -> MessageStore:
        settings = self._loaded.value
        return MessageStore.open(
            settings,
            disk=OsDisk(open_files_max=settings.open_queue_files_max),
            clock_ms=self._clock.now_ms,
            log=self._log,
            memory_bytes=memory_limit_bytes(),
            boot_id=boot_id(),
        )

    def _open_journal(self, store: MessageStore, workers: Workers) -> Journal:
        return Journal(OsDisk(), store.layout.journal, worker=workers.config, log=self._log)

    def _open_acl(self) -> tuple[AclFiles, AccessControl]:
        path = acl_path(self._loaded.value, self._config_path)
        files = AclFiles(path, clock_ms=self._clock.now_ms, log=self._log)
        accounts = files.load()
        if accounts.is_empty:
            self._log.warning("accounts.missing", file=str(path))
        return files, AccessControl(accounts, self._own_account)

    async def _listen(self, broker: Broker) -> Server[Broker]:
        settings = self._loaded.value

        def closed(peer: Peer) -> None:
            broker.hold.drop(peer)
            connection_closed(broker, peer)

        server: Server[Broker] = Server(
            HANDLERS,
            broker,
            server_settings(settings),
            log=self._log,
            clock_ms=self._clock.monotonic_ms,
            before=() if broker.acl is None else (broker.acl.control.check,),
            on_close=closed,
            before_write=None if broker.journal is None else broker.journal.write,
        )
        self._server = server

        lane = open_lane(broker)
        server.use_lane(lane)
        connect_arrivals(broker, server.flush)
        self._stack.push_async_callback(server.close, 0)
        with self._listening(self._ports.main):
            await server.listen(settings.bind_address, self._ports.main)
        if self._ports.vip:
            with self._listening(self._ports.vip, note=VIP_NOTE):
                await server.listen(settings.bind_address, self._ports.vip, excluded=VIP_EXCLUDED)
        return server

    async def _serve_slaves(self, broker: Broker, workers: Workers) -> LogServer:
        server = LogServer(
            broker.store,
            broker.driver,
            broker.replication.slaves,
            worker=workers.replicate,
            settings=lambda: broker.settings,
            clock=self._clock,
            log=self._log,
        )
        self._stack.callback(server.close)
        loaded = self._loaded
        with listening(
            loaded.value.bind_address,
            self._ports.ha,
            setting=loaded.label("haListenPort"),
            host_setting=loaded.label("bindAddress"),
            note=HA_NOTE,
        ):
            await server.listen(loaded.value.bind_address, self._ports.ha)
        broker.driver.log_grew = server.wake
        return server

    def _start_replication(
        self,
        broker: Broker,
        server: LogServer,
        client: RemotingClient,
        group: asyncio.TaskGroup,
    ) -> None:
        """Follow the master if this broker is a slave, either now or after a role change."""
        status, log = broker.replication.following, self._log

        def is_slave() -> bool:
            return broker.is_slave and not broker.is_stopping

        def inspect() -> Awaitable[None]:
            return copies.inspect()

        follower = Follower(
            broker.store,
            broker.driver,
            status,
            is_slave=is_slave,
            address=lambda: master_ha_address(broker),
            inspect=inspect,
            settings=lambda: broker.settings,
            clock=self._clock,
            log=log,
        )
        copies = MasterCopies(
            Copied(broker.topics, broker.groups, broker.offsets, broker.delay),
            status,
            client=client,
            registration=broker.registration,
            saver=broker.saver,
            commit_log=broker.store.commit_log,
            is_slave=is_slave,
            note_unfit=follower.note_unfit,
            settings=lambda: broker.settings,
            clock=self._clock,
            log=log,
        )

        def tick() -> None:
            server.tick()
            follower.tick()

        settings = broker.settings
        for name, loop in {
            "follow": follower.run(),
            "replication": every(TICK_INTERVAL_MS, tick, name="replication", log=log),
            "copies": every(
                settings.slave_sync_interval_mills,
                copies.step,
                name="copies",
                log=log,
                first_ms=settings.slave_sync_delay_mills,
            ),
        }.items():
            self._timers.append(group.create_task(loop, name=f"broker-{name}"))

    def _listening(self, port: int, note: str = "") -> AbstractContextManager[None]:
        loaded = self._loaded
        return listening(
            loaded.value.bind_address,
            port,
            setting=loaded.label("listenPort"),
            host_setting=loaded.label("bindAddress"),
            note=note,
        )

    def _start_timers(self, broker: Broker, group: asyncio.TaskGroup) -> None:
        for name, interval_ms, step in background_steps(broker):
            loop = every(interval_ms, step, name=name, log=self._log)
            self._timers.append(group.create_task(loop, name=f"broker-{name}"))
        registration = broker.registration.run()
        self._timers.append(group.create_task(registration, name="broker-registration"))

    def _cancel_timers(self) -> None:
        for timer in self._timers:
            timer.cancel()

    async def _drain(self, broker: Broker, server: Server[Broker]) -> None:
        """Answer held pulls, then let open requests finish; timers are still running.

        Connections close only after the sends that wait for a flush have been answered.
        """
        broker.is_stopping = True
        broker.delay.stop()
        server.stop_reading()
        broker.hold.wake_all()
        broker.driver.after_commit()  # answers the woken pulls
        await broker.driver.drain()
        await server.close(broker.settings.stop_timeout_mills)

    async def _save_tables(self, broker: Broker) -> None:
        for table in (broker.topics, broker.groups, broker.offsets, broker.filters):
            broker.saver.request_if_dirty(table)
        broker.delay.save_at_end()
        broker.saver.retry()
        await broker.saver.drain()
        if broker.journal is not None and broker.saver.is_healthy:
            await broker.journal.close()

    async def _close_store(self, workers: Workers, store: MessageStore) -> None:
        await workers.store.submit(store.close)


def explicit_ha_port(loaded: Loaded[BrokerSettings]) -> int | None:
    """Return haListenPort if it is set explicitly; by default it is derived from listenPort."""
    is_default = loaded.origins.get("haListenPort", DEFAULT) == DEFAULT
    return None if is_default else loaded.value.ha_listen_port


def master_ha_address(broker: Broker) -> str:
    """Return the master's HA address: the setting, or else what the name servers report."""
    address = broker.settings.ha_master_address or broker.registration.master_ha_address
    return "" if address == broker.registration.identity.ha_server_addr else address


def acl_path(settings: BrokerSettings, config_path: Path | None) -> Path:
    if settings.acl_file:
        path = Path(settings.acl_file)
    elif settings.rocketmq_home:
        path = Path(settings.rocketmq_home) / "conf" / ACL_FILE
    elif config_path is not None:
        path = config_path.with_name(ACL_FILE)
    else:
        path = Path(settings.store_path_root_dir) / "config" / ACL_FILE
    return path.expanduser().absolute()


def check_settings(loaded: Loaded[BrokerSettings]) -> None:
    """Refuse settings of features that do not exist, rather than run without them."""
    settings = loaded.value
    check_advertised(settings.broker_ip1, setting=loaded.label("brokerIP1"))
    check_advertised(settings.broker_ip2, setting=loaded.label("brokerIP2"))
    if settings.enable_d_leger_commit_log:
        raise SettingsError("enableDLegerCommitLog=true: DLedger is not supported")
    if settings.broker_role is BrokerRole.SLAVE and settings.broker_id <= MASTER_ID:
        raise SettingsError(
            f"brokerRole=SLAVE needs {loaded.label('brokerId')} above 0, not {settings.broker_id}:"
            " a number that no other slave of this brokerName has"
        )


def check_environment(loaded: Loaded[BrokerSettings], ports: Ports) -> None:
    """Refuse ports and addresses that cannot be used, before creating any folder."""
    settings = loaded.value
    for port, setting, note in (
        (ports.main, "listenPort", ""),
        (ports.vip or 0, "listenPort", VIP_NOTE),
        (ports.ha, "haListenPort", HA_NOTE),
    ):
        check_port(
            settings.bind_address,
            port,
            setting=loaded.label(setting),
            host_setting=loaded.label("bindAddress"),
            note=note,
        )
    host = advertised_host(settings.broker_ip1, settings.bind_address)
    packed_host(host, ports.main, setting=loaded.label("brokerIP1"))


def server_settings(settings: BrokerSettings) -> ServerSettings:
    return ServerSettings(
        connections_max=settings.connections_max,
        in_flight_per_connection_max=settings.connection_in_flight_max,
        in_flight_max=settings.in_flight_max,
        write_high_water_bytes=settings.write_buffer_high_bytes,
        write_low_water_bytes=settings.write_buffer_high_bytes // 4,
        unsent_bytes_max=settings.write_buffer_hard_bytes,
        unsent_total_bytes_max=settings.write_buffer_total_bytes,
        idle_timeout_ms=settings.server_channel_max_idle_time_seconds * 1000,
        tls=server_tls(settings),
    )


def store_fault(broker: Broker) -> str | None:
    """Return why the store accepts no messages; for a slave, its role is not a fault."""
    reasons = set(broker.store.stats().refusals)
    if broker.is_slave:
        reasons.discard(Refusal.ROLE)
    refusals = ", ".join(sorted(reasons))
    return f"the store takes no messages: {refusals}" if refusals else None


def replication_fault(broker: Broker) -> str | None:
    """Return why this slave cannot follow its master."""
    status = broker.replication.following
    if not broker.is_slave or status.unfit is None:
        return None
    return f"the log of the master cannot be followed: {status.unfit_detail}"


def attach(admin: AdminHttp, broker: Broker, server: Server[Broker]) -> None:
    """Add the broker's metrics, settings and readiness to the HTTP port."""

    def table_fault() -> str | None:
        if not broker.saver.is_healthy:
            return "a config table cannot be saved"
        if broker.journal is not None and broker.journal.fault:
            return f"the journal of the tables cannot be written: {broker.journal.fault}"
        return None

    def settings_text() -> str:
        return broker.loaded.as_table()

    for source in metrics.collectors(broker, server.stats):
        admin.registry.add(source)
    admin.add_ready_check("store", partial(store_fault, broker))
    admin.add_ready_check("tables", table_fault)
    if (acl := broker.acl) is not None:
        admin.add_ready_check("accounts", lambda: acl.gap)
    admin.add_ready_check("replication", partial(replication_fault, broker))
    admin.add_settings("broker", settings_text)
    admin.add_settings("sends", lambda: broker.send_path)
