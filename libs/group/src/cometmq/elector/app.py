# SPDX-License-Identifier: Apache-2.0
"""Runs an elector's rounds at an interval, and at once after the record or a member's state
changes.
"""

import asyncio
import contextlib
import uuid
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Final

from cometmq.control.client import MemberClient
from cometmq.control.controlled import Report, Target, elector_mark, lasting
from cometmq.elector.asked_member import ASK_INTERVALS, PUSH_LATE_MS, AskedMember, Link
from cometmq.elector.elector import ACCEPT_WITH, Elector
from cometmq.elector.metrics import FAMILIES
from cometmq.elector.plan import plan_of, record_of, timing_of
from cometmq.elector.settings import ElectorSettings
from cometmq.ha.port import RecordPort, RecordUnreachable
from cometmq.ha.proof import KeyFile, Keys
from cometmq.ha.record import RecordDamaged
from cometmq.remoting.errors import CometError, SettingsError
from cometmq.remoting.log import Log
from cometmq.remoting.transport.settings import TlsSettings
from cometmq.remoting.transport.tasks import TaskSet
from cometmq.runtime.admin_http import AdminHttp
from cometmq.runtime.clock import Clock, boottime_ms
from cometmq.runtime.metrics import StatsCollector
from cometmq.runtime.places import prepare_folder
from cometmq.runtime.settings import Loaded
from cometmq.runtime.settings.faults import Faults
from cometmq.runtime.tls_keys import client_tls
from cometmq.runtime.worker import Worker

PAUSE_MS: Final = 20
"""Minimum pause between rounds, however many changes arrive."""
WATCH_RETRY_MS: Final = 250
STUCK_INTERVALS: Final = 20
"""The elector is not ready after this many intervals without a completed round."""

KEYS_POLL_MS: Final = 1_000


def push_interval_ms(settings: ElectorSettings) -> int:
    """Return the interval at which members push their status.

    A late push causes a request; with its timeout, silence is noticed within `heardWithinMills`.
    """
    left_ms = settings.heard_within_mills - settings.status_timeout_mills - PUSH_LATE_MS
    return max(settings.poll_interval_mills, left_ms)


TlsOf = Callable[[int], tuple[TlsSettings | None, str]]
KeysOf = Callable[[int], Keys]


class ElectorApp:
    def __init__(  # noqa: PLR0913  # the collaborators, each by name
        self,
        settings: Loaded[ElectorSettings],
        *,
        log: Log,
        clock: Clock,
        admin: AdminHttp | None = None,
        record: RecordPort | None = None,
        accept_with: str = ACCEPT_WITH,
        tls_of: TlsOf | None = None,
        keys_of: KeysOf | None = None,
        master_opened: Callable[[], None] = lambda: None,
    ) -> None:
        """The operator passes `record`, the TLS settings and the name in the certificate by
        ordinal, the keys by ordinal, and the command with which a person accepts a loss.
        `master_opened` is called when a master opens.
        """
        self._key_file: KeyFile | None = None
        self._keys_of = keys_of or self._keys_in_file
        self._tls_of = tls_of or self._tls_in_settings
        self._loaded = settings
        self._record = record
        self._accept_with = accept_with
        self._master_opened = master_opened
        self._settings = settings.value
        self._log = log
        self._clock = clock
        self._http = admin
        self._started = AsyncExitStack()
        self._round_ended_ms = clock.monotonic_ms()
        self.elector: Elector

    def check(self) -> None:
        self.check_settings()

    def check_settings(self) -> None:
        """Raise SettingsError if the settings, or files that they name, are unusable."""
        faults = Faults()
        faults.attempt(lambda: plan_of(self._settings))
        if self._settings.group_key_file:
            faults.attempt(self._open_key_file)
        if self._record is None:
            faults.attempt(lambda: record_of(self._settings, self._loaded.label))
        faults.raise_all()

    async def start(self) -> None:
        """Start the rounds; the record and the members need not be reachable yet."""
        settings = self._settings
        plan = plan_of(settings)
        record = self._record or record_of(settings, self._loaded.label)
        if settings.group_record.startswith("file:"):
            folder = Path(settings.group_record.removeprefix("file:")).parent
            prepare_folder(folder, setting=self._loaded.label("groupRecord"))
        async with AsyncExitStack() as stack:
            stack.push_async_callback(record.close)
            worker = Worker("elector-files")
            stack.callback(worker.close)
            if settings.group_key_file:
                self._key_file = await worker.submit(self._open_key_file)
            asked_ms = ASK_INTERVALS * settings.poll_interval_mills
            mark = elector_mark(uuid.uuid4().hex, asked_ms)
            links: dict[int, Link] = {}
            for ordinal, address in plan.addresses.items():
                tls, name = self._tls_of(ordinal)
                target = Target(plan.group.name, ordinal)
                client = MemberClient(
                    address, target, tls=tls, tls_name=name,
                    keys=partial(self._keys_of, ordinal), elector=mark,
                )  # fmt: skip
                stack.push_async_callback(client.close)
                links[ordinal] = client
            self.elector = Elector(
                plan,
                record,
                links,
                timing=timing_of(settings),
                interval_ms=settings.poll_interval_mills,
                push_ms=push_interval_ms(settings),
                status_timeout_ms=settings.status_timeout_mills,
                boottime_ms=boottime_ms,
                new_uid=lambda: uuid.uuid4().hex,
                log=self._log,
                accept_with=self._accept_with,
                master_opened=self._master_opened,
            )
            stack.push_async_callback(self.elector.close)
            background = TaskSet(self._log)
            stack.push_async_callback(background.close)
            background.keep(self._run, name="elector-rounds")
            background.keep(lambda: self._watch_record(record), name="elector-record")
            for member in self.elector.members.by_ordinal.values():
                background.keep(
                    lambda member=member: self._watch_member(member),  # type: ignore[misc]
                    name=f"elector-member-{member.ordinal}",
                )
            if self._key_file is not None:
                background.keep(lambda: self._keep_keys_current(worker), name="elector-keys")
            self._show()
            self._started = stack.pop_all()
        self._log.info("elector.ready", group=plan.group.name, members=dict(plan.addresses))

    async def stop(self) -> None:
        """Stop; a round in progress is cancelled, which is safe at any point."""
        await self._started.aclose()
        self._log.info("elector.stopped")

    def fault(self) -> str | None:
        """Return why this elector cannot elect a master; None if it can."""
        interval_ms = self._settings.poll_interval_mills
        silent_ms = self._clock.monotonic_ms() - self._round_ended_ms
        if silent_ms > STUCK_INTERVALS * interval_ms + 10_000:
            return f"no round has ended for {silent_ms} ms: see its log"
        return self.elector.fault or None

    def _open_key_file(self) -> KeyFile:
        path = Path(self._settings.group_key_file)
        return KeyFile(path, self._loaded.label("groupKeyFile"))

    def _keys_in_file(self, _ordinal: int) -> Keys:
        return () if self._key_file is None else self._key_file.keys

    async def _keep_keys_current(self, worker: Worker) -> None:
        """Read the key file every KEYS_POLL_MS, and use its keys if it has changed."""
        assert self._key_file is not None
        while True:
            await asyncio.sleep(KEYS_POLL_MS / 1000)
            try:
                if await worker.submit(self._key_file.refresh):
                    self._log.info("group_key.reloaded", path=self._settings.group_key_file)
            except SettingsError as error:
                self._log.warning("group_key.unusable", error=str(error))

    def _tls_in_settings(self, _ordinal: int) -> tuple[TlsSettings | None, str]:
        settings = self._settings
        return client_tls(settings, self._loaded.label), settings.control_tls_name

    async def _run(self) -> None:
        elector = self.elector
        while True:
            started_ms = boottime_ms()
            elector.wake.clear()
            await elector.round()
            self._round_ended_ms = self._clock.monotonic_ms()
            await asyncio.sleep(PAUSE_MS / 1000)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(elector.pause_ms(started_ms) / 1000):
                    await elector.wake.wait()

    async def _watch_record(self, record: RecordPort) -> None:
        while True:
            with contextlib.suppress(RecordUnreachable, RecordDamaged):  # the round reports it
                async for _ in record.watch():
                    self.elector.wake.set()
            await asyncio.sleep(WATCH_RETRY_MS / 1000)

    async def _watch_member(self, member: AskedMember) -> None:
        """Note the pushed statuses; start a round when the state changes or the stream breaks."""
        settings, push_ms = self._settings, push_interval_ms(self._settings)
        while True:
            last: Report | None = None
            try:
                reports = member.link.watch(
                    interval_ms=push_ms,
                    silence_ms=push_ms + settings.heard_within_mills,
                )
                async for report in reports:
                    member.note_pushed(report, boottime_ms())
                    state = lasting(report)
                    if state != last:
                        last = state
                        self.elector.wake.set()
            except CometError:  # the round reports it
                if last is not None:
                    self.elector.wake.set()
            finally:
                member.note_pushed(None, boottime_ms())
            await asyncio.sleep(WATCH_RETRY_MS / 1000)

    def _show(self) -> None:
        if self._http is None:
            return
        self._http.registry.add(StatsCollector(FAMILIES, lambda: [((), self.elector.stats)]))
        self._http.add_ready_check("elector", self.fault)
        self._http.add_settings("elector", self._loaded.as_table)
