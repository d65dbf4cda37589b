# SPDX-License-Identifier: Apache-2.0
"""Starts and stops a broker; `copies.joining` does so for its replication.

Order at startup: ports, store (recovered on a thread), tables and journal, server, name servers,
timers. Order at shutdown: unregister from the name servers first, so that clients move to other
brokers; stop accepting connections; answer held pulls; let open requests finish; flush; save the
tables; close the store.
"""

import asyncio
from collections.abc import Collection, Coroutine, Iterable, Iterator
from contextlib import AbstractContextManager, AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Final

from cometmq.broker.acl.files import AclFiles
from cometmq.broker.acl.keeper import AclKeeper
from cometmq.broker.assembly import Inputs, assemble
from cometmq.broker.broker import Broker
from cometmq.broker.copies.discard import Discard
from cometmq.broker.copies.joining import Copying, Joined
from cometmq.broker.copies.keys import open_keys
from cometmq.broker.exposition.monitoring import attach
from cometmq.broker.filters.sql import load_parser
from cometmq.broker.handlers import HANDLERS, VIP_EXCLUDED
from cometmq.broker.handlers.arrivals import Arrivals
from cometmq.broker.handlers.clients import connection_closed
from cometmq.broker.handlers.transactions import recall_transactions
from cometmq.broker.lanes.lane import open_lane
from cometmq.broker.lost_messages import fit_offsets
from cometmq.broker.native import accel, open_native_syncer, open_tls
from cometmq.broker.opening import (
    acl_path,
    open_acl,
    open_journal,
    open_store,
    prepare_folders,
    server_settings,
)
from cometmq.broker.registration.addresses import (
    Ports,
    choose_ports,
    derived_ports,
    explicit_ha_port,
    with_ha_port,
)
from cometmq.broker.registration.registrant import registration_signing
from cometmq.broker.settings import BrokerSettings
from cometmq.broker.start_checks import (
    HA_NOTE,
    VIP_NOTE,
    check_environment,
    check_places,
    check_settings,
    warn_of_ineffective,
)
from cometmq.broker.storing.disk_jobs import Workers
from cometmq.broker.tables.lost_creations import waiting_topics
from cometmq.broker.timers import background_steps
from cometmq.ha.port import RecordPort
from cometmq.remoting.command import Peer
from cometmq.remoting.errors import SettingsError
from cometmq.remoting.log import NO_LOG, Log
from cometmq.remoting.transport.addresses import host_port
from cometmq.remoting.transport.client import RemotingClient
from cometmq.remoting.transport.protocol import PeerProtocol
from cometmq.remoting.transport.server import Server
from cometmq.remoting.transport.settings import ClientSettings
from cometmq.runtime.acl.accounts import Account
from cometmq.runtime.admin_http import AdminHttp
from cometmq.runtime.clock import Clock
from cometmq.runtime.places import listening
from cometmq.runtime.process.memory import FreedMemory, release_free_memory
from cometmq.runtime.settings import Loaded
from cometmq.runtime.tasks import every
from cometmq.runtime.tls_keys import client_tls
from cometmq.store.folder import refuse_foreign
from cometmq.store.layout import Layout
from cometmq.store.message_store import MessageStore
from cometmq.store.os_disk import OsDisk

FIRST_ROUND_WAIT_MS: Final = 2_000
QUIET_BYTES_MAX: Final = 8 << 20  # of unread answers
QUIET_JOBS_MAX: Final = 100
"""How long a start waits for the name servers' first answers before it continues without them."""


class BrokerApp:
    """A broker with its server and background tasks; call `start` and `stop` in the same task."""

    def __init__(
        self,
        settings: Loaded[BrokerSettings],
        *,
        log: Log,
        clock: Clock,
        admin: AdminHttp | None = None,
        config_path: Path | None = None,
        own_account: Account | None = None,
        record: RecordPort | None = None,
    ) -> None:
        """Store the arguments; `start` opens everything.

        `own_account` is an account for programs in the same process, in addition to the accounts in
        the files. `record` overrides the record store that the settings name.
        """
        self._record = record
        self._copying: Copying | None = None
        self.discard = Discard()
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
        """The addresses of the main port and of the port for short requests, in this order."""
        ports = [self._ports.main, *([self._ports.vip] if self._ports.vip else [])]
        return [host_port(self.broker.process.host, port) for port in ports]

    @property
    def broker(self) -> Broker:
        assert self._broker is not None, "not started"
        return self._broker

    @property
    def copies(self) -> Joined | None:
        """The broker's membership in a broker group, or None if it belongs to none."""
        return None if self._copying is None else self._copying.joined

    def check(self) -> None:
        """Raise an error if settings, folder, ports or addresses are unusable; create nothing.

        Ports that the settings leave open are chosen here, for `start`.
        """
        settings = self._loaded.value
        self.check_settings()
        OsDisk().check_unlocked(Layout(settings).lock)
        with self._listening(settings.listen_port):
            self._ports = choose_ports(
                settings.listen_port, settings.bind_address, ha_port=explicit_ha_port(self._loaded)
            )
        check_environment(self._loaded, self._ports, others=self._other_ports())
        self._loaded = with_ha_port(self._loaded, self._ports)

    def check_settings(self) -> None:
        """Raise an error if the settings, or files that they name, are unusable; try no port."""
        loaded = self._loaded
        check_settings(loaded)
        registration_signing(loaded.value)
        if loaded.value.acl_enable:
            path = acl_path(loaded.value, self._config_path)
            AclFiles(path, clock_ms=self._clock.now_ms, log=NO_LOG).load()
        check_places(loaded, derived_ports(loaded), others=self._other_ports())
        refuse_foreign(OsDisk(read_only=True), Layout(loaded.value))

    def _other_ports(self) -> list[tuple[int, str]]:
        settings, label = self._loaded.value, self._loaded.label
        return [
            (settings.admin_http_port, label("adminHttpPort")),
            (settings.control_port, label("controlPort")),
        ]

    async def start(self) -> None:
        """Start the broker; raise CometError or OSError if settings or environment prevent this."""
        if not self._ports.main:
            self.check()
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise

    async def _start(self) -> None:
        settings = self._loaded.value
        warn_of_ineffective(self._loaded, self._log)
        stack = self._stack
        workers = Workers.start()
        stack.callback(workers.close)
        inputs = await self._open(workers)
        broker = assemble(inputs)
        self._broker = broker
        stack.push_async_callback(self._save_tables, broker)
        stack.push_async_callback(broker.driver.settle)  # after everything that timers put last
        copying = Copying(broker, workers, inputs.client, discard=self.discard, stack=stack)
        self._copying = copying
        broker.deferred.delays.waiting.report_stranded()
        if settings.group_record:
            await copying.join(self._clients, self._record)
        else:
            recall_transactions(broker)
            if broker.role.is_master:
                broker.deferred.delays.fit()
            await fit_offsets(broker, workers)
        if settings.enable_property_filter:
            await workers.config.submit(load_parser)
            broker.tables.filters.arriving.compiler.note_loaded()
        server = await self._listen(broker)
        broker.process.expiries_s = lambda: {**server.expiries_s(), **inputs.client.expiries_s()}
        with self._listening(self._ports.ha, setting="haListenPort", note=HA_NOTE):
            await copying.listen(broker.settings.bind_address, self._ports.ha)
        group = await stack.enter_async_context(asyncio.TaskGroup())
        stack.callback(self._cancel_timers)
        stack.push_async_callback(self._drain, broker, server)
        self._start_loops(self._timer_loops(broker), group)
        self._start_loops(copying.begin(), group)
        await copying.serve_control()
        await broker.registration.wait_for_first_round(FIRST_ROUND_WAIT_MS)
        if fault := broker.registration.name_fault:
            raise SettingsError(fault)
        if self._admin is not None:
            attach(self._admin, broker, server, copying.joined)
        self._log.info(
            "broker.ready",
            addresses=self.addresses,
            advertised=broker.process.address,
            advertised_by=self._advertised_by(),
            store=settings.store_path_root_dir,
            sends=broker.process.send_path,
        )

    async def _open(self, workers: Workers) -> Inputs:
        """Open the broker's resources; each is closed when the stack unwinds."""
        settings, stack = self._loaded.value, self._stack
        acl = None
        if settings.acl_enable:
            files, control = await workers.config.submit(
                partial(
                    open_acl, settings, self._config_path, self._own_account,
                    clock=self._clock, log=self._log,
                )
            )  # fmt: skip
            acl = AclKeeper(files, control, worker=workers.config, log=self._log)
        await workers.store.submit(partial(prepare_folders, self._loaded))
        member_keys = await workers.config.submit(
            partial(open_keys, self._loaded, worker=workers.config, log=self._log)
        )
        store = await workers.store.submit(
            partial(open_store, settings, clock=self._clock, log=self._log)
        )
        stack.push_async_callback(self._close_store, workers, store)
        journal = await workers.store.submit(
            partial(open_journal, settings, store, worker=workers.config, log=self._log)
        )
        client = RemotingClient(
            ClientSettings(tls=client_tls(settings, self._loaded.label)),
            log=self._log,
            clock_ms=self._clock.monotonic_ms,
            before=registration_signing(settings),
            on_close=self._namesrv_lost,
        )
        stack.push_async_callback(client.close)
        return Inputs(
            self._loaded,
            self._clock,
            self._log,
            workers,
            store,
            client,
            self._ports,
            self._config_path,
            acl,
            journal,
            member_keys,
            open_native_syncer(settings),
            {}
            if settings.group_record
            else await workers.store.submit(partial(waiting_topics, store, journal.known_log_end)),
        )

    async def stop(self) -> None:
        """Stop the broker; afterwards all acknowledged messages are on disk."""
        if self._broker is None:
            return
        self._log.info("broker.stopping", addresses=self.addresses)
        if self._copying is not None:
            await self._copying.leave()
        await self._broker.registration.unregister()
        await self._stack.aclose()
        self._log.info("broker.stopped")

    def _advertised_by(self) -> str:
        settings = self._loaded.value
        if settings.advertised_addresses:
            return self._loaded.label("advertisedAddresses")
        if settings.broker_ip1:
            return self._loaded.label("brokerIP1")
        if self.broker.process.host == settings.bind_address:
            return self._loaded.label("bindAddress")
        return "the outward address of this machine; brokerIP1 sets another"

    def _namesrv_lost(self, peer: Peer) -> None:
        """Register again, because a name server drops a broker whose connection closes."""
        if self._broker is not None:
            self._broker.registration.connection_lost(peer.address)

    async def _listen(self, broker: Broker) -> Server[Broker]:
        settings = self._loaded.value

        def closed(peer: Peer) -> None:
            broker.pending.hold.drop(peer)
            broker.driver.reads.drop(peer)
            connection_closed(broker, peer)

        copies = self.copies
        server: Server[Broker] = Server(
            HANDLERS if copies is None else copies.parts.gate.guarded(HANDLERS),
            broker,
            server_settings(settings, self._loaded.label),
            log=self._log,
            clock_ms=self._clock.monotonic_ms,
            before=() if broker.admission.acl is None else (broker.admission.acl.control.check,),
            refused=lambda it, call, code, remark: it.admission.refused.note(
                call, code, remark, it.clock.now_ms()
            ),
            on_close=closed,
            before_write=None if copies is None else copies.roles.before_write,
            save=None if broker.tables.journal is None else broker.tables.journal.write,
            release_memory=release_free_memory,
        )
        self._server = server
        broker.process.unread_bytes = lambda: server.unread_bytes
        broker.driver.turn.noted.replace(server.writes.gather)
        lane = open_lane(broker)
        server.use_lane(lane, None if lane is None else accel.Sockets())
        if (engine := open_tls(settings)) is not None:
            server.use_tls(engine)
        Arrivals(broker, server.writes)
        broker.driver.turn.took_long.connect(server.charge)
        self._stack.push_async_callback(server.close, 0)
        with self._listening(self._ports.main):
            await server.listen(settings.bind_address, self._ports.main)
        if self._ports.vip:
            with self._listening(self._ports.vip, note=VIP_NOTE):
                await server.listen(settings.bind_address, self._ports.vip, excluded=VIP_EXCLUDED)
        return server

    def _clients(self) -> Collection[PeerProtocol]:
        return () if self._server is None else tuple(self._server.peers)

    def _listening(
        self, port: int, *, setting: str = "listenPort", note: str = ""
    ) -> AbstractContextManager[None]:
        loaded = self._loaded
        return listening(
            loaded.value.bind_address,
            port,
            setting=loaded.label(setting),
            host_setting=loaded.label("bindAddress"),
            note=note,
        )

    def _start_loops(
        self, loops: Iterable[tuple[str, Coroutine[None, None, None]]], group: asyncio.TaskGroup
    ) -> None:
        for name, loop in loops:
            self._timers.append(group.create_task(loop, name=f"broker-{name}"))

    def _timer_loops(self, broker: Broker) -> Iterator[tuple[str, Coroutine[None, None, None]]]:
        for name, interval_ms, step, sleep in background_steps(broker):
            yield name, every(interval_ms, step, name=name, log=self._log, sleep=sleep)
        yield "registration", broker.registration.run()
        yield "memory", FreedMemory(lambda: self._is_quiet(broker)).run()

    def _is_quiet(self, broker: Broker) -> bool:
        """Return whether no flood of requests or of unread answers lasts."""
        jobs = len(broker.driver.reads) + broker.pending.incremental.waiting_count
        return broker.process.unread_bytes() < QUIET_BYTES_MAX and jobs < QUIET_JOBS_MAX

    def _cancel_timers(self) -> None:
        for timer in self._timers:
            timer.cancel()

    async def _drain(self, broker: Broker, server: Server[Broker]) -> None:
        """Answer held pulls, then close the connections once the open requests are answered,
        including sends that wait for a flush. Timers are still running.
        """
        broker.process.is_stopping = True
        broker.deferred.delays.stop()
        server.stop_reading()
        broker.pending.hold.wake_all()
        broker.driver.turn.wake()  # answers the woken pulls
        await broker.pending.large_puts.drain()
        await broker.driver.drain()
        await server.close(broker.settings.stop_timeout_mills)

    async def _save_tables(self, broker: Broker) -> None:
        tables = broker.tables
        for table in (tables.topics, tables.groups, tables.offsets, tables.filters):
            tables.saver.request_if_dirty(table)
        broker.deferred.delays.save_at_end()
        tables.saver.retry()
        await tables.saver.drain()
        if tables.journal is not None and tables.saver.is_healthy:
            await tables.journal.close()

    async def _close_store(self, workers: Workers, store: MessageStore) -> None:
        await workers.store.submit(store.close)
        if self._copying is not None:
            await self._copying.store_closed()
