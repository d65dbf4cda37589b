# SPDX-License-Identifier: Apache-2.0
"""The dashboards: their panels, and the queries behind them.

`make dashboards` writes them to the templates of the command line. Every query must return data
from a running suite: `make monitoring-test` executes each of them.
"""

from typing import Final

from monitoring.panels import Board, Panel, Query, Row, Variable

_B: Final = 'cluster=~"$cluster",broker=~"$broker"'
_RATE: Final = "[$__rate_interval]"
_CLUSTER: Final = Variable("cluster", "cometmq_store_writable", "cluster")
_BROKER: Final = Variable("broker", 'cometmq_store_writable{cluster=~"$cluster"}', "broker")


def _graph(title: str, unit: str, meaning: str, *queries: tuple[str, str]) -> Panel:
    return Panel(title, unit, meaning, tuple(Query(*query) for query in queries))


def _stat(title: str, unit: str, meaning: str, expr: str) -> Panel:
    return Panel(title, unit, meaning, (Query(expr),), kind="stat")


def _rate(metric: str, by: str = "broker", selector: str = _B) -> str:
    return f"sum by ({by}) (rate({metric}{{{selector}}}{_RATE}))"


def _quantile(share: float, metric: str, by: str = "broker", selector: str = _B) -> str:
    return (
        f"histogram_quantile({share}, sum by (le, {by})"
        f" (rate({metric}_bucket{{{selector}}}{_RATE})))"
    )


def _quantiles(metric: str, by: str = "broker", selector: str = _B) -> tuple[tuple[str, str], ...]:
    return tuple(
        (_quantile(share, metric, by, selector), f"{{{{{by}}}}} {name}")
        for share, name in ((0.5, "p50"), (0.99, "p99"))
    )


OVERVIEW: Final = Board(
    "cometmq-overview",
    "CometMQ: overview",
    "Is the suite well, how much does it carry, and who is behind?",
    (_CLUSTER, _BROKER),
    (
        Row("State", (
            _stat("Brokers that take messages", "none", "Masters whose store is writable.",
                  f"sum(cometmq_store_writable{{{_B}}})"),
            _stat("Live brokers", "none", "As the name servers see them.",
                  "max(cometmq_namesrv_brokers)"),
            _stat("Sends", "mps", "Messages stored per second.",
                  f"sum(rate(cometmq_put_messages_total{{{_B}}}{_RATE}))"),
            _stat("Deliveries", "mps", "Messages delivered per second.",
                  f"sum(rate(cometmq_get_messages_total{{{_B}}}{_RATE}))"),
            _stat("Backlog", "short", "Messages that groups have not consumed.",
                  f"sum(cometmq_group_lag_messages{{{_B}}})"),
            _stat("Fullest disk", "percentunit", "Brokers delete early above 85 %.",
                  f"max(cometmq_store_disk_used_ratio{{{_B}}})"),
        )),
        Row("Traffic", (
            _graph("Messages", "mps", "Stored (in) and delivered (out).",
                   (_rate("cometmq_put_messages_total"), "{{broker}} in"),
                   (_rate("cometmq_get_messages_total"), "{{broker}} out")),
            _graph("Bytes", "Bps", "Stored (in) and delivered (out).",
                   (_rate("cometmq_put_bytes_total"), "{{broker}} in"),
                   (_rate("cometmq_get_bytes_total"), "{{broker}} out")),
            _graph("Refused", "reqps", "Failed sends, and requests answered SYSTEM_BUSY.",
                   (_rate("cometmq_put_failed_total"), "{{broker}} sends"),
                   (_rate("cometmq_busy_total"), "{{broker}} busy"),
                   ("sum by (server) (rate(cometmq_requests_refused_total[$__rate_interval]))",
                    "{{server}} in flight")),
        )),
        Row("Latency", (
            _graph("Sends", "s", "From a put to its answer.", *_quantiles("cometmq_send_seconds")),
            _graph("Pulls", "s", "Pulls that were not held.", *_quantiles("cometmq_pull_seconds")),
            _graph("Event loop", "s", "How late timers fire: every request waits this long.",
                   *_quantiles("cometmq_loop_lag_seconds", "instance", 'instance=~".*"')),
        )),
        Row("Consumers", (
            _graph("Largest backlogs", "short", "Messages not consumed, ten groups.",
                   (f"topk(10, sum by (group, topic) (cometmq_group_lag_messages{{{_B}}}))",
                    "{{group}} of {{topic}}")),
            _graph("Oldest unread messages", "s", "Age of the oldest unread message, ten groups.",
                   (f"topk(10, max by (group, topic) (cometmq_group_lag_seconds{{{_B}}}))",
                    "{{group}} of {{topic}}")),
        )),
        Row("Processes", (
            _graph("Processor", "percentunit", "1 is one core; a program's loop uses one.",
                   ("rate(process_cpu_seconds_total[$__rate_interval])", "{{job}} {{instance}}")),
            _graph("Memory", "bytes", "Resident memory, page cache of files not included.",
                   ("process_resident_memory_bytes", "{{job}} {{instance}}")),
            _graph("Connections", "none", "Open connections of each server.",
                   ("sum by (server, instance) (cometmq_connections)", "{{server}} {{instance}}")),
            _graph("Releases", "none", "Programs by release; more than one during an upgrade.",
                   ("count by (version, python) (cometmq_build_info)",
                    "{{version}}, Python {{python}}")),
        )),
    ),
)  # fmt: skip

_E: Final = 'group=~"$broker"'
_BY_GROUP: Final = "(group_namespace, group)"
"""Only electors in the operator have the label `group_namespace`."""
GROUP: Final = Board(
    "cometmq-broker-group",
    "CometMQ: broker group and HA",
    "Roles, copies, elections and stores of a broker group. Members share `broker`; `instance`"
    " tells them apart.",
    (_CLUSTER, _BROKER),
    (
        Row("Roles", (
            _graph("Role", "none", "1 for the role of each member.",
                   (f"cometmq_group_role{{{_B}}} == 1", "{{broker}} {{instance}} {{role}}")),
            _graph("Epoch", "none", "Rises with every new master.",
                   (f"cometmq_group_epoch{{{_B}}}", "{{broker}} {{instance}}"),
                   (f"cometmq_elector_epoch{{{_E}}}", "record of {{group}}")),
            _graph("Has a master", "none", "0 while no master is open.",
                   (f"min by {_BY_GROUP} (cometmq_elector_has_master{{{_E}}})", "{{group}}")),
            _graph("Record reachable", "none", "0 while a program cannot read the record.",
                   (f"cometmq_group_record_reachable{{{_B}}}", "{{broker}} {{instance}}"),
                   (f"cometmq_elector_record_reachable{{{_E}}}", "elector {{instance}}")),
        )),
        Row("Copies", (
            _graph("Copies in sync", "none", "Of the leading member, its own included.",
                   (f"cometmq_group_in_sync_copies{{{_B}}}", "{{broker}} {{instance}}"),
                   (f"max by {_BY_GROUP} (cometmq_elector_members{{{_E}}})", "{{group}} wanted")),
            _graph("Behind the master", "bytes", "Log bytes that a slave lacks.",
                   (f"cometmq_group_behind_bytes{{{_B}}}", "{{broker}} {{instance}}"),
                   (f"cometmq_replica_behind_bytes{{{_B}}}", "{{broker}} {{instance}} fixed role")),
            _graph("Unconfirmed", "bytes", "Log bytes that copies in sync still lack.",
                   (f"cometmq_group_unconfirmed_bytes{{{_B}}}", "{{broker}} {{instance}}")),
            _graph("Slaves", "none", "Connected to a master of a fixed role.",
                   (f"cometmq_slaves{{{_B}}}", "{{broker}} {{instance}}")),
        )),
        Row("Elections", (
            _graph("Rounds", "ops", "Of the elector; 0 means that it hangs.",
                   ((f"sum by (group_namespace, group, instance)"
                    f" (rate(cometmq_elector_rounds_total{{{_E}}}{_RATE}))"),
                    "{{group}} {{instance}}")),
            _graph("Elections", "none", "In each step, by cause.",
                   ((f"sum by (group_namespace, group, cause)"
                    f" (increase(cometmq_elector_elections_total{{{_E}}}{_RATE}))"),
                    "{{group}} {{cause}}")),
            _graph("Last outage", "s", "From the loss of a master to the opening of the next.",
                   (f"max by {_BY_GROUP} (cometmq_elector_last_outage_seconds{{{_E}}})",
                    "{{group}}")),
            _graph("Requests of a switchover", "none", "Held, and passed on to the new master.",
                   (f"cometmq_group_held_requests{{{_B}}}", "{{instance}} held"),
                   (f"rate(cometmq_group_forwarded_requests_total{{{_B}}}{_RATE})",
                    "{{instance}} passed on")),
        )),
        Row("Store", (
            _graph("Syncs", "s", "Duration of a sync of the log.",
                   *_quantiles("cometmq_store_sync_seconds")),
            _graph("Waiting sends", "none", "For a sync or a copy.",
                   (f"cometmq_waiting_puts{{{_B}}}", "{{broker}} {{instance}}")),
            _graph("Not yet synced", "bytes", "Lost if the machine fails now, unless copied.",
                   ((f"cometmq_store_max_offset_bytes{{{_B}}}"
                    f" - cometmq_store_flushed_offset_bytes{{{_B}}}"), "{{broker}} {{instance}}")),
            _graph("Disk", "percentunit", "Fraction of the disk in use.",
                   (f"cometmq_store_disk_used_ratio{{{_B}}}", "{{broker}} {{instance}}")),
        )),
        Row("Upkeep", (
            _graph("Damaged", "bytes", "Log bytes known to be damaged.",
                   (f"cometmq_store_damaged_bytes{{{_B}}}", "{{broker}} {{instance}}")),
            _graph("Failed saves", "none", "Of tables and their journal.",
                   (f"increase(cometmq_config_save_failed_total{{{_B}}}{_RATE})",
                    "{{instance}} tables"),
                   (f"increase(cometmq_journal_failed_total{{{_B}}}{_RATE})",
                    "{{instance}} journal")),
            _graph("Native path", "reqps", "Sends and pulls that took the native path.",
                   (_rate("cometmq_native_sends_total"), "{{broker}} sends"),
                   (_rate("cometmq_native_pulls_total"), "{{broker}} pulls")),
            _graph("Open transactions", "none", "Followed by the txn-checker.",
                   ('cometmq_txn_open{broker=~"$broker"}', "{{broker}}")),
        )),
    ),
)  # fmt: skip

_T: Final = _B + ',topic=~"$topic"'
TOPIC: Final = Board(
    "cometmq-topic",
    "CometMQ: topic",
    "Traffic of a topic and the groups that read it.",
    (_CLUSTER, _BROKER, Variable("topic", f"rocketmq_producer_offset{{{_B}}}", "topic")),
    (
        Row("In", (
            _graph("Stored messages", "mps", "By topic.",
                   (_rate("cometmq_topic_put_messages_total", "topic", _T), "{{topic}}")),
            _graph("Stored bytes", "Bps", "By topic.",
                   (_rate("cometmq_topic_put_bytes_total", "topic", _T), "{{topic}}")),
            _graph("Size of a message", "bytes", "Average.",
                   ((f"{_rate('cometmq_topic_put_bytes_total', 'topic', _T)}"
                    f" / {_rate('cometmq_topic_put_messages_total', 'topic', _T)}"), "{{topic}}")),
            _graph("End", "short", "Messages ever stored, as rocketmq-exporter counts them.",
                   (f"sum by (topic) (rocketmq_producer_offset{{{_T}}})", "{{topic}}")),
        )),
        Row("Out", (
            _graph("Delivered messages", "mps", "By group.",
                   (_rate("cometmq_group_get_messages_total", "topic, group", _T),
                    "{{group}} of {{topic}}")),
            _graph("Delivered bytes", "Bps", "By group.",
                   (_rate("cometmq_group_get_bytes_total", "topic, group", _T),
                    "{{group}} of {{topic}}")),
        )),
        Row("Behind", (
            _graph("Backlog", "short", "Messages not consumed.",
                   (f"sum by (topic, group) (cometmq_group_lag_messages{{{_T}}})",
                    "{{group}} of {{topic}}")),
            _graph("Oldest unread message", "s", "Its age.",
                   (f"max by (topic, group) (cometmq_group_lag_seconds{{{_T}}})",
                    "{{group}} of {{topic}}")),
        )),
    ),
)  # fmt: skip

_G: Final = _B + ',group=~"$group"'
CONSUMERS: Final = Board(
    "cometmq-consumer-group",
    "CometMQ: consumer group",
    "How far a group is behind, and why.",
    (_CLUSTER, _BROKER, Variable("group", f"cometmq_group_lag_messages{{{_B}}}", "group")),
    (
        Row("Behind", (
            _graph("Backlog", "short", "Messages not consumed, by topic; retries have their own.",
                   (f"sum by (group, topic) (cometmq_group_lag_messages{{{_G}}})",
                    "{{group}} of {{topic}}")),
            _graph("Oldest unread message", "s", "Its age.",
                   (f"max by (group, topic) (cometmq_group_lag_seconds{{{_G}}})",
                    "{{group}} of {{topic}}")),
            _graph("Change of the backlog", "mps", "Above 0, the group falls behind.",
                   (f"sum by (group) (deriv(cometmq_group_lag_messages{{{_G}}}{_RATE}))",
                    "{{group}}")),
        )),
        Row("Work", (
            _graph("Delivered messages", "mps", "By topic.",
                   (_rate("cometmq_group_get_messages_total", "group, topic", _G),
                    "{{group}} of {{topic}}")),
            _graph("Members", "none", "Connected members; one broker sees all of them.",
                   (f"max by (group) (cometmq_group_members{{{_G}}})", "{{group}}")),
            _graph("Sent back", "short", "Messages of the last minute that listeners failed to"
                   " consume.",
                   (f"sum by (group) (rocketmq_send_back_nums{{{_G}}})", "{{group}}")),
        )),
        Row("Trouble", (
            _graph("Different subscriptions", "none", "Members that disagree miss messages: groups"
                   " with more than one subscription.",
                   (f"count(cometmq_group_mismatched_subscriptions{{{_G}}}) or vector(0)",
                    "groups")),
            _graph("Cold reads", "ops", "Pulls that had to read from the disk.",
                   (_rate("cometmq_cold_reads_total"), "{{broker}}")),
            _graph("Held pulls", "none", "Consumers that wait for messages.",
                   (f"cometmq_held_pulls{{{_B}}}", "{{broker}} {{instance}}")),
        )),
    ),
)  # fmt: skip

NAMESRV: Final = Board(
    "cometmq-namesrv",
    "CometMQ: name server",
    "What each name server knows; all should know the same.",
    (),
    (
        Row("Routes", (
            _graph("Live brokers", "none", "By name server.",
                   ("cometmq_namesrv_brokers", "{{instance}}")),
            _graph("Topics", "none", "By name server.",
                   ("cometmq_namesrv_topics", "{{instance}}")),
            _graph("Clusters", "none", "By name server.",
                   ("cometmq_namesrv_clusters", "{{instance}}")),
        )),
        Row("Registrations", (
            _graph("Accepted", "ops", "Brokers register twice a minute and after changes.",
                   (f"rate(cometmq_namesrv_registrations_total{_RATE})", "{{instance}}")),
            _graph("Stale", "ops", "Of brokers whose group has a later epoch.",
                   (f"rate(cometmq_namesrv_registrations_stale_total{_RATE})", "{{instance}}")),
            _graph("Dropped brokers", "none", "Brokers that vanished without unregistering.",
                   (f"increase(cometmq_namesrv_brokers_dropped_total{_RATE})",
                    "{{instance}} {{reason}}")),
        )),
        Row("Clients", (
            _graph("Requests", "reqps", "Most are for routes.",
                   (f'rate(cometmq_requests_total{{server="namesrv"}}{_RATE})', "{{instance}}")),
            _graph("Connections", "none", "Clients and brokers.",
                   ('cometmq_connections{server="namesrv"}', "{{instance}}")),
        )),
    ),
)  # fmt: skip

_N: Final = 'group_namespace=~"$namespace"'
_OPERATORS: Final = "and on (instance) cometmq_operator_acting"
OPERATOR: Final = Board(
    "cometmq-operator",
    "CometMQ: operator",
    "What the Kubernetes operator manages, and how much work that is. Figures of elections are on"
    " the dashboard of broker groups.",
    (Variable("namespace", "cometmq_brokergroup_pods", "group_namespace"),),
    (
        Row("State", (
            _stat("Acting operators", "none", "One acts, the others are standbys.",
                  "sum(cometmq_operator_acting)"),
            _stat("Broker groups", "none", "Of all namespaces.", "sum(cometmq_operator_groups)"),
            _stat("Groups that are not ready", "none", "Their conditions give the reason.",
                  f'count(cometmq_brokergroup_condition{{{_N},condition="Ready"}} == 0)'
                  " or vector(0)"),
            _stat("Topics and consumer groups", "none", "Declared as objects, of all namespaces.",
                  "sum(cometmq_operator_declared)"),
            _stat("Declared but not ready", "none", "Topics and consumer groups.",
                  'count(cometmq_operator_declared_ready{object_namespace=~"$namespace"} == 0)'
                  " or vector(0)"),
        )),
        Row("Groups", (
            _graph("Groups by condition", "none", "Groups for which the condition is True.",
                   (f"sum by (condition) (cometmq_brokergroup_condition{{{_N}}})",
                    "{{condition}}")),
            _graph("Pods", "none", "Ready, and wanted.",
                   (f"cometmq_brokergroup_pods_ready{{{_N}}}", "{{group_namespace}}/{{group}}"),
                   (f"cometmq_brokergroup_pods{{{_N}}}", "{{group_namespace}}/{{group}} wanted")),
            _graph("Missing copies", "none", "Members of a group that are not in sync.",
                   (f"cometmq_elector_members{{{_N}}} - cometmq_elector_in_sync{{{_N}}}",
                    "{{group_namespace}}/{{group}}")),
        )),
        Row("Work", (
            _graph("Passes", "ops", "Over broker groups, by result.",
                   (f"sum by (result) (rate(cometmq_operator_passes_total{_RATE}))",
                    "groups {{result}}"),
                   (f"sum by (kind, result) (rate(cometmq_operator_declared_passes_total{_RATE}))",
                    "{{kind}} {{result}}")),
            _graph("Duration of a pass", "s", "Over broker groups.",
                   *_quantiles("cometmq_operator_pass_seconds", "instance", 'instance=~".*"')),
            _graph("Requests to the API server", "reqps", "Without watches and records.",
                   ((f"sum by (method, status) (rate(cometmq_operator_api_requests_total{_RATE}))"),
                    "{{method}} {{status}}")),
        )),
        Row("Processes", (
            _graph("Processor", "percentunit", "1 is one core.",
                   (f"rate(process_cpu_seconds_total{_RATE}) {_OPERATORS}", "{{instance}}")),
            _graph("Memory", "bytes", "Resident memory.",
                   (f"process_resident_memory_bytes {_OPERATORS}", "{{instance}}")),
        )),
    ),
)  # fmt: skip

LAG_REPORTS: Final = Board(
    "cometmq-lag-reports",
    "CometMQ: lag reports",
    "The findings of `cometmq-lag report`, which predicts the loss of unread messages.",
    (
        Variable("cluster", "cometmq_lag_messages", "cluster"),
        Variable("group", 'cometmq_lag_messages{cluster=~"$cluster"}', "group"),
    ),
    (
        Row("Report", (
            _stat("Age", "s", "Time since the newest snapshot.",
                  "time() - max(cometmq_lag_report_timestamp_seconds)"),
            _stat("Coverage", "percentunit", "Queues with data.",
                  "min(cometmq_lag_report_coverage_ratio)"),
            _stat("Groups that will lose messages", "none", "Within a day.",
                  'count(cometmq_time_to_loss_seconds{cluster=~"$cluster"} < 86400) or vector(0)'),
        )),
        Row("Groups", (
            _graph("Unread messages", "short", "Twenty groups.",
                   ('topk(20, cometmq_lag_messages{cluster=~"$cluster",group=~"$group"})',
                    "{{group}}")),
            _graph("Oldest unread message", "s", "Its age.",
                   ('topk(20, cometmq_lag_age_seconds{cluster=~"$cluster",group=~"$group"})',
                    "{{group}}")),
            _graph("Time to loss", "s", "Until unread messages are deleted; twenty groups.",
                   (('bottomk(20, cometmq_time_to_loss_seconds{cluster=~"$cluster",'
                    'group=~"$group"})'), "{{group}}")),
        )),
        Row("States", (
            _graph("Groups by status", "none", "The report explains each status.",
                   ('sum by (status) (cometmq_group_status{cluster=~"$cluster"})', "{{status}}")),
            _graph("Lost messages", "short", "Deleted unread.",
                   ('cometmq_lost_messages_total{cluster=~"$cluster",group=~"$group"}',
                    "{{group}}")),
        )),
    ),
)  # fmt: skip

BOARDS: Final = (OVERVIEW, GROUP, TOPIC, CONSUMERS, NAMESRV, OPERATOR, LAG_REPORTS)
