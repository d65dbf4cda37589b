# SPDX-License-Identifier: Apache-2.0
"""Generate docs/reference/metrics.md: every metric family of every program."""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from cometmq.broker.exposition import rocketmq5_metrics as native
from cometmq.broker.exposition import rocketmq_exporter_metrics as exporter
from cometmq.broker.exposition.metrics import (
    FAMILIES,
    FIGURE_FAMILIES,
    LIMIT_FAMILIES,
    REPLICATION_FAMILIES,
    STORE_FAMILIES,
)
from cometmq.broker.exposition.monitoring import COPIES_FAMILIES, ELECTION_FAMILIES
from cometmq.elector.metrics import FAMILIES as ELECTOR_FAMILIES
from cometmq.exporter.metrics import CLIENT_FAMILIES, OWN_FAMILIES
from cometmq.namesrv.metrics import NAMESRV_FAMILIES
from cometmq.operator.metrics import FAMILIES as OPERATOR_FAMILIES
from cometmq.runtime.limits import LIMIT_TABLE_FAMILIES
from cometmq.runtime.metrics import Family, build_families, loop_families
from cometmq.runtime.metrics.transport import TRANSPORT_FAMILIES
from cometmq.txn_checker.metrics import FAMILIES as TXN_CHECKER_FAMILIES

from .markdown import code, notice, table

INTRODUCTION: Final = """\
Programs serve these metrics at `/metrics` on their HTTP port (`adminHttpPort`; `--http-port` of
`standalone`), together with the usual `process_*` and `python_gc_*` families of the process.

Every counter starts at 0 when the program starts. The same port serves `/healthz` (whether the
process is healthy), `/readyz` (status 200 or 503, with the reason for each failed check as JSON;
the [runbooks](../runbooks/README.md) explain the reasons) and `/settings` (each value and its
source).

A broker also shows its metrics under the names of rocketmq-exporter and RocketMQ 5
(`metricsExporterNames`, `metricsNativeNames`). A metric with a row for each topic or group shows at
most `metricsRowsMax` rows. [Monitoring](../guides/monitoring.md) describes how to collect and show
metrics.
"""


class Group(NamedTuple):
    """Metric families that a component exports with the same labels."""

    title: str
    labels: tuple[str, ...]
    families: Sequence[Family[Any]]
    note: str = ""


GROUPS: Final = (
    Group("Broker", ("cluster", "broker"), (*FAMILIES, *FIGURE_FAMILIES, *LIMIT_FAMILIES)),
    Group("Replication", ("cluster", "broker"), REPLICATION_FAMILIES),
    Group(
        "Broker group with failover", ("cluster", "broker"), (*COPIES_FAMILIES, *ELECTION_FAMILIES)
    ),
    Group("Store", ("cluster", "broker"), STORE_FAMILIES),
    Group("Name server", (), NAMESRV_FAMILIES),
    Group("Txn-checker", (), TXN_CHECKER_FAMILIES),
    Group(
        "Elector",
        (),
        ELECTOR_FAMILIES,
        "The Kubernetes operator shows them for each group that it manages, with the label"
        " `group_namespace`; `group` is the `brokerName` of the group.",
    ),
    Group("Exporter", (), OWN_FAMILIES),
    Group("Kubernetes operator", (), OPERATOR_FAMILIES),
    Group(
        "Limits of brokers and name servers",
        ("server",),
        LIMIT_TABLE_FAMILIES,
        "[Limits](limits.md) lists the values of `limit`.",
    ),
    Group("Connections of every server", ("server",), TRANSPORT_FAMILIES),
    Group("Event loop of every program", (), (*loop_families(), *build_families())),
    Group("Names of rocketmq-exporter", ("cluster", "broker"), exporter.FAMILIES),
    Group(
        "Names of rocketmq-exporter: the broker's state", ("cluster",), exporter.RUNTIME_FAMILIES
    ),
    Group(
        "Names of rocketmq-exporter: consumers",
        (),
        CLIENT_FAMILIES,
        "`cometmq exporter` shows them, because only consumers know these figures:"
        " [consumers](../guides/monitoring.md#consumers).",
    ),
    Group("Names of RocketMQ 5", ("cluster", "node_type", "node_id"), native.FAMILIES),
)


def page() -> str:
    """Return the page with the catalogue of metrics."""
    lines = ["# Metrics", "", notice("metrics"), "", *INTRODUCTION.split("\n")]
    for group in GROUPS:
        lines += [f"## {group.title}", ""]
        if group.labels:
            *others, last = map(code, group.labels)
            names = f"labels {', '.join(others)} and {last}" if others else f"label {last}"
            lines += [f"All have the {names}.", ""]
        if group.note:
            lines += [group.note, ""]
        rows = (
            (code(family.name), family.kind, ", ".join(map(code, family.labels)), family.help)
            for family in group.families
        )
        lines += [*table(("metric", "kind", "labels", "what it says"), rows), ""]
    return "\n".join(lines).rstrip("\n") + "\n"
