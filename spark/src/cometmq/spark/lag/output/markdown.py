# SPDX-License-Identifier: Apache-2.0
"""report.md: the report for a terminal, a chat or a ticket."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from cometmq.insight.words import count, lasting, moment, percent
from cometmq.spark.lag.columns import Header
from cometmq.spark.lag.output.findings import Finding
from cometmq.spark.lag.output.sections import Section
from cometmq.spark.lag.output.summary import Summary
from cometmq.spark.lag.output.words import behind, time_left

GROUPS_MAX: Final = 200
WORST: Final = 3
_HEAD: Final = ("group", "status", "unread", "oldest", "deleted in", "why")


def markdown_report(summary: Summary) -> bytes:
    lines = ["# Lag report", "", f"**{summary.verdict}**", "", *_facts(summary.report.header)]
    lines += _worst(summary.findings)
    lines += _groups(summary.findings)
    for section in summary.sections:
        lines += _section(section)
    return ("\n".join(lines) + "\n").encode()


def _facts(header: Header) -> Iterator[str]:
    yield (
        f"Snapshot of {moment(header.snapshot_ts)} · {header.snapshot_count} snapshots · "
        f"status over {lasting(header.window_s)} · coverage {percent(header.coverage)}"
    )
    if header.unreachable:
        yield ""
        yield f"Not reached: {', '.join(_cell(name) for name in header.unreachable)}."


def _worst(found: Sequence[Finding]) -> Iterator[str]:
    bad = [one for one in found if one.is_bad][:WORST]
    if bad:
        yield from ("", "## Look at these first", "")
    for number, one in enumerate(bad, 1):
        group = _cell(str(one.row["group"]))
        yield f"{number}. **{group}** ({one.row['status']}): {_cell(one.why)}"
        yield f"   {behind(one.row)}; worst queue: {_cell(one.worst_queue)}."
        yield f"   {_cell(one.advice)}"


def _groups(found: Sequence[Finding]) -> Iterator[str]:
    yield from ("", "## Groups", "")
    yield from _table(_HEAD, (_group_cells(one) for one in found[:GROUPS_MAX]))
    if len(found) > GROUPS_MAX:
        yield ""
        yield f"{len(found) - GROUPS_MAX:,} more groups are in report.json."


def _group_cells(one: Finding) -> Sequence[str]:
    row = one.row
    return (
        str(row["group"]),
        str(row["status"]),
        count(row["lag_sum"]),
        lasting(row["lag_time_s"]),
        time_left(row["time_to_loss_s"]),
        one.why,
    )


def _section(section: Section) -> Iterator[str]:
    yield from ("", f"## {section.title}", "", section.meaning, "")
    yield from _table(section.head, section.rows)
    if section.left_out:
        yield ""
        yield f"{section.left_out:,} more are in report.json."


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(_cell(cell) for cell in row)} |"


def _cell(text: str) -> str:
    # Names may contain these characters, which must not end a cell or start emphasis or a link.
    for mark in ("\\", "|", "_", "*", "`", "<", "[", "]", "~"):
        text = text.replace(mark, f"\\{mark}")
    return " ".join(text.split())
