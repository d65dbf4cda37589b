# SPDX-License-Identifier: Apache-2.0
"""The result of a report: its header and the columns of its tables.

`report.build` returns a `Report`; everything that shows one takes nothing else. The tables are
Arrow tables with exactly these columns, sorted worst first; durations are seconds, null means
"not known" unless the column says otherwise. A snapshot's tables are in `tables/columns.py`.
"""

from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec

from cometmq.spark.tables.columns import SCHEMA_VERSION, Column, Columns, ddl

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["REPORT_TABLES", "SCHEMA_VERSION", "Column", "Columns", "Header", "Report", "ddl"]

SEVERITIES: Final = ("ok", "info", "warn", "error", "critical")
"""From good to bad; UNKNOWN is `info`."""

STATUSES: Final[dict[str, str]] = {
    "LOST": "critical",
    "AT_RISK": "critical",
    "REWIND": "error",
    "STALLED": "error",
    "STOPPED": "error",
    "NEVER_COMMITTED": "warn",
    "SLOW": "warn",
    "CATCHING_UP": "info",
    "UNKNOWN": "info",
    "BROADCAST": "info",
    "OK": "ok",
}
"""Severity by status, worst first: a group has the worst status of its queues."""


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """What a report is about."""

    schema_version: int = SCHEMA_VERSION
    run_id: str
    """`20260228T101500Z`: minute of the last snapshot."""
    snapshot_ts: datetime
    """When the newest snapshot was taken (T); all ages count from the reading of their row."""
    snapshot_id: int
    snapshot_count: int
    """Snapshots of the long window."""
    window_s: int
    """W: what the status rules look at."""
    long_window_s: int
    history_s: int
    """How far back arrival times are looked up."""
    risk_hours: float
    allowed_lag: int
    allowed_age_s: float
    timezone: str
    """Zone of the brokers' `deleteWhen`."""
    coverage: float
    """Queues with data in the newest snapshot / queues expected; 1 if none is expected."""
    unreachable: tuple[str, ...]
    """Brokers that did not answer in the newest snapshot."""
    severity: str
    """The worst of all groups."""
    status_counts: dict[str, int]
    """Groups by status."""


class Report(msgspec.Struct, frozen=True):
    """A report: tables by name, with the columns of REPORT_TABLES."""

    header: Header
    tables: dict[str, Any]

    def table(self, name: str) -> "pa.Table":
        """Return one of its tables."""
        return self.tables[name]


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
    _c("topic_kind", "string", "NORMAL, RETRY, DLQ, SCHEDULE, HALF, OP or SYSTEM", required=True),
    _c("status", "string", "Status", required=True),
    _c("severity", "string", "ok, info, warn, error or critical", required=True),
    _c("read_ts", "timestamp", "T of this row: when the consumer offset was read", required=True),
    _c("online", "boolean", "Whether the group has a member", required=True),
    _c("filtered", "boolean", "The lag is an upper bound: brokers filter", required=True),
    _c("consumer_offset", "bigint", "c: what the group reads next; null: never committed"),
    _c("min_offset", "bigint", "n: the oldest message", required=True),
    _c("max_offset", "bigint", "m: what the next message gets", required=True),
    _c("lag", "bigint", "m - max(c, n); null: never committed"),
    _c("lost", "bigint", "n - c if messages between were deleted unread"),
    _c("lag_age_s", "double", "Age of the first unread message, as the broker told it"),
    _c("lag_interp_s", "double", "The same from the history of m"),
    _c("lag_time_s", "double", "The best of both"),
    _c("lag_time_method", "string", "exact, interp, extrap_min (at least), zero or unknown"),
    _c("lag_span_s", "double", "Newest message's store time minus that of the last consumed"),
    _c("rate_in", "double", "Messages a second arriving, over W"),
    _c("rate_out", "double", "Messages a second consumed, over W"),
    _c("rate_in_long", "double", "The same over the long window"),
    _c("rate_out_long", "double", "The same over the long window"),
    _c("drain", "double", "How fast the lag shrinks over W, messages a second"),
    _c("drain_se", "double", "Standard error of `drain`"),
    _c("rate_r2", "double", "How well a line fits the lag over W, 0 to 1"),
    _c("points", "int", "Snapshots of W, after the last rewind", required=True),
    _c("covered_s", "double", "Time between the first and the last of them", required=True),
    _c("eta_catchup_s", "double", "Until the lag is 0; null with a lag: never at this speed"),
    _c("eta_low_s", "double", "With `drain` one standard error higher"),
    _c("eta_high_s", "double", "With `drain` one standard error lower; null: never"),
    _c("log_speed", "double", "v: seconds of log consumed a second; 1 keeps pace"),
    _c("ttl_time_s", "double", "Until age deletes unread messages; null: it does not"),
    _c("ttl_disk_s", "double", "Until a full disk deletes unread messages; null: it does not"),
    _c("time_to_loss_s", "double", "The lesser of both; null: nothing is going to be lost"),
    _c("ttl_model", "string", "time, disk, lost or none: what time_to_loss_s comes from"),
    _c("retention_ratio", "double", "100 * (m - c) / (m - n); at 100 messages are lost"),
)

GROUP: Final[Columns] = (
    *_KEY,
    _c("status", "string", "Worst status of its queues", required=True),
    _c("severity", "string", "ok, info, warn, error or critical", required=True),
    _c("online", "boolean", "Whether it has a member", required=True),
    _c("filtered", "boolean", "Whether the lag of a queue is an upper bound", required=True),
    _c("topics", "int", "Topics", required=True),
    _c("queues", "int", "Queues", required=True),
    _c("queues_bad", "int", "Queues with warn or worse", required=True),
    _c("lag_sum", "bigint", "Unread messages; not of broadcasting queues"),
    _c("lag_max", "bigint", "The most in one queue"),
    _c("lag_time_s", "double", "The highest of its queues"),
    _c("lost_sum", "bigint", "Messages deleted unread"),
    _c("rate_in", "double", "Sum over its queues"),
    _c("rate_out", "double", "Sum over its queues"),
    _c("eta_catchup_s", "double", "The highest of its queues; null with a lag: never"),
    _c("time_to_loss_s", "double", "The least of its queues"),
    _c("ttl_model", "string", "What it comes from", required=True),
    _c("worst_topic", "string", "The worst queue", required=True),
    _c("worst_broker_name", "string", "The worst queue", required=True),
    _c("worst_queue_id", "int", "The worst queue", required=True),
    _c("worst_lag", "bigint", "Its lag"),
    _c("since_ts", "timestamp", "First snapshot of the history at which it was behind until now"),
    _c("coverage", "double", "Queues with data / queues expected", required=True),
    _c("lag_change_last", "bigint", "Change of lag_sum since the report before"),
    _c("lag_change_week", "bigint", "Change of lag_sum since a week ago"),
)

BROKER: Final[Columns] = (
    _c("cluster", "string", "Cluster", required=True),
    _c("broker_name", "string", "Broker", required=True),
    _c("addr", "string", "Address", required=True),
    _c("reachable", "boolean", "Whether it answered", required=True),
    _c("error", "string", "Why not"),
    _c("version", "string", "Version"),
    _c("file_reserved_hours", "int", "How long messages are kept"),
    _c("delete_when", "string", "Hours of deletion"),
    _c("disk_ratio", "double", "Used part of the disk, 0 to 1"),
    _c("disk_ratio_slope", "double", "Its change a second, over the long window"),
    _c("disk_full_s", "double", "Until it reaches diskMaxUsedSpaceRatio; 0: it has"),
    _c("earliest_ts", "timestamp", "Its oldest message"),
    _c("put_tps", "double", "Messages stored a second"),
    _c("get_tps", "double", "Messages read a second"),
    _c("clock_skew_ms", "bigint", "Its clock minus the collector's"),
    _c("groups_bad", "int", "Groups with error or worse that have a queue here", required=True),
    _c("lag_sum", "bigint", "Unread messages here, of all groups"),
)

SKEW: Final[Columns] = (
    _c("cluster", "string", "Cluster", required=True),
    _c("topic", "string", "Topic", required=True),
    _c("queues", "int", "Queues", required=True),
    _c("rate_in_max", "double", "Of the hottest queue, messages a second"),
    _c("rate_in_mean", "double", "Of all its queues"),
    _c("rate_in_gini", "double", "0: all alike; near 1: one has all"),
    _c("hot_broker_name", "string", "The hottest queue"),
    _c("hot_queue_id", "int", "The hottest queue"),
    _c("lag_max", "bigint", "Highest lag of one group in one queue"),
    _c("lag_gini", "double", "The same measure of the lag"),
    _c("hot", "boolean", "Hottest above 3 times the mean and above 100 a second", required=True),
)

SILENT: Final[Columns] = (
    _c("cluster", "string", "Cluster", required=True),
    _c("kind", "string", "GROUP or TOPIC", required=True),
    _c("name", "string", "Group or topic", required=True),
    _c("since_ts", "timestamp", "Nothing has changed at least since then", required=True),
    _c("lag_sum", "bigint", "Unread messages of a group"),
    _c("command", "string", "What deletes it", required=True),
)

BACKLOG: Final[Columns] = (
    _c("cluster", "string", "Cluster", required=True),
    _c("kind", "string", "RETRY, DLQ, DELAY or HALF", required=True),
    _c("name", "string", "Group of RETRY and DLQ, level of DELAY, else the topic", required=True),
    _c("backlog", "bigint", "Messages waiting; of DLQ: kept"),
    _c("rate", "double", "Change a second over the long window; of DLQ: new dead letters"),
    _c("flagged", "boolean", "DLQ or RETRY that grows", required=True),
)

FILTERED: Final[Columns] = (
    *_KEY,
    _c("topic", "string", "Topic of which the group wants only some messages", required=True),
    _c("expression", "string", "Its filter: tags or SQL"),
    _c("lag", "bigint", "Unread messages of all kinds", required=True),
    _c("tried", "bigint", "How many of them were tried (`--sample-tags`); null: none"),
    _c("matched", "bigint", "How many of these the group wants"),
    _c("lag_matching", "bigint", "Unread messages that it wants, about"),
    _c("lag_low", "bigint", "At least, with 95 % confidence"),
    _c("lag_high", "bigint", "At most, with 95 % confidence"),
)

HOLDER: Final[Columns] = (
    *_KEY,
    _c("topic", "string", "Topic", required=True),
    _c("broker_name", "string", "Broker", required=True),
    _c("queue_id", "int", "Queue", required=True),
    _c("lag", "bigint", "Unread messages at the last snapshot"),
    _c("client_id", "string", "Member that reads this queue; null: nobody does"),
    _c("cached_count", "int", "Messages that it has pulled and not yet consumed"),
    _c("cached_mib", "int", "Their size in MiB"),
    _c("last_pull_ts", "timestamp", "When it pulled last"),
    _c("last_consume_ts", "timestamp", "When it consumed last"),
    _c("locked", "boolean", "Whether it holds the lock of an orderly queue"),
)
"""What the members of the worst groups said; empty unless they were asked (`--deep`)."""

HISTORY: Final[Columns] = (
    *_KEY,
    _c("ts", "timestamp", "Snapshot", required=True),
    _c("lag", "bigint", "Unread messages of the group", required=True),
    _c("max_offset", "bigint", "Sum of m over its queues", required=True),
    _c("consumer_offset", "bigint", "Sum of c over its queues", required=True),
)
"""Curves of the 20 worst groups, a point each 10 minutes (each minute within the long window)."""

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
