# SPDX-License-Identifier: Apache-2.0
"""The collector: takes a snapshot at each interval until it is stopped."""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from cometmq.client.clock import wall_ms
from cometmq.remoting.errors import CometError
from cometmq.runtime.admin_http import AdminHttp
from cometmq.runtime.metrics import Family, StatsCollector, counter, gauge
from cometmq.spark.collect.settings import CollectSettings
from cometmq.spark.collect.snapshot import MINUTE_MS, Snapshot, snapshot_id_of, take
from cometmq.spark.collect.writer import is_taken, write
from cometmq.spark.log import WORKER_LOG

REPORT_METRICS: Final = "cometmq_lag.prom"
"""The file to which a report writes its metrics."""


class CollectorStats:
    """What a collector has done since its start."""

    def __init__(self) -> None:
        self.snapshot_count = 0
        self.failed_count = 0
        self.newest_s = 0
        """When the newest snapshot was taken, in seconds since 1970; 0 before the first."""
        self.fault: str | None = None
        """Why the last attempt failed; None if it succeeded."""


COLLECTOR_FAMILIES: Final[tuple[Family[CollectorStats], ...]] = (
    counter(
        "cometmq_lag_snapshots_total", "Snapshots that the collector wrote.",
        lambda s: s.snapshot_count,
    ),
    counter(
        "cometmq_lag_snapshots_failed_total",
        "Snapshots that failed: no broker answered, or the history could not be written.",
        lambda s: s.failed_count,
    ),
    gauge(
        "cometmq_lag_snapshot_timestamp_seconds",
        "When the collector took its newest snapshot; 0 before the first.",
        lambda s: s.newest_s,
    ),
)  # fmt: skip


@asynccontextmanager
async def exposed(
    stats: CollectorStats, port: int, settings: str, reports: Path | None
) -> AsyncIterator[None]:
    """Serve the collector's metrics, and those of the newest report in the folder `reports`, which
    need not exist yet.

    Raise SettingsError if the port is in use.
    """
    http = AdminHttp(log=WORKER_LOG)
    http.registry.add(StatsCollector(COLLECTOR_FAMILIES, lambda: stats))
    http.add_ready_check("snapshot", lambda: stats.fault)
    http.add_settings("collector", lambda: settings)
    if reports is not None:
        http.add_metrics_file(reports / REPORT_METRICS)
    await http.start(port, setting="--http-port")
    try:
        yield
    finally:
        await http.stop()


Say = Callable[[str], None]

INTERVAL_MIN_S: Final = MINUTE_MS // 1000
"""Snapshots are identified by their minute, so there cannot be more than one per minute."""


async def collect_once(root: Path, settings: CollectSettings, say: Say) -> Snapshot | None:
    """Take and write this minute's snapshot; return None if another collector has written it."""
    number = snapshot_id_of(wall_ms())
    if is_taken(root, number):
        say(f"snapshot {number} already exists")
        return None
    snapshot = await take(settings, number)
    counts = await asyncio.to_thread(write, root, snapshot)
    for name, reason in snapshot.failures.items():
        say(f"{name} is skipped: {reason}")
    rows = ", ".join(f"{count} {name}" for name, count in counts.items())
    say(f"snapshot {number}: {rows or 'already written by another collector'}")
    return snapshot


async def collect_forever(
    root: Path,
    settings: CollectSettings,
    interval_s: int,
    say: Say,
    stop: asyncio.Event,
    stats: CollectorStats,
) -> None:
    """Take a snapshot at each multiple of the interval; failures are reported and skipped."""
    while not stop.is_set():
        try:
            if (snapshot := await collect_once(root, settings, say)) is not None:
                stats.snapshot_count += 1
                stats.newest_s = snapshot.snapshot_id * MINUTE_MS // 1000
            stats.fault = None
        except (CometError, OSError) as error:
            say(f"snapshot failed: {error}")
            stats.failed_count += 1
            stats.fault = str(error)
        now_ms, step_ms = wall_ms(), interval_s * 1000
        try:
            async with asyncio.timeout((step_ms - now_ms % step_ms) / 1000):
                await stop.wait()
        except TimeoutError:
            continue


async def collect_until_signal(
    root: Path, settings: CollectSettings, interval_s: int, say: Say, stats: CollectorStats
) -> None:
    """Collect until SIGTERM or SIGINT; a snapshot in progress is completed first."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await collect_forever(root, settings, interval_s, say, stop, stats)
