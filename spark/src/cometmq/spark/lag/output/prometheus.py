# SPDX-License-Identifier: Apache-2.0
"""Exports a report as Prometheus metrics, to a file for the node exporter or to a gateway.

Every group has series, but a queue has series only while its group is unhealthy: ten thousand
groups with eight queues each would overload Prometheus.
"""

import base64
import http.client
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from cometmq.client.http_fetch import fetch
from cometmq.remoting.errors import CometError
from cometmq.spark.lag.columns import BAD, STATUSES, Report, Row

PUSH_TIMEOUT_S: Final = 10.0
ANSWER_BYTES_MAX: Final = 64 * 1024


class PushFailed(CometError):
    """The gateway rejected the metrics or did not answer."""


class Metric(NamedTuple):
    """Name, type and help text of a metric."""

    name: str
    kind: str
    meaning: str


class Family(NamedTuple):
    """A metric of groups or queues, with the function that computes its value."""

    name: str
    kind: str
    meaning: str
    value: Callable[[Row], float | None]


STATUS: Final = Metric(
    "cometmq_group_status", "gauge", "1 for the current status of the group, 0 for the others."
)
COVERAGE: Final = Metric(
    "cometmq_lag_report_coverage_ratio", "gauge", "Queues with data divided by expected queues."
)
TIMESTAMP: Final = Metric(
    "cometmq_lag_report_timestamp_seconds",
    "gauge",
    "When the newest snapshot of the report was taken.",
)


GROUP_FAMILIES: Final = (
    Family("cometmq_lag_messages", "gauge", "Unread messages.", lambda r: r["lag_sum"]),
    Family(
        "cometmq_lag_age_seconds",
        "gauge",
        "Age of the oldest unread message.",
        lambda r: r["lag_time_s"],
    ),
    Family(
        "cometmq_time_to_loss_seconds",
        "gauge",
        "Time until unread messages are deleted; absent if no loss is expected.",
        lambda r: r["time_to_loss_s"],
    ),
    Family(
        "cometmq_lost_messages_total",
        "counter",
        "Messages deleted unread.",
        lambda r: r["lost_sum"],
    ),
)
QUEUE_FAMILIES: Final = (
    Family(
        "cometmq_lag_queue_messages",
        "gauge",
        "Unread messages of a queue; only for unhealthy groups.",
        lambda r: r["lag"],
    ),
    Family(
        "cometmq_lag_queue_age_seconds",
        "gauge",
        "Age of the oldest unread message of a queue; only for unhealthy groups.",
        lambda r: r["lag_time_s"],
    ),
)


def catalogue() -> Iterator[tuple[Metric, str]]:
    """List every metric with its labels, for the documentation."""
    for family in GROUP_FAMILIES:
        yield Metric(*family[:3]), "cluster, group"
    yield STATUS, "cluster, group, status"
    for family in QUEUE_FAMILIES:
        yield Metric(*family[:3]), "cluster, group, broker, topic, queue"
    yield COVERAGE, ""
    yield TIMESTAMP, ""


def metrics_text(report: Report, *, cluster: str | None = None) -> str:
    """Render the metrics of one cluster, or of all clusters, in Prometheus' text format."""
    groups = _of(report, "group", cluster)
    bad = {(row["cluster"], row["group"]) for row in groups if row["severity"] in BAD}
    queues = [row for row in _of(report, "queue", cluster) if (row["cluster"], row["group"]) in bad]
    lines: list[str] = []
    for family in GROUP_FAMILIES:
        lines += _family(family, groups, _group_labels)
    for family in QUEUE_FAMILIES:
        lines += _family(family, queues, _queue_labels)
    lines += _status(groups)
    lines += _about(report)
    return "\n".join(lines) + "\n"


def push(report: Report, url: str, *, job: str = "cometmq_lag") -> None:
    """Replace all metrics of each cluster at the gateway, so that deleted groups disappear."""
    for cluster in sorted({row["cluster"] for row in report.rows("group")}):
        address = f"{url.rstrip('/')}/metrics{_path('job', job)}{_path('cluster', cluster)}"
        _request("DELETE", address, None)
        _request("PUT", address, metrics_text(report, cluster=cluster).encode())


def _of(report: Report, table: str, cluster: str | None) -> list[Row]:
    rows = report.rows(table)
    return [row for row in rows if cluster is None or row["cluster"] == cluster]


def _path(key: str, value: str) -> str:
    # A path segment cannot be empty or contain a slash; the gateway accepts base64 instead.
    quoted = urllib.parse.quote(value, safe="")
    if value and "/" not in value:
        return f"/{key}/{quoted}"
    encoded = base64.urlsafe_b64encode(value.encode()).decode() or "="
    return f"/{key}@base64/{encoded}"


def _request(method: str, address: str, data: bytes | None) -> None:
    if not address.startswith(("http://", "https://")):
        raise PushFailed(f"--pushgateway: {address!r} must start with http:// or https://")
    request = urllib.request.Request(address, data=data, method=method)  # noqa: S310  # as above
    request.add_header("Content-Type", "text/plain; version=0.0.4")
    try:
        fetch(request, timeout_s=PUSH_TIMEOUT_S, bytes_max=ANSWER_BYTES_MAX)
    except urllib.error.HTTPError as refusal:
        detail = refusal.read(200).decode(errors="replace").strip()
        raise PushFailed(f"{method} {address}: {refusal.code} {detail}") from refusal
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise PushFailed(f"{method} {address}: {error}") from error


def _family(
    family: Family, rows: Iterable[Row], labels: Callable[[Row], dict[str, object]]
) -> Iterator[str]:
    yield from _head(family.name, family.kind, family.meaning)
    for row in rows:
        value = family.value(row)
        if value is not None:
            yield f"{family.name}{_labels(labels(row))} {_number(value)}"


def _status(groups: Iterable[Row]) -> Iterator[str]:
    yield from _head(*STATUS)
    for row in groups:
        # Most groups are healthy: ten zeros for each of them would make up most of the file.
        for status in ["OK"] if row["status"] == "OK" else STATUSES:
            labels = _labels({**_group_labels(row), "status": status})
            yield f"{STATUS.name}{labels} {int(row['status'] == status)}"


def _about(report: Report) -> Iterator[str]:
    header = report.header
    yield from _head(*COVERAGE)
    yield f"{COVERAGE.name} {_number(header.coverage)}"
    yield from _head(*TIMESTAMP)
    yield f"{TIMESTAMP.name} {_number(header.snapshot_ts.timestamp())}"


def _head(name: str, kind: str, meaning: str) -> Iterator[str]:
    yield f"# HELP {name} {meaning}"
    yield f"# TYPE {name} {kind}"


def _group_labels(row: Row) -> dict[str, object]:
    return {"cluster": row["cluster"], "group": row["group"]}


def _queue_labels(row: Row) -> dict[str, object]:
    return {
        **_group_labels(row),
        "broker": row["broker_name"],
        "topic": row["topic"],
        "queue": row["queue_id"],
    }


def _labels(labels: dict[str, object]) -> str:
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: object) -> str:
    return str(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return repr(round(value, 6))
