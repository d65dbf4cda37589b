# SPDX-License-Identifier: Apache-2.0
"""Starts and stops a txn-checker, and registers its metrics, health check and settings pages."""

import asyncio
import contextlib
from contextlib import AsyncExitStack
from pathlib import Path

from cometmq.client.settings import ClientOptions
from cometmq.remoting.log import Log
from cometmq.remoting.signature import credentials_of
from cometmq.remoting.transport.tasks import TaskSet
from cometmq.runtime.admin_http import AdminHttp
from cometmq.runtime.clock import Clock
from cometmq.runtime.metrics import StatsCollector
from cometmq.runtime.places import prepare_folder
from cometmq.runtime.saves import Saver
from cometmq.runtime.settings import Loaded
from cometmq.runtime.settings.faults import Faults
from cometmq.runtime.tasks import every
from cometmq.runtime.tls_keys import Label, client_tls_if_on
from cometmq.runtime.worker import Worker
from cometmq.store.os_disk import OsDisk
from cometmq.txn_checker.brokers import LOCK_FILE, Brokers
from cometmq.txn_checker.ledger import Ledger
from cometmq.txn_checker.masters import Masters
from cometmq.txn_checker.metrics import FAMILIES
from cometmq.txn_checker.settings import TxnCheckerSettings


class TxnCheckerApp:
    def __init__(
        self,
        settings: Loaded[TxnCheckerSettings],
        *,
        log: Log,
        clock: Clock,
        admin: AdminHttp | None = None,
    ) -> None:
        self._loaded = settings
        self._settings = settings.value
        self._log = log
        self._clock = clock
        self._http = admin
        self._disk = OsDisk()
        self._root = Path(self._settings.store_path_root_dir).expanduser()
        self._worker = Worker("txn-checker-files")
        self._saver = Saver(self._worker, log=log)
        self._background = TaskSet(log)
        self.brokers: Brokers
        """Set by `start`."""
        self._started = AsyncExitStack()

    def check(self) -> None:
        """Raise an error if name servers are missing or the folder is in use; create nothing."""
        faults = Faults()
        if not self._settings.namesrv_addr:
            faults.add(
                "namesrvAddr must be set (-n HOST:PORT): the txn-checker finds brokers through name"
                " servers"
            )
        faults.attempt(self.check_settings)
        faults.raise_all()
        self._disk.check_unlocked(str(self._root / LOCK_FILE))

    def check_settings(self) -> None:
        """Raise SettingsError if the settings, or files that they name, are unusable."""
        _options(self._settings, self._loaded.label)

    async def start(self) -> None:
        """Lock the folder and start looking for brokers."""
        self.check()
        async with AsyncExitStack() as stack:
            setting = self._loaded.label("storePathRootDir")
            await self._worker.submit(lambda: prepare_folder(self._root, setting=setting))
            lock = self._disk.lock(str(self._root / LOCK_FILE))
            stack.callback(lock.release)
            stack.callback(self._worker.close)
            options = _options(self._settings, self._loaded.label)
            masters = await stack.enter_async_context(Masters(options=options, log=self._log))
            self.brokers = Brokers(
                masters,
                self._settings,
                open_ledger=self._open_ledger,
                tasks=self._background,
                saver=self._saver,
                clock=self._clock,
                log=self._log,
            )
            stack.push_async_callback(self.brokers.close)
            stack.push_async_callback(self._background.close)
            self._background.spawn(
                every(
                    self._settings.poll_name_server_interval,
                    self.brokers.look_up,
                    name="txn-checker-brokers",
                    log=self._log,
                    first_ms=0,
                    sleep=self.brokers.until_lookup,
                ),
                name="txn-checker-brokers",
                is_endless=True,
            )
            if self._http is not None:
                self._show(self._http)
            self._started = stack.pop_all()
        self._log.info("txn_checker.ready", folder=str(self._root))

    async def stop(self) -> None:
        """Stop checking and commit the progress to the brokers."""
        await self._started.aclose()
        self._log.info("txn_checker.stopped")

    async def wait_for_first_round(self, timeout_ms: int) -> None:
        """Wait until every broker found at startup has been tried, or `timeout_ms` has passed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_ms / 1_000):
                await self.brokers.tried()

    async def _open_ledger(self, broker: str) -> Ledger:
        folder = str(self._root / broker)
        return await self._worker.submit(lambda: Ledger(self._disk, folder))

    def _show(self, http: AdminHttp) -> None:
        http.registry.add(StatsCollector(FAMILIES, lambda: list(self.brokers.followers.values())))
        http.add_ready_check("txn-checker", self.brokers.fault)
        http.add_settings("txn-checker", self._loaded.as_table)


def _options(settings: TxnCheckerSettings, label: Label) -> ClientOptions:
    return ClientOptions(
        namesrv=settings.namesrv_addr,
        api_timeout_ms=settings.request_timeout,
        credentials=credentials_of(settings.access_key, settings.secret_key),
        tls=client_tls_if_on(settings, label),
    )
