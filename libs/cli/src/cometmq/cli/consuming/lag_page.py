# SPDX-License-Identifier: Apache-2.0
"""The HTML page of `cometmq lag --report`: one file without scripts or external resources."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Final

from cometmq.cli.consuming.absent import absence
from cometmq.cli.verbs.pages import page
from cometmq.insight.words import counted

if TYPE_CHECKING:
    from cometmq.cli.consuming.lag_report import GroupRow, Report, TopicRow

MINUTE_S: Final = 60
HOUR_S: Final = 3_600
DAY_S: Final = 86_400

GENERATOR: Final = "cometmq lag"

_MARKS: Final = {"critical": "▲▲", "error": "▲", "warn": "◆", "info": "○", "ok": "✓"}
_COLUMNS: Final = (
    ("Status", ""),
    ("Group", ""),
    ("Unread", "number"),
    ("Oldest unread", "number"),
    ("Members", "number"),
    ("Lost", "number"),
    ("Dead letters", "number"),
)


def render(report: Report) -> str:
    """Return the page."""
    body = f"""<h1>Consumer groups</h1>
<p class="quiet">{escape(report.namesrv)}, {escape(report.made_at)}</p>
<p class="verdict">{_verdict(report)}</p>{_banner(report)}
{_table(report)}
{_meanings(report)}
<p class="quiet">This page shows the cluster at one moment. Whether a group catches up, and when
unread messages will be deleted, needs history: <code>cometmq-lag</code> of the Spark package
keeps snapshots and reports on them (docs/guides/lag-report.md).</p>"""
    return page(f"Lag of {counted(len(report.groups), 'consumer group')}", GENERATOR, body)


def _verdict(report: Report) -> str:
    count = len(report.groups)
    if not count:
        known = "is known to the brokers that answered" if report.missing_brokers else "exists"
        return f"No consumer group {known}."
    if not report.troubled:
        where = " on this page" if report.missing_brokers else ""
        return f"Every group{where} keeps up."
    verb = "needs" if report.troubled == 1 else "need"
    return f"{report.troubled:,} of {counted(count, 'group')} {verb} a look."


def _banner(report: Report) -> str:
    if not report.missing_brokers:
        return ""
    return (
        f'\n<p class="error"><strong>{escape(absence(report.missing_brokers))}</strong>: no answer,'
        " or no master. This page lacks the groups that only missing brokers know. Figures"
        " marked with \N{GREATER-THAN OR EQUAL TO} are without their messages.</p>"
    )


def _table(report: Report) -> str:
    if not report.groups:
        return ""
    head = "".join(f'<th scope="col" class="{name}">{title}</th>' for title, name in _COLUMNS)
    rows = "\n".join(map(_row, report.groups))
    return (
        f'<div class="wide"><table>\n<thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{rows}\n</tbody>\n</table></div>"
    )


def _row(row: GroupRow) -> str:
    status = row.status
    bound = "\N{GREATER-THAN OR EQUAL TO}\N{NO-BREAK SPACE}" if row.missing_brokers else ""
    oldest = age(row.behind_s)
    if row.behind_s is not None:
        oldest = bound + oldest
    offsets = (f"{bound}{row.lag:,}", oldest) if row.has_offsets else ("-", "-")
    counts = (row.members, row.lost, row.dead_letters)
    numbers = (*offsets, *("-" if row.error else f"{bound}{count:,}" for count in counts))
    titles = [title for title, name in _COLUMNS if name]
    cells = "".join(
        f'<td class="number" data-t="{title}">{number}</td>'
        for title, number in zip(titles, numbers, strict=True)
    )
    return (
        f'<tr><td class="status {status.severity}">'
        f'<span aria-hidden="true">{_MARKS[status.severity]}</span> {status.word}</td>'
        f'<th scope="row">{_group(row)}</th>{cells}</tr>'
    )


def _group(row: GroupRow) -> str:
    """Return the HTML of a group's name, which expands to the group's topics."""
    name = escape(row.group)
    reason = row.error or (absence(row.missing_brokers) if row.missing_brokers else "")
    reasons = [reason, *row.notes] if reason else row.notes
    why = "".join(f'<br><span class="quiet">{escape(it)}</span>' for it in reasons)
    if not row.topics:
        return name + why
    topics = "".join(_topic(it, is_complete=not row.missing_brokers) for it in row.topics)
    return f"<details><summary>{name}{why}</summary><ul>{topics}</ul></details>"


def _topic(row: TopicRow, *, is_complete: bool) -> str:
    queues = counted(row.queue_count, "queue")
    if not is_complete:
        queues += " of the brokers that answered"
    state = f"nothing unread in {queues}"
    if row.lag:
        state = f"{row.lag:,} unread in {queues}, the oldest for {age(row.behind_s)}"
    return f"<li>{escape(row.topic)}: {state}</li>"


def _meanings(report: Report) -> str:
    statuses = sorted({row.status for row in report.groups}, key=lambda status: status.rank)
    items = "".join(
        f'<li><span class="{status.severity}">{status.word}</span>: {status.meaning}</li>'
        for status in statuses
    )
    return f"<h2>Legend</h2>\n<ul>{items}</ul>" if items else ""


def age(seconds: float | None) -> str:
    """Return a duration in its two largest units."""
    if seconds is None:
        return "unknown"
    whole = int(seconds)
    if whole < MINUTE_S:
        return f"{seconds:.1f} s" if seconds else "0 s"
    if whole < HOUR_S:
        return f"{whole // MINUTE_S} min {whole % MINUTE_S} s"
    if whole < DAY_S:
        return f"{whole // HOUR_S} h {whole % HOUR_S // MINUTE_S} min"
    return f"{whole // DAY_S} d {whole % DAY_S // HOUR_S} h"
