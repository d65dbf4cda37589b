# SPDX-License-Identifier: Apache-2.0
"""The collector's HTTP port: its own metrics, those of the newest report, and health checks."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from cometmq.runtime.admin_http import AdminHttp
from cometmq.runtime.metrics import Family, StatsCollector, counter, gauge
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
