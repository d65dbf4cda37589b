# SPDX-License-Identifier: Apache-2.0
"""Starts and stops a name server; only this module constructs its components."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Final

from cometmq.namesrv.accounts import Accounts
from cometmq.namesrv.group_keys import GroupKeys
from cometmq.namesrv.handlers import HANDLERS
from cometmq.namesrv.kv_config import load_kv_config
from cometmq.namesrv.metrics import NAMESRV_FAMILIES
from cometmq.namesrv.namesrv import Namesrv
from cometmq.namesrv.settings import NamesrvSettings
from cometmq.remoting.errors import SettingsError
from cometmq.remoting.log import Log
from cometmq.remoting.transport import PeerProtocol, Server, ServerSettings
from cometmq.remoting.transport.addresses import host_port
from cometmq.remoting.transport.tasks import TaskSet
from cometmq.runtime.admin_http import AdminHttp
from cometmq.runtime.clock import Clock
from cometmq.runtime.files import replace_file
from cometmq.runtime.limits import LIMIT_TABLE_FAMILIES
from cometmq.runtime.metrics import StatsCollector
from cometmq.runtime.metrics.transport import TRANSPORT_FAMILIES
from cometmq.runtime.places import check_port, listening, prepare_folder
from cometmq.runtime.process.memory import FreedMemory, release_free_memory
from cometmq.runtime.process.system import connections_within
from cometmq.runtime.saves import Saver
from cometmq.runtime.settings import DEFAULT, Loaded
from cometmq.runtime.settings.faults import Faults
from cometmq.runtime.tasks import every
from cometmq.runtime.tls_keys import Label, server_tls
from cometmq.runtime.worker import Worker

FIRST_SCAN_MS: Final = 5_000
DRAIN_MS: Final = 300
KEYS_POLL_MS: Final = 1_000
EXPIRED_AT_ONCE: Final = 100
QUIET_BYTES_MAX: Final = 8 << 20  # of unread answers
QUIET_JOBS_MAX: Final = 100
"""Maximum number of silent brokers that one turn of the loop drops; this takes about 5 ms."""


class NamesrvApp:
    def __init__(
        self,
        settings: Loaded[NamesrvSettings],
        *,
        log: Log,
        clock: Clock,
        admin: AdminHttp | None = None,
    ) -> None:
        self.addresses: list[str] = []
        self._settings = settings
        self._log = log
        self._clock = clock
        self._admin = admin
        self._started = AsyncExitStack()

    def check(self) -> None:
        """Raise SettingsError if settings or the port cannot be used; create nothing."""
        settings, label = self._settings.value, self._settings.label
        self.check_settings()
        check_port(
            settings.bind_address,
            settings.listen_port,
            setting=label("listenPort"),
            host_setting=label("bindAddress"),
        )

    def check_settings(self) -> None:
        """Raise SettingsError if the settings, or files that they name, are unusable."""
        settings, label, faults = self._settings.value, self._settings.label, Faults()
        faults.attempt(lambda: server_tls(settings, label))
        faults.attempt(self._open_group_keys)
        if settings.acl_enable:
            faults.attempt(self._open_accounts)
        faults.raise_all()

    def _open_group_keys(self) -> GroupKeys:
        return GroupKeys(self._settings.value.group_key_file, self._settings.label("groupKeyFile"))

    def _open_accounts(self) -> Accounts:
        path = Path(self._settings.value.acl_file).expanduser()
        return Accounts(path, self._settings.label("aclFile"))

    async def start(self) -> None:
        """Load the KV file, start serving, and start dropping silent brokers."""
        async with AsyncExitStack() as starting:
            await self._start(starting)
            self._started = starting.pop_all()

    async def stop(self) -> None:
        """Stop serving; requests in flight have up to DRAIN_MS to finish."""
        await self._started.aclose()
        self._log.info("namesrv.stopped")

    def _prepare_folders(self) -> None:
        """Create the folders of the two files that settings may name; raise SettingsError if one is
        not writable.

        Folders of default paths are skipped: a name server can serve routes without writing files.
        """
        settings = self._settings
        for name, path in (
            ("kvConfigPath", settings.value.kv_config_path),
            ("configStorePath", settings.value.config_store_path),
        ):
            if settings.origins[name] != DEFAULT:
                prepare_folder(Path(path).parent, setting=settings.label(name))

    async def _start(self, starting: AsyncExitStack) -> None:
        settings = self._settings.value
        self.check()
        if ineffective := self._settings.ineffective():
            self._log.warning("settings.ineffective", settings=ineffective)
        worker = Worker("namesrv-files")
        starting.callback(worker.close)

        await worker.submit(self._prepare_folders)
        saver = Saver(worker, log=self._log)
        starting.push_async_callback(saver.drain)

        async def save_file(path: Path, encode: Callable[[], bytes]) -> None:
            await saver.save(path, lambda: partial(replace_file, path, encode()))

        keys = await worker.submit(self._open_group_keys)
        namesrv = Namesrv(
            self._settings,
            load_kv_config(Path(settings.kv_config_path)),
            clock=self._clock,
            save_file=save_file,
            log=self._log,
            group_keys=keys,
        )
        accounts = None
        if settings.acl_enable:
            accounts = await worker.submit(self._open_accounts)
        server = await self._listen(namesrv, accounts, starting)
        background = TaskSet(self._log)
        starting.push_async_callback(background.close)
        namesrv.sweep_in(background)
        name, every_ms = "namesrv-expiry", settings.scan_interval_ms
        expiry = every(
            every_ms, lambda: expire(namesrv), name=name, log=self._log,
            first_ms=min(FIRST_SCAN_MS, every_ms),
        )  # fmt: skip
        background.spawn(expiry, name=name, is_endless=True)
        memory = FreedMemory(
            lambda: (
                server.unread_bytes < QUIET_BYTES_MAX
                and namesrv.incremental.waiting_count < QUIET_JOBS_MAX
            )
        )
        background.spawn(memory.run(), name="namesrv-memory", is_endless=True)
        if settings.group_key_file or accounts is not None:
            keeping = _keep_files_current(namesrv, accounts, worker)
            background.spawn(keeping, name="namesrv-keys", is_endless=True)
        if self._admin is not None:
            _show(self._admin, namesrv, server)
        self.addresses = [host_port(*one) for one in server.addresses]
        self._log.info("namesrv.ready", addresses=self.addresses)

    async def _listen(
        self, namesrv: Namesrv, accounts: Accounts | None, starting: AsyncExitStack
    ) -> Server[Namesrv]:
        settings, label = self._settings.value, self._settings.label
        server = Server(
            HANDLERS,
            namesrv,
            server_settings(settings, label),
            before=() if accounts is None else (accounts.check,),
            log=self._log,
            clock_ms=self._clock.monotonic_ms,
            on_close=lambda peer: _disconnected(namesrv, peer),
            release_memory=release_free_memory,
        )
        starting.push_async_callback(server.close, DRAIN_MS)
        host, port = settings.bind_address, settings.listen_port
        with listening(host, port, setting=label("listenPort"), host_setting=label("bindAddress")):
            await server.listen(host, port)
        return server


async def _keep_files_current(namesrv: Namesrv, accounts: Accounts | None, worker: Worker) -> None:
    """Read changed key and account files every KEYS_POLL_MS; log files that cannot be used."""
    while True:
        await asyncio.sleep(KEYS_POLL_MS / 1000)
        try:
            if accounts is not None and await worker.submit(accounts.refresh):
                namesrv.log.info("accounts.reloaded")
        except SettingsError as error:
            namesrv.log.warning("accounts.unreadable", error=str(error))
        for fault in await worker.submit(namesrv.group_keys.refresh):
            namesrv.log.warning("group_key.unusable", error=fault)


def expire(namesrv: Namesrv) -> None:
    """Drop brokers that have been silent for too long, and close their connections.

    A call drops at most EXPIRED_AT_ONCE, and schedules the next call if there may be more.
    """
    gone = namesrv.routes.expire(
        now_ms=namesrv.clock.monotonic_ms(),
        silence_ms_max=namesrv.settings.value.broker_expire_ms,
        count_max=EXPIRED_AT_ONCE,
    )
    for live in gone:
        namesrv.log.warning("broker.expired", **live.broker._asdict())
        live.connection.close()
    if len(gone) == EXPIRED_AT_ONCE:
        asyncio.get_running_loop().call_soon(expire, namesrv)


def server_settings(settings: NamesrvSettings, label: Label = str) -> ServerSettings:
    return ServerSettings(
        connections_max=connections_within(settings.connection_count_max),
        unsent_total_bytes_max=settings.write_buffer_total_bytes,
        idle_timeout_ms=settings.server_channel_max_idle_time_seconds * 1000,
        tls=server_tls(settings, label),
    )


def _disconnected(namesrv: Namesrv, peer: PeerProtocol) -> None:
    gone = namesrv.routes.disconnected(
        peer,
        now_ms=namesrv.clock.monotonic_ms(),
        keep_ms=namesrv.settings.value.lost_master_keep_ms,
    )
    for address in gone:
        namesrv.log.warning("broker.disconnected", address=address)


def _show(admin: AdminHttp, namesrv: Namesrv, server: Server[Namesrv]) -> None:
    label = {"server": "namesrv"}
    admin.registry.add(StatsCollector(NAMESRV_FAMILIES, lambda: namesrv))
    admin.registry.add(StatsCollector(LIMIT_TABLE_FAMILIES, lambda: namesrv.limits, label))
    admin.registry.add(StatsCollector(TRANSPORT_FAMILIES, server.stats, label))
    admin.add_ready_check("namesrv", lambda: None if server.addresses else "does not listen")
    admin.add_settings("namesrv", lambda: namesrv.settings.as_table())  # noqa: PLW0108  # changes
