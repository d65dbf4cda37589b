# SPDX-License-Identifier: Apache-2.0
"""Exports a report as Prometheus metrics, to a file for the node exporter or to a gateway.

Every group has series, but a queue has series only while its group is unhealthy: ten thousand
groups with eight queues each would overload Prometheus.
"""

import http.client
import urllib.error
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import delete_from_gateway, generate_latest, push_to_gateway
from prometheus_client.registry import Collector, CollectorRegistry

from cometmq.insight.judge import BAD
from cometmq.remoting.errors import CometError
from cometmq.spark.lag.columns import STATUSES, Report, Row

PUSH_TIMEOUT_S: Final = 10.0


class PushFailed(CometError):
    """The gateway rejected the metrics or did not answer."""


class Family(NamedTuple):
    """A metric of groups or queues, and the columns that it shows: one of a report's rows as value,
    others as labels.
    """

    name: str
    kind: str
    meaning: str
    column: str
    labels: tuple[str, ...]
    columns: tuple[str, ...]


_GROUP: Final = (("cluster", "group"), ("cluster", "group"))
_QUEUE: Final = (
    ("cluster", "group", "broker", "topic", "queue"),
    ("cluster", "group", "broker_name", "topic", "queue_id"),
)
GROUP_FAMILIES: Final = (
    Family("cometmq_lag_messages", "gauge", "Unread messages.", "lag_sum", *_GROUP),
    Family(
        "cometmq_lag_age_seconds", "gauge", "Age of the oldest unread message.", "lag_time_s",
        *_GROUP,
    ),
    Family(
        "cometmq_time_to_loss_seconds", "gauge",
        "Time until unread messages are deleted; absent if no loss is expected.",
        "time_to_loss_s", *_GROUP,
    ),
    Family(
        "cometmq_lost_messages_total", "counter", "Messages deleted unread.", "lost_sum", *_GROUP
    ),
)  # fmt: skip
STATUS: Final = Family(
    "cometmq_group_status", "gauge", "1 for the current status of the group, 0 for the others.",
    "status", ("cluster", "group", "status"), (),
)  # fmt: skip
QUEUE_FAMILIES: Final = (
    Family(
        "cometmq_lag_queue_messages", "gauge",
        "Unread messages of a queue; only for unhealthy groups.", "lag", *_QUEUE,
    ),
    Family(
        "cometmq_lag_queue_age_seconds", "gauge",
        "Age of the oldest unread message of a queue; only for unhealthy groups.", "lag_time_s",
        *_QUEUE,
    ),
)  # fmt: skip
COVERAGE: Final = Family(
    "cometmq_lag_report_coverage_ratio", "gauge", "Queues with data divided by expected queues.",
    "coverage", (), (),
)  # fmt: skip
TIMESTAMP: Final = Family(
    "cometmq_lag_report_timestamp_seconds", "gauge",
    "When the newest snapshot of the report was taken.", "snapshot_ts", (), (),
)  # fmt: skip
CATALOGUE: Final = (*GROUP_FAMILIES, STATUS, *QUEUE_FAMILIES, COVERAGE, TIMESTAMP)


class _Metrics(Collector):
    """The metrics of one cluster of a report, or of all."""

    def __init__(self, report: Report, cluster: str | None) -> None:
        self._report = report
        self._cluster = cluster

    def collect(self) -> Iterator[Metric]:
        groups = self._rows("group")
        bad = {(row["cluster"], row["group"]) for row in groups if row["severity"] in BAD}
        queues = [row for row in self._rows("queue") if (row["cluster"], row["group"]) in bad]
        for family in GROUP_FAMILIES:
            yield _filled(family, groups)
        for family in QUEUE_FAMILIES:
            yield _filled(family, queues)
        status = GaugeMetricFamily(STATUS.name, STATUS.meaning, labels=STATUS.labels)
        for row in groups:
            # Most groups are healthy: ten zeros for each of them would make up most of the file.
            for name in ["OK"] if row["status"] == "OK" else STATUSES:
                labels = (row["cluster"], row["group"], name)
                status.add_metric(labels, float(row["status"] == name))
        yield status
        header = self._report.header
        yield GaugeMetricFamily(COVERAGE.name, COVERAGE.meaning, value=header.coverage)
        taken_s = header.snapshot_ts.timestamp()
        yield GaugeMetricFamily(TIMESTAMP.name, TIMESTAMP.meaning, value=taken_s)

    def _rows(self, table: str) -> list[Row]:
        rows = self._report.rows(table)
        return [row for row in rows if self._cluster in (None, row["cluster"])]


def _filled(family: Family, rows: Iterable[Row]) -> Metric:
    kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    metric = kind(family.name, family.meaning, labels=family.labels)
    for row in rows:
        value = row[family.column]
        if value is not None:
            metric.add_metric([str(row[name]) for name in family.columns], round(value, 6))
    return metric


def _registry(report: Report, cluster: str | None = None) -> CollectorRegistry:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Metrics(report, cluster))
    return registry


def metrics_text(report: Report) -> str:
    """Render the metrics of all clusters in Prometheus' text format."""
    return generate_latest(_registry(report)).decode()


def push(report: Report, url: str, *, job: str = "cometmq_lag") -> None:
    """Replace all metrics of each cluster at the gateway, so that deleted groups disappear."""
    if not url.startswith(("http://", "https://")):
        raise PushFailed(f"--pushgateway: {url!r} must start with http:// or https://")
    gateway = url.rstrip("/")
    for cluster in sorted({row["cluster"] for row in report.rows("group")}):
        key = {"cluster": cluster}
        try:
            delete_from_gateway(gateway, job, key, PUSH_TIMEOUT_S)
            push_to_gateway(gateway, job, _registry(report, cluster), key, PUSH_TIMEOUT_S)
        except urllib.error.HTTPError as refusal:
            detail = refusal.read(200).decode(errors="replace").strip()
            raise PushFailed(f"{refusal.url}: {refusal.code} {detail}") from refusal
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise PushFailed(f"{gateway}: {error}") from error
