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

from cometmq.insight.judge import Status
from cometmq.spark.tables.columns import SCHEMA_VERSION, Columns, columns

if TYPE_CHECKING:
    import pyarrow as pa

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


QUEUE: Final = columns("""
    cluster         string!    Cluster
    group           string!    Consumer group
    broker_name     string!    Broker
    topic           string!    Topic
    queue_id        int!       Queue
    topic_kind      string!    NORMAL, RETRY, DLQ or SYSTEM
    status          string!    Status
    severity        string!    ok, info, warn, error or critical
    read_ts         timestamp! T of this row: when the committed offset was read
    online          boolean!   Whether the group has a connected member
    filtered        boolean!   Whether the lag is an upper bound because brokers filter
    consumer_offset bigint     c: next offset the group will read; null if it never committed
    min_offset      bigint!    n: offset of the oldest message
    max_offset      bigint!    m: offset of the next message to arrive
    lag             bigint     m - max(c, n); null if it never committed
    lost            bigint     n - c if unread messages were deleted, otherwise 0
    lag_age_s       double     Age of the first unread message, reported by the broker
    lag_interp_s    double     Age of the first unread message, from the history of m
    lag_time_s      double     lag_age_s if known, otherwise lag_interp_s
    lag_time_method string     exact, interp, extrap_min (a lower bound), zero or unknown
    lag_span_s      double     Store time of the newest message minus that of the last consumed one
    rate_in         double     Messages arriving per second, over W
    rate_out        double     Messages consumed per second, over W
    rate_in_long    double     rate_in over the long window
    rate_out_long   double     rate_out over the long window
    drain           double     Decrease of the lag over W, messages per second
    drain_se        double     Standard error of `drain`
    rate_r2         double     R² of a straight line through the lag over W
    points          int!       Snapshots within W, after the last rewind
    covered_s       double!    Time between the first and the last of these points
    eta_catchup_s   double     Time until the lag is 0; null despite a lag means never at this rate
    eta_low_s       double     The same with `drain` one standard error higher
    eta_high_s      double     The same with `drain` one standard error lower; null means never
    log_speed       double     v: seconds of log consumed per second; 1 keeps pace
    ttl_time_s      double     Time until unread messages expire by age; null means never
    ttl_disk_s      double     Time until a full disk deletes unread messages; null means never
    time_to_loss_s  double     The smaller of the two; null if no loss is expected
    ttl_model       string     Cause behind time_to_loss_s: time, disk, lost or none
    retention_ratio double     100 * (m - c) / (m - n); above 100, messages are lost
""")

GROUP: Final = columns("""
    cluster           string!   Cluster
    group             string!   Consumer group
    status            string!   Worst status of the group's queues
    severity          string!   ok, info, warn, error or critical
    online            boolean!  Whether the group has a connected member
    members           int       Connected members in the newest snapshot; null if unknown
    filtered          boolean!  Whether the lag of any queue is an upper bound
    topics            int!      Number of topics
    queues            int!      Number of queues
    queues_bad        int!      Queues with severity warn or worse
    lag_sum           bigint    Unread messages, without broadcasting queues
    lag_max           bigint    Highest lag of one queue
    lag_time_s        double    Highest lag_time_s of its queues
    lost_sum          bigint    Messages deleted unread
    rate_in           double    Sum of rate_in over its queues
    rate_out          double    Sum of rate_out over its queues
    eta_catchup_s     double    Highest eta_catchup_s of its queues; null despite a lag means never
    time_to_loss_s    double    Lowest time_to_loss_s of its queues
    ttl_model         string!   Cause behind time_to_loss_s: time, disk, lost or none
    worst_topic       string!   Topic of the worst queue
    worst_broker_name string!   Broker of the worst queue
    worst_queue_id    int!      Id of the worst queue
    worst_lag         bigint    Lag of the worst queue
    since_ts          timestamp First snapshot since which the group has been continuously behind
    since_at_least    boolean   Whether the history does not show when that began: it may be earlier
        than since_ts
    coverage          double!   Queues with data divided by expected queues
    lag_change_last   bigint    Change of lag_sum since the previous report
    lag_change_week   bigint    Change of lag_sum within a week
""")

BROKER: Final = columns("""
    cluster             string!   Cluster
    broker_name         string!   Broker
    addr                string!   Address
    reachable           boolean!  Whether the broker answered
    error               string    Reason if it did not answer
    version             string    Version
    file_reserved_hours int       Retention of messages (fileReservedTime)
    delete_when         string    Hours of the day at which files are deleted (deleteWhen)
    disk_ratio          double    Used fraction of the disk, 0 to 1
    disk_ratio_slope    double    Change of disk_ratio per second, since it began to grow within the
        long window
    disk_full_s         double    Time until disk_ratio reaches diskMaxUsedSpaceRatio; 0 if it
        already has
    earliest_ts         timestamp Store time of its oldest message
    put_tps             double    Messages stored per second
    get_tps             double    Messages read per second
    clock_skew_ms       bigint    The broker's clock minus the collector's
    groups_bad          int!      Groups with severity error or worse on this broker
    lag_sum             bigint    Unread messages of all groups on this broker
""")

SKEW: Final = columns("""
    cluster         string!  Cluster
    topic           string!  Topic
    queues          int!     Number of queues
    rate_in_max     double   Arrival rate of the hottest queue, messages per second
    rate_in_mean    double   Mean arrival rate of its queues
    rate_in_gini    double   Gini coefficient of the rates: 0 if all are equal, near 1 if one queue
        has all
    hot_broker_name string   Broker of the hottest queue
    hot_queue_id    int      Id of the hottest queue
    lag_max         bigint   Highest lag of any group in any queue
    lag_gini        double   Gini coefficient of the lag
    hot             boolean! Whether the hottest queue exceeds 3 times the mean and 100 per second
""")

SILENT: Final = columns("""
    cluster  string!    Cluster
    kind     string!    GROUP or TOPIC
    name     string!    Group or topic
    since_ts timestamp! Nothing has changed since this time or earlier
    lag_sum  bigint     Unread messages, for a group
    command  string!    Command that deletes it
""")

BACKLOG: Final = columns("""
    cluster string!  Cluster
    kind    string!  RETRY, DLQ, DELAY or HALF
    name    string!  Group for RETRY and DLQ, level for DELAY, otherwise the topic
    backlog bigint   Waiting messages; for DLQ: stored messages
    rate    double   Change per second over the long window; for DLQ: new dead letters
    flagged boolean! Whether a DLQ or RETRY backlog is growing
""")

FILTERED: Final = columns("""
    cluster      string! Cluster
    group        string! Consumer group
    topic        string! Topic that the group filters
    expression   string  Filter: tags or SQL
    lag          bigint! Unread messages before the filter
    tried        bigint  Unread messages tested against the filter (`--sample-tags`); null if none
    matched      bigint  Tested messages that match the filter
    lag_matching bigint  Estimated unread messages that match
    lag_low      bigint  Lower bound of the estimate, 95 % confidence
    lag_high     bigint  Upper bound of the estimate, 95 % confidence
""")

HOLDER: Final = columns("""
    cluster         string!   Cluster
    group           string!   Consumer group
    topic           string!   Topic
    broker_name     string!   Broker
    queue_id        int!      Queue
    lag             bigint    Unread messages at the last snapshot
    client_id       string    Member that reads this queue; null if none
    cached_count    int       Messages pulled but not yet consumed
    cached_mib      int       Size of these messages in MiB
    last_pull_ts    timestamp Last pull
    last_consume_ts timestamp Last consumption
    locked          boolean   Whether the member holds the lock of the queue (ordered consumption)
""")
"""Answers of the members of the worst groups; empty without `--deep`."""

HISTORY: Final = columns("""
    cluster         string!    Cluster
    group           string!    Consumer group
    ts              timestamp! Snapshot
    lag             bigint!    Unread messages of the group
    max_offset      bigint!    Sum of m over its queues
    consumer_offset bigint!    Sum of c over its queues
""")
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
