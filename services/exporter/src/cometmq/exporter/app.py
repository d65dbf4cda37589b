# SPDX-License-Identifier: Apache-2.0
"""The exporter as a program: runs rounds at an interval, and shows their figures."""

from contextlib import AsyncExitStack
from typing import Final

from cometmq.client.admin import AdminClient
from cometmq.client.settings import ClientOptions
from cometmq.exporter.metrics import CLIENT_FAMILIES, OWN_FAMILIES
from cometmq.exporter.rounds import ExporterStats, Figures, Rounds
from cometmq.exporter.settings import ExporterSettings
from cometmq.remoting.log import Log
from cometmq.remoting.signature import credentials_of
from cometmq.remoting.transport.tasks import TaskSet
from cometmq.runtime.admin_http import AdminHttp
from cometmq.runtime.clock import Clock
from cometmq.runtime.metrics import StatsCollector
from cometmq.runtime.settings import Loaded
from cometmq.runtime.settings.faults import Faults
from cometmq.runtime.tasks import every
from cometmq.runtime.tls_keys import Label, client_tls_if_on

FAULTS_SHOWN: Final = 3


class ExporterApp:
    def __init__(
        self,
        settings: Loaded[ExporterSettings],
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
        self._started = AsyncExitStack()
        self.rounds: Rounds

    @property
    def stats(self) -> ExporterStats:
        return self.rounds.stats

    def check(self) -> None:
        """Raise SettingsError if name servers are missing or settings contradict each other."""
        faults = Faults()
        if not self._settings.namesrv_addr:
            faults.add(
                "namesrvAddr must be set (-n HOST:PORT): the exporter finds brokers through name"
                " servers"
            )
        faults.attempt(self.check_settings)
        faults.raise_all()

    def check_settings(self) -> None:
        """Raise SettingsError if the settings, or files that they name, are unusable."""
        _options(self._settings, self._loaded.label)

    async def start(self) -> None:
        """Start the rounds; name servers and brokers need not be reachable yet."""
        self.check()
        settings = self._settings
        async with AsyncExitStack() as stack:
            client = AdminClient(options=_options(settings, self._loaded.label), log=self._log)
            await stack.enter_async_context(client)
            self.rounds = Rounds(client, settings, clock=self._clock, log=self._log)
            background = TaskSet(self._log)
            stack.push_async_callback(background.close)
            background.spawn(
                every(
                    settings.collect_interval,
                    self.rounds.round,
                    name="exporter-rounds",
                    log=self._log,
                    first_ms=0,
                ),
                name="exporter-rounds",
                is_endless=True,
            )
            self._show()
            self._started = stack.pop_all()
        self._log.info("exporter.ready", namesrv=settings.namesrv_addr)

    async def stop(self) -> None:
        """Stop; a round in progress is cancelled."""
        await self._started.aclose()
        self._log.info("exporter.stopped")

    def fault(self) -> str | None:
        """Return why figures are missing; None if all brokers answered in the last round."""
        if self.rounds.fault is not None:
            return self.rounds.fault
        brokers = self.stats.figures.brokers
        if not brokers:
            return f"{self._settings.namesrv_addr}: no broker is registered there"
        faults = [f"{name} ({why})" for name, why in brokers.items() if why]
        if len(faults) > FAULTS_SHOWN:
            faults[FAULTS_SHOWN:] = [f"and {len(faults) - FAULTS_SHOWN} more brokers"]
        return "; ".join(faults) or None

    def _figures(self) -> Figures:
        return self.stats.figures

    def _show(self) -> None:
        if self._http is None:
            return
        self._http.registry.add(StatsCollector(CLIENT_FAMILIES, self._figures))
        self._http.registry.add(StatsCollector(OWN_FAMILIES, lambda: self.stats))
        self._http.add_ready_check("exporter", self.fault)
        self._http.add_settings("exporter", self._loaded.as_table)


def _options(settings: ExporterSettings, label: Label) -> ClientOptions:
    return ClientOptions(
        namesrv=settings.namesrv_addr,
        api_timeout_ms=settings.request_timeout,
        credentials=credentials_of(settings.access_key, settings.secret_key),
        tls=client_tls_if_on(settings, label),
    )
