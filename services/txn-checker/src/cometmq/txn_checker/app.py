# SPDX-License-Identifier: Apache-2.0
"""The txn-checker as a whole: it finds the masters and follows each of them."""

import asyncio
import contextlib
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import msgspec

from cometmq.client.settings import ClientOptions
from cometmq.client.wakeup import Wakeup
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Response
from cometmq.remoting.errors import CometError, RequestTimeout, SettingsError
from cometmq.remoting.log import Log
from cometmq.remoting.signature import SessionCredentials
from cometmq.remoting.transport.settings import TlsSettings
from cometmq.remoting.transport.tasks import TaskSet, describe
from cometmq.runtime.admin_http import AdminHttp
from cometmq.runtime.clock import Clock
from cometmq.runtime.metrics import StatsCollector
from cometmq.runtime.places import prepare_folder
from cometmq.runtime.saves import Saver
from cometmq.runtime.settings import Loaded
from cometmq.runtime.settings.faults import Faults
from cometmq.runtime.tasks import every
from cometmq.runtime.tls_keys import Label, client_tls
from cometmq.runtime.worker import Worker
from cometmq.store.disk import OsDisk
from cometmq.store.layout import is_topic
from cometmq.txn_checker.broker_link import BrokerLink
from cometmq.txn_checker.follower import Follower
from cometmq.txn_checker.ledger import Ledger
from cometmq.txn_checker.masters import Masters
from cometmq.txn_checker.metrics import FAMILIES
from cometmq.txn_checker.settings import TxnCheckerSettings

LOCK_FILE: Final = "lock"
FAULTS_SHOWN: Final = 3
BROKERS_MAX: Final = 1_000
"""Maximum number of followed brokers: any process may register, and each broker costs files and
tasks.
"""
LOOKUP_SOON_MS: Final = 1_000
"""Interval between lookups of the masters while a broker is not being followed."""
LOOKUP_PAUSE_MS: Final = 200
"""Shortest pause between two lookups, however many brokers fail."""


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
        self._admin: Masters
        self._addresses: dict[str, str] = {}
        self._followers: dict[str, Follower] = {}
        self._unfollowed: set[str] = set()
        self._masters: set[str] = set()  # names in the last answer of a name server
        self._masterless: set[str] = set()  # brokers with only slaves in that answer
        self._lookup_due = Wakeup()
        self._asked = asyncio.Event()
        self._fault: str | None = "no name server has been asked yet"
        self._started = AsyncExitStack()

    @property
    def followers(self) -> list[Follower]:
        return list(self._followers.values())

    def check(self) -> None:
        """Raise an error if name servers are missing or the folder is in use; create nothing."""
        faults = Faults()
        if not self._settings.namesrv_addr:
            faults.add(
                "namesrvAddr must be set: the txn-checker finds brokers through name servers"
            )
        faults.attempt(lambda: _options(self._settings, self._loaded.label))
        faults.raise_all()
        self._disk.check_unlocked(str(self._root / LOCK_FILE))

    async def start(self) -> None:
        """Lock the folder and start looking for brokers."""
        self.check()
        async with AsyncExitStack() as stack:
            setting = self._loaded.label("storePathRootDir")
            await self._worker.submit(lambda: prepare_folder(self._root, setting=setting))
            lock = self._disk.lock(str(self._root / LOCK_FILE))
            stack.callback(lock.release)
            stack.callback(self._worker.close)
            self._admin = Masters(
                options=_options(self._settings, self._loaded.label), log=self._log
            )
            await stack.enter_async_context(self._admin)
            stack.push_async_callback(self._close_followers)
            stack.push_async_callback(self._background.close)
            self._background.spawn(
                every(
                    self._settings.poll_name_server_interval,
                    self._find_brokers,
                    name="txn-checker-brokers",
                    log=self._log,
                    first_ms=0,
                    sleep=self._wait_for_lookup,
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
                await self._asked.wait()
                for follower in self.followers:
                    await follower.tried.wait()

    def fault(self) -> str | None:
        """Return why a broker's transactions are not being checked; None if all are checked."""
        if self._fault is not None:
            return self._fault
        if not self._masters and not self._masterless:
            return f"{self._settings.namesrv_addr}: no broker is registered there"
        faults = [
            f"{name}: no master of it is registered"
            for name in sorted(self._masterless & self._followers.keys())
        ]
        faults += [
            f"{name} ({self._addresses[name]}): {self._followers[name].fault}"
            for name in sorted(self._masters & self._followers.keys())
            if self._followers[name].fault is not None
        ]
        if len(faults) > FAULTS_SHOWN:
            faults[FAULTS_SHOWN:] = [f"and {len(faults) - FAULTS_SHOWN} more brokers"]
        if not self._saver.is_healthy:
            faults.append("a state table cannot be synced to the disk")
        return "; ".join(faults) or None

    async def _close_followers(self) -> None:
        for follower in self._followers.values():
            await follower.close()

    async def _wait_for_lookup(self, interval_s: float) -> None:
        """Wait until the next lookup is due, which is soon if any broker is not being followed."""
        await asyncio.sleep(min(interval_s, LOOKUP_PAUSE_MS / 1_000))
        interval_ms = round(interval_s * 1_000)
        if self.fault() is not None:
            interval_ms = min(interval_ms, LOOKUP_SOON_MS)
        await self._lookup_due.wait(interval_ms)

    async def _find_brokers(self) -> None:
        """Follow every master registered with the name servers, at its current address."""
        try:
            masters = await self._admin.masters()
        except CometError as error:
            fault = f"{self._settings.namesrv_addr}: {error}"
            if fault != self._fault:  # lookups are a second apart: log each fault once
                self._log.warning("brokers.unknown", error=describe(error))
            self._fault = fault
            self._asked.set()
            return
        self._fault = None
        known, self._masters = self._masters, set(masters)
        self._masterless = self._admin.take_masterless()
        for name, follower in self._followers.items():
            follower.is_registered = name in masters
        for name, master in masters.items():
            if name in self._followers:
                self._take_route(name, master.address, is_back=name not in known)
            elif is_topic(name) and name != LOCK_FILE and len(self._followers) < BROKERS_MAX:
                self._addresses[name] = master.address
                self._follow(name)
            elif name not in self._unfollowed and len(self._unfollowed) < BROKERS_MAX:
                self._unfollowed.add(name)
                self._log.warning("broker.refused", broker=name, brokers=len(self._followers))
        self._asked.set()

    def _take_route(self, name: str, address: str, *, is_back: bool) -> None:
        """Use this address for the broker; if it has moved or returned, connect to it at once."""
        follower = self._followers[name]
        is_moved = address != self._addresses[name]
        self._addresses[name] = address
        if is_moved or (is_back and not follower.stats.is_following):
            follower.route_changed()

    def _follow(self, name: str) -> None:
        folder = str(self._root / name)
        follower = self._followers[name] = Follower(
            name,
            BrokerLink(_Invoker(self, name), self._settings),
            self._settings,
            open_ledger=lambda: self._worker.submit(lambda: Ledger(self._disk, folder)),
            saver=self._saver,
            clock=self._clock,
            log=self._log,
        )
        follower.lost = self._lookup_due.set
        self._background.spawn(follower.run(), name=f"txn-checker-{name}", is_endless=True)

    async def invoke(
        self, name: str, code: RequestCode, header: msgspec.Struct | None,
        *, ok: tuple[ResponseCode, ...], timeout_ms: int | None,
    ) -> Response:  # fmt: skip
        address = self._addresses[name]
        broker = self._admin.broker(address, name=name)
        try:
            return await broker.invoke(code, header, ok=ok, timeout_ms=timeout_ms)
        except RequestTimeout as error:
            # A lost host never closes its connections, and its name may now resolve to a different
            # address.
            self._admin.drop(address, describe(error))
            raise

    def _show(self, http: AdminHttp) -> None:
        http.registry.add(StatsCollector(FAMILIES, lambda: self.followers))
        http.add_ready_check("txn-checker", self.fault)
        http.add_settings("txn-checker", self._loaded.as_table)


class _Invoker:
    def __init__(self, app: TxnCheckerApp, name: str) -> None:
        self._app = app
        self._name = name

    async def __call__(
        self,
        code: RequestCode,
        header: msgspec.Struct | None = None,
        *,
        ok: tuple[ResponseCode, ...] = (ResponseCode.SUCCESS,),
        timeout_ms: int | None = None,
    ) -> Response:
        return await self._app.invoke(self._name, code, header, ok=ok, timeout_ms=timeout_ms)


def _options(settings: TxnCheckerSettings, label: Label) -> ClientOptions:
    credentials = None
    if bool(settings.access_key) != bool(settings.secret_key):
        raise SettingsError("accessKey and secretKey belong together: set both or neither")
    if settings.access_key:
        credentials = SessionCredentials(settings.access_key, settings.secret_key)
    tls = client_tls(settings, label)
    return ClientOptions(
        namesrv=settings.namesrv_addr,
        api_timeout_ms=settings.request_timeout,
        credentials=credentials,
        tls=tls if tls.enable else TlsSettings(),  # a tls.properties may have keys for others
    )
