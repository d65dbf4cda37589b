# SPDX-License-Identifier: Apache-2.0
"""Generate the reference pages of the Spark package."""

import typing
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from typing import Any, Final

import msgspec

from cometmq.insight.judge import STATES, Status
from cometmq.runtime.settings.fields import split_hint
from cometmq.spark.collect.exposition import COLLECTOR_FAMILIES
from cometmq.spark.lag import columns as lag_columns
from cometmq.spark.lag.output.prometheus import CATALOGUE
from cometmq.spark.options.definitions import FIELDS, Options
from cometmq.spark.tables import columns as table_columns

from .markdown import code, notice, table

OPTION_HEAD: Final = ("option", "applies to", "type", "default", "meaning")
COLUMN_HEAD: Final = ("column", "type", "meaning")
REPORT_INTRO: Final[Mapping[str, str]] = {
    "group": "One row for each consumer group, worst first.",
    "queue": "One row for each group and queue, worst first.",
    "broker": "One row for each broker.",
    "skew": "Topics with uneven queues, most uneven first.",
    "silent": "Groups and topics without any activity, and the commands that delete them.",
    "backlog": "Retries, dead letters, delayed and half messages.",
    "filtered": "Groups with a filter, and an estimate of the unread messages that match.",
    "holder": "Queues of the worst groups and their readers: `report --deep`.",
    "history": "Lag curves of the worst groups.",
}


def options_page() -> str:
    lines = ["# Options of the Spark data source", "", notice("spark-options"), ""]
    lines += [
        'For `spark.read.format("rocketmq")`, and for `readStream`, `write` and `writeStream`.',
        "Names are case-insensitive; the error for an unknown name suggests the closest one.",
        "[The guide](../guides/spark.md) shows how to use them.",
        "",
        *table(OPTION_HEAD, _option_rows()),
    ]
    return "\n".join(lines) + "\n"


def _option_rows() -> Iterator[tuple[str, ...]]:
    hints = typing.get_type_hints(Options, include_extras=True)
    for info in FIELDS:
        kind, facts = split_hint(hints[info.name])
        description = next(it for it in facts if isinstance(it, str))
        metas = [it for it in facts if isinstance(it, msgspec.Meta)]
        applies = next(meta.extra["applies"] for meta in metas if meta.extra)
        yield (
            code(info.encode_name),
            applies,
            _type_name(kind) + _bounds(metas),
            _default(info.default),
            description,
        )


def _type_name(kind: Any) -> str:
    if isinstance(kind, type) and issubclass(kind, Enum):
        return " or ".join(code(member.value) for member in kind)
    return {"str": "text", "int": "number", "bool": "true or false"}[kind.__name__]


def _bounds(metas: Iterable[msgspec.Meta]) -> str:
    for meta in metas:
        if meta.ge is not None:
            return f" from {meta.ge}" + (f" to {meta.le}" if meta.le is not None else "")
    return ""


def _default(value: Any) -> str:
    if isinstance(value, bool):
        return code(str(value).lower())
    return "" if value is None or value == "" else code(str(value))


def columns_page() -> str:
    lines = ["# Columns of the Spark tables and of lag reports", "", notice("spark-columns"), ""]
    lines += [
        "A type with `!` is never null. Times are UTC. The schema version of snapshots and reports",
        f"is {table_columns.SCHEMA_VERSION}; it changes when the meaning of a column changes.",
    ]
    read = 'Returned by `spark.read.format("rocketmq")`: see [the guide](../guides/spark.md).'
    lines += _columns("Table `messages`", read, table_columns.MESSAGES)
    written = 'Accepted by `write.format("rocketmq")` and `writeStream`; other columns are errors.'
    lines += _columns("Rows to be written", written, table_columns.INPUT)
    for name, columns in table_columns.TABLES.items():
        lines += _columns(
            f"Table `{name}`",
            f"Returned with the option `table={name}`; part of snapshots.",
            columns,
        )
    for name, intro in REPORT_INTRO.items():
        lines += _columns(f"Report: `{name}`", intro, lag_columns.REPORT_TABLES[name])
    lines += ["", "## Statuses", "", "Worst first. A group has the worst status of its queues.", ""]
    lines += table(
        ("status", "severity", "meaning"),
        (
            (code(status), severity, STATES[Status(status)].meaning)
            for status, severity in lag_columns.STATUSES.items()
        ),
    )
    return "\n".join(lines) + "\n"


def metrics_page() -> str:
    lines = ["# Metrics of lag reports", "", notice("spark-metrics"), ""]
    lines += [
        "Written by `cometmq-lag report --textfile` or `--pushgateway`:",
        "[lag reports](../guides/lag-report.md).",
        "The collector, `cometmq-lag snapshot --interval`, shows them on its `--http-port`,",
        "together with its own figures, those of its event loop and of its process.",
        "",
    ]
    own = ((code(one.name), _kind(one.name), "", one.help) for one in COLLECTOR_FAMILIES)
    written = ((code(one.name), one.kind, ", ".join(one.labels), one.meaning) for one in CATALOGUE)
    lines += table(("metric", "type", "labels", "meaning"), [*written, *own])
    return "\n".join(lines) + "\n"


def _kind(name: str) -> str:
    return "counter" if name.endswith("_total") else "gauge"


def _columns(title: str, intro: str, columns: table_columns.Columns) -> list[str]:
    rows = ((code(c.name), c.type + "!" * c.required, c.meaning) for c in columns)
    return ["", f"## {title}", "", intro, "", *table(COLUMN_HEAD, rows)]
