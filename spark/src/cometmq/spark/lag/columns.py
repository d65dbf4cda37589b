# SPDX-License-Identifier: Apache-2.0
"""The result of a report: its header and the columns of its tables.

`report.build` returns a `Report`, the only input of every output form. The tables are Arrow
tables with exactly these columns, sorted worst first. Durations are seconds; null means unknown
unless the column's description says otherwise. The tables of a snapshot are in `tables/columns.py`.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec

from cometmq.insight.judge import BAD, SEVERITIES, Status
from cometmq.spark.tables.columns import SCHEMA_VERSION, Column, Columns, ddl

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "BAD", "REPORT_TABLES", "SCHEMA_VERSION", "SEVERITIES", "Column", "Columns", "Header", "Report",
    "Row", "ddl",
]  # fmt: skip

STATUSES: Final[dict[str, str]] = {
    it.value: it.severity for it in Status if it not in {Status.SKIPS, Status.DEAD_LETTERS}
}
"""Severity by status, worst first: a group takes the worst status of its queues. Snapshots show
neither offsets beyond the end nor which dead letters were sent again.
"""


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """A report's time, settings and summary."""

    schema_version: int = SCHEMA_VERSION
    run_id: str
    """Minute of the newest snapshot, for example `20260228T101500Z`."""
    snapshot_ts: datetime
    """When the newest snapshot was taken (T). Ages are relative to the `read_ts` of their row."""
    snapshot_id: int
    snapshot_count: int
    """Snapshots within the long window."""
    window_s: int
    """Length of W, the window that the status rules evaluate."""
    long_window_s: int
    history_s: int
    """How far back arrival times are looked up."""
    risk_hours: float
    allowed_lag: int
    allowed_age_s: float
    timezone: str
    """Time zone of the brokers' `deleteWhen`."""
    coverage: float
    """Queues with data in the newest snapshot / expected queues; 1 if none is expected."""
    unreachable: tuple[str, ...]
    """Brokers that did not answer in the newest snapshot."""
    severity: str
    """Worst severity of all groups."""
    status_counts: dict[str, int]
    """Number of groups by status."""


Row = Mapping[str, Any]
"""One row of a table of the report."""


class Report(msgspec.Struct, frozen=True):
    """A header and, by name, the tables of REPORT_TABLES."""

    header: Header
    tables: dict[str, Any]
    _rows: dict[str, list[dict[str, Any]]] = msgspec.field(default_factory=dict)

    def table(self, name: str) -> "pa.Table":
        return self.tables[name]

    def rows(self, name: str) -> list[dict[str, Any]]:
        """Return the rows of a table, which all output forms share: do not change them."""
        if name not in self._rows:
            self._rows[name] = self.tables[name].to_pylist()
        return self._rows[name]


def _c(name: str, type_: str, meaning: str, *, required: bool = False) -> Column:
    return Column(name, type_, meaning, required)


_KEY: Final = (
    _c("cluster", "string", "Cluster", required=True),
    _c("group", "string", "Consumer group", required=True),
)

QUEUE: Final[Columns] = (
    *_KEY,
    _c("broker_name", "string", "Broker", required=True),
    _c("topic", "string", "Topic", required=True),
    _c("queue_id", "int", "Queue", required=True),
    _c("topic_kind", "string", "NORMAL, RETRY, DLQ or SYSTEM", required=True),
    _c("status", "string", "Status", required=True),
    _c("severity", "string", "ok, info, warn, error or critical", required=True),
    _c("read_ts", "timestamp", "T of this row: when the committed offset was read", required=True),
    _c("online", "boolean", "Whether the group has a connected member", required=True),
    _c(
        "filtered",
        "boolean",
        "Whether the lag is an upper bound because brokers filter",
        required=True,
    ),
    _c(
        "consumer_offset",
        "bigint",
        "c: next offset the group will read; null if it never committed",
    ),
    _c("min_offset", "bigint", "n: offset of the oldest message", required=True),
    _c("max_offset", "bigint", "m: offset of the next message to arrive", required=True),
    _c("lag", "bigint", "m - max(c, n); null if it never committed"),
    _c("lost", "bigint", "n - c if unread messages were deleted, otherwise 0"),
    _c("lag_age_s", "double", "Age of the first unread message, reported by the broker"),
    _c("lag_interp_s", "double", "Age of the first unread message, from the history of m"),
    _c("lag_time_s", "double", "lag_age_s if known, otherwise lag_interp_s"),
    _c("lag_time_method", "string", "exact, interp, extrap_min (a lower bound), zero or unknown"),
    _c(
        "lag_span_s",
        "double",
        "Store time of the newest message minus that of the last consumed one",
    ),
    _c("rate_in", "double", "Messages arriving per second, over W"),
    _c("rate_out", "double", "Messages consumed per second, over W"),
    _c("rate_in_long", "double", "rate_in over the long window"),
    _c("rate_out_long", "double", "rate_out over the long window"),
    _c("drain", "double", "Decrease of the lag over W, messages per second"),
    _c("drain_se", "double", "Standard error of `drain`"),
    _c("rate_r2", "double", "R² of a straight line through the lag over W"),
    _c("points", "int", "Snapshots within W, after the last rewind", required=True),
    _c("covered_s", "double", "Time between the first and the last of these points", required=True),
    _c(
        "eta_catchup_s",
        "double",
        "Time until the lag is 0; null despite a lag means never at this rate",
    ),
    _c("eta_low_s", "double", "The same with `drain` one standard error higher"),
    _c("eta_high_s", "double", "The same with `drain` one standard error lower; null means never"),
    _c("log_speed", "double", "v: seconds of log consumed per second; 1 keeps pace"),
    _c("ttl_time_s", "double", "Time until unread messages expire by age; null means never"),
    _c("ttl_disk_s", "double", "Time until a full disk deletes unread messages; null means never"),
    _c("time_to_loss_s", "double", "The smaller of the two; null if no loss is expected"),
    _c("ttl_model", "string", "Cause behind time_to_loss_s: time, disk, lost or none"),
    _c("retention_ratio", "double", "100 * (m - c) / (m - n); above 100, messages are lost"),
)

GROUP: Final[Columns] = (
    *_KEY,
    _c("status", "string", "Worst status of the group's queues", required=True),
    _c("severity", "string", "ok, info, warn, error or critical", required=True),
    _c("online", "boolean", "Whether the group has a connected member", required=True),
    _c("members", "int", "Connected members in the newest snapshot; null if unknown"),
    _c("filtered", "boolean", "Whether the lag of any queue is an upper bound", required=True),
    _c("topics", "int", "Number of topics", required=True),
    _c("queues", "int", "Number of queues", required=True),
    _c("queues_bad", "int", "Queues with severity warn or worse", required=True),
    _c("lag_sum", "bigint", "Unread messages, without broadcasting queues"),
    _c("lag_max", "bigint", "Highest lag of one queue"),
    _c("lag_time_s", "double", "Highest lag_time_s of its queues"),
    _c("lost_sum", "bigint", "Messages deleted unread"),
    _c("rate_in", "double", "Sum of rate_in over its queues"),
    _c("rate_out", "double", "Sum of rate_out over its queues"),
    _c(
        "eta_catchup_s",
        "double",
        "Highest eta_catchup_s of its queues; null despite a lag means never",
    ),
    _c("time_to_loss_s", "double", "Lowest time_to_loss_s of its queues"),
    _c(
        "ttl_model",
        "string",
        "Cause behind time_to_loss_s: time, disk, lost or none",
        required=True,
    ),
    _c("worst_topic", "string", "Topic of the worst queue", required=True),
    _c("worst_broker_name", "string", "Broker of the worst queue", required=True),
    _c("worst_queue_id", "int", "Id of the worst queue", required=True),
    _c("worst_lag", "bigint", "Lag of the worst queue"),
    _c(
        "since_ts",
        "timestamp",
        "First snapshot since which the group has been continuously behind",
    ),
    _c(
        "since_at_least",
        "boolean",
        "Whether the history does not show when that began: it may be earlier than since_ts",
    ),
    _c("coverage", "double", "Queues with data divided by expected queues", required=True),
    _c("lag_change_last", "bigint", "Change of lag_sum since the previous report"),
    _c("lag_change_week", "bigint", "Change of lag_sum within a week"),
)

BROKER: Final[Columns] = (
    _c("cluster", "string", "Cluster", required=True),
    _c("broker_name", "string", "Broker", required=True),
    _c("addr", "string", "Address", required=True),
    _c("reachable", "boolean", "Whether the broker answered", required=True),
    _c("error", "string", "Reason if it did not answer"),
    _c("version", "string", "Version"),
    _c("file_reserved_hours", "int", "Retention of messages (fileReservedTime)"),
    _c("delete_when", "string", "Hours of the day at which files are deleted (deleteWhen)"),
    _c("disk_ratio", "double", "Used fraction of the disk, 0 to 1"),
    _c(
        "disk_ratio_slope",
        "double",
        "Change of disk_ratio per second, since it began to grow within the long window",
    ),
    _c(
        "disk_full_s",
        "double",
        "Time until disk_ratio reaches diskMaxUsedSpaceRatio; 0 if it already has",
    ),
    _c("earliest_ts", "timestamp", "Store time of its oldest message"),
    _c("put_tps", "double", "Messages stored per second"),
    _c("get_tps", "double", "Messages read per second"),
    _c("clock_skew_ms", "bigint", "The broker's clock minus the collector's"),
    _c("groups_bad", "int", "Groups with severity error or worse on this broker", required=True),
    _c("lag_sum", "bigint", "Unread messages of all groups on this broker"),
)

SKEW: Final[Columns] = (
    _c("cluster", "string", "Cluster", required=True),
    _c("topic", "string", "Topic", required=True),
    _c("queues", "int", "Number of queues", required=True),
    _c("rate_in_max", "double", "Arrival rate of the hottest queue, messages per second"),
    _c("rate_in_mean", "double", "Mean arrival rate of its queues"),
    _c(
        "rate_in_gini",
        "double",
        "Gini coefficient of the rates: 0 if all are equal, near 1 if one queue has all",
    ),
    _c("hot_broker_name", "string", "Broker of the hottest queue"),
    _c("hot_queue_id", "int", "Id of the hottest queue"),
    _c("lag_max", "bigint", "Highest lag of any group in any queue"),
    _c("lag_gini", "double", "Gini coefficient of the lag"),
    _c(
        "hot",
        "boolean",
        "Whether the hottest queue exceeds 3 times the mean and 100 per second",
        required=True,
    ),
)

SILENT: Final[Columns] = (
    _c("cluster", "string", "Cluster", required=True),
    _c("kind", "string", "GROUP or TOPIC", required=True),
    _c("name", "string", "Group or topic", required=True),
    _c("since_ts", "timestamp", "Nothing has changed since this time or earlier", required=True),
    _c("lag_sum", "bigint", "Unread messages, for a group"),
    _c("command", "string", "Command that deletes it", required=True),
)

BACKLOG: Final[Columns] = (
    _c("cluster", "string", "Cluster", required=True),
    _c("kind", "string", "RETRY, DLQ, DELAY or HALF", required=True),
    _c(
        "name",
        "string",
        "Group for RETRY and DLQ, level for DELAY, otherwise the topic",
        required=True,
    ),
    _c("backlog", "bigint", "Waiting messages; for DLQ: stored messages"),
    _c("rate", "double", "Change per second over the long window; for DLQ: new dead letters"),
    _c("flagged", "boolean", "Whether a DLQ or RETRY backlog is growing", required=True),
)

FILTERED: Final[Columns] = (
    *_KEY,
    _c("topic", "string", "Topic that the group filters", required=True),
    _c("expression", "string", "Filter: tags or SQL"),
    _c("lag", "bigint", "Unread messages before the filter", required=True),
    _c(
        "tried",
        "bigint",
        "Unread messages tested against the filter (`--sample-tags`); null if none",
    ),
    _c("matched", "bigint", "Tested messages that match the filter"),
    _c("lag_matching", "bigint", "Estimated unread messages that match"),
    _c("lag_low", "bigint", "Lower bound of the estimate, 95 % confidence"),
    _c("lag_high", "bigint", "Upper bound of the estimate, 95 % confidence"),
)

HOLDER: Final[Columns] = (
    *_KEY,
    _c("topic", "string", "Topic", required=True),
    _c("broker_name", "string", "Broker", required=True),
    _c("queue_id", "int", "Queue", required=True),
    _c("lag", "bigint", "Unread messages at the last snapshot"),
    _c("client_id", "string", "Member that reads this queue; null if none"),
    _c("cached_count", "int", "Messages pulled but not yet consumed"),
    _c("cached_mib", "int", "Size of these messages in MiB"),
    _c("last_pull_ts", "timestamp", "Last pull"),
    _c("last_consume_ts", "timestamp", "Last consumption"),
    _c("locked", "boolean", "Whether the member holds the lock of the queue (ordered consumption)"),
)
"""Answers of the members of the worst groups; empty without `--deep`."""

HISTORY: Final[Columns] = (
    *_KEY,
    _c("ts", "timestamp", "Snapshot", required=True),
    _c("lag", "bigint", "Unread messages of the group", required=True),
    _c("max_offset", "bigint", "Sum of m over its queues", required=True),
    _c("consumer_offset", "bigint", "Sum of c over its queues", required=True),
)
"""Lag curves of the 20 worst groups: one point per 10 minutes, or per minute in the long window."""

REPORT_TABLES: Final[dict[str, Columns]] = {
    "queue": QUEUE,
    "group": GROUP,
    "broker": BROKER,
    "skew": SKEW,
    "silent": SILENT,
    "backlog": BACKLOG,
    "filtered": FILTERED,
    "holder": HOLDER,
    "history": HISTORY,
}
