# SPDX-License-Identifier: Apache-2.0
"""The state that the name server's handlers may use."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from cometmq.namesrv.group_keys import GroupKeys
from cometmq.namesrv.kv_config import KvConfig
from cometmq.namesrv.limits import (
    ALL_FILTER_SERVERS,
    BROKERS,
    KV_BYTES,
    KV_ENTRIES,
    LIMITS,
    REGISTRATION_BYTES,
    ROUTE_ENTRIES,
)
from cometmq.namesrv.route_table import RouteTable
from cometmq.namesrv.settings import NamesrvSettings
from cometmq.remoting.errors import ServerError
from cometmq.remoting.log import NO_LOG, Log
from cometmq.remoting.transport.tasks import TaskSet
from cometmq.runtime.clock import Clock
from cometmq.runtime.incremental import IncrementalRunner
from cometmq.runtime.limits import Limits
from cometmq.runtime.settings import Loaded

WARN_PERIOD_MS: Final = 1_000

SaveFile = Callable[[Path, Callable[[], bytes]], Awaitable[None]]
"""Replaces a file; calls the encoder later, when earlier saves have ended. Raises OSError."""


class Namesrv:
    """A name server's routes, key-value configuration and settings."""

    def __init__(
        self,
        settings: Loaded[NamesrvSettings],
        kv_config: KvConfig,
        *,
        clock: Clock,
        save_file: SaveFile,
        log: Log = NO_LOG,
        group_keys: GroupKeys | None = None,
    ) -> None:
        self.settings = settings
        self.kv_config = kv_config
        self.routes = RouteTable(settings.value.unproven_epoch_ms)
        self.group_keys = group_keys or GroupKeys()
        self.clock = clock
        self.log = log
        self._save_file = save_file
        self.incremental = IncrementalRunner()  # for large registrations and answers
        self.reading_bytes = 0  # the size of the large registrations that are being read
        self._warned_ms: dict[str, int] = {}
        self.limits = Limits(
            LIMITS, lambda: self.settings.value, clock_ms=clock.monotonic_ms, log=log
        )
        self.limits.used |= {
            BROKERS.name: lambda: len(self.routes.live_brokers()),
            ROUTE_ENTRIES.name: lambda: self.routes.topics.entry_count,
            ALL_FILTER_SERVERS.name: lambda: self.routes.filter_server_count,
            REGISTRATION_BYTES.name: lambda: self.reading_bytes,
            KV_ENTRIES.name: lambda: self.kv_config.count,
            KV_BYTES.name: lambda: self.kv_config.size,
        }

    def sweep_in(self, tasks: TaskSet) -> None:
        """Sweep removed groups out of large tables in the background, as a task of `tasks`."""

        def sweep() -> None:
            work = self.incremental.run(self.routes.topics.sweeping())
            tasks.spawn(work, name="namesrv-sweep")

        self.routes.topics.removed = sweep

    def may_warn(self, event: str) -> bool:
        """Return True at most once per event and WARN_PERIOD_MS: any client can cause these
        events.
        """
        now_ms = self.clock.monotonic_ms()
        is_due = now_ms - self._warned_ms.get(event, now_ms - WARN_PERIOD_MS) >= WARN_PERIOD_MS
        if is_due:
            self._warned_ms[event] = now_ms
        return is_due

    async def save_kv_config(self) -> None:
        """Write the KV table to its file; raise SYSTEM_ERROR if this fails."""
        await self._save(self.settings.value.kv_config_path, self.kv_config.encode)

    async def save_settings(self) -> None:
        """Write the settings to their file; raise SYSTEM_ERROR if this fails."""
        path = self.settings.value.config_store_path
        await self._save(path, lambda: self.settings.as_saved_properties().encode())

    async def _save(self, path: str, encode: Callable[[], bytes]) -> None:
        try:
            await self._save_file(Path(path), encode)
        except OSError as error:
            raise ServerError(f"cannot write {path}: {error.strerror}") from error
