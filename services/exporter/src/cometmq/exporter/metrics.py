# SPDX-License-Identifier: Apache-2.0
"""The exporter's metrics: the figures of clients under rocketmq-exporter's names, and its own.

Compatibility: names, labels and kinds (all gauges) are those of RMQMetricsCollector.java in
apache/rocketmq-exporter; the figures and their order of labels are those of
ClientMetricTaskRunnable.java there. `caddr` and `localaddr` of `rocketmq_group_count` hold the
addresses and the client ids of all members, as in `buildClientAddresses` of
MetricsCollectTask.java. As in the broker's metrics, the help texts are our own: the Java texts only
repeat the names.
"""

from collections.abc import Callable, Iterable
from typing import Final

from cometmq.exporter.rounds import ExporterStats, Figures
from cometmq.runtime.metrics import Family, Row, counter, gauge, labelled_counter, labelled_gauge

_CLIENT: Final = ("clientAddr", "clientId", "group", "topic")
_FIGURES: Final = (
    ("_fail_msg_count", "consume_failed_msgs", "Messages that failed in the last hour."),
    ("_fail_msg_tps", "consume_failed_tps", "Messages that fail per second."),
    ("_ok_msg_tps", "consume_ok_tps", "Messages consumed per second."),
    ("_rt", "consume_rt", "Mean duration of a call of the listener, in milliseconds."),
    ("r_pull_rt", "pull_rt", "Mean duration of a pull, in milliseconds."),
    ("r_pull_tps", "pull_tps", "Messages pulled per second."),
)
"""The end of a name after `rocketmq_client_consume`, the figure of a consumer, and its meaning."""


def _of_clients(figure: str) -> Callable[[Figures], Iterable[Row]]:
    return lambda found: [(row[:4], getattr(row.status, figure)) for row in found.rows]


CLIENT_FAMILIES: Final[tuple[Family[Figures], ...]] = (
    *(
        labelled_gauge(f"rocketmq_client_consume{end}", text, _CLIENT, _of_clients(figure))
        for end, figure, text in _FIGURES
    ),
    labelled_gauge(
        "rocketmq_group_count",
        "Connected members of the group (`groupCountEnable`).",
        ("caddr", "localaddr", "group"),
        lambda found: [(row[:3], row.member_count) for row in found.groups],
    ),
)


def _left_out(stats: ExporterStats) -> Iterable[Row]:
    left = stats.figures.left_out
    return [
        (("groups",), left.groups),
        (("clients",), left.clients),
        (("late",), left.late),
        (("rows",), left.rows),
    ]


OWN_FAMILIES: Final[tuple[Family[ExporterStats], ...]] = (
    labelled_counter(
        "cometmq_exporter_rounds_total",
        "Rounds: `complete`, `late` (not ended in `collectTimeout`), or `failed` (no list of"
        " brokers).",
        ("end",), lambda s: [((end,), count) for end, count in s.rounds.items()],
    ),
    gauge(
        "cometmq_exporter_last_round_seconds", "Duration of the last round.",
        lambda s: s.last_round_s,
    ),
    gauge(
        "cometmq_exporter_last_round_timestamp_seconds",
        "Time at which the last round ended; 0 before the first end.",
        lambda s: s.last_round_at_s,
    ),
    labelled_gauge(
        "cometmq_exporter_broker_up", "1 if the broker answered in the last round.", ("broker",),
        lambda s: [((name,), float(not why)) for name, why in s.figures.brokers.items()],
    ),
    gauge(
        "cometmq_exporter_groups", "Consumer groups found in the last round.",
        lambda s: s.figures.group_count,
    ),
    gauge(
        "cometmq_exporter_clients", "Members of these groups found in the last round.",
        lambda s: s.figures.client_count,
    ),
    counter(
        "cometmq_exporter_clients_asked_total", "Questions to consumers.", lambda s: s.asked_count
    ),
    counter(
        "cometmq_exporter_clients_failed_total", "Questions that a consumer did not answer.",
        lambda s: s.failed_count,
    ),
    labelled_gauge(
        "cometmq_exporter_left_out",
        "Left out of the last round: groups beyond `groupsMax`, clients beyond `clientsMax` or not"
        " asked in time (`late`), rows beyond `metricsRowsMax`.",
        ("kind",), _left_out,
    ),
)  # fmt: skip
