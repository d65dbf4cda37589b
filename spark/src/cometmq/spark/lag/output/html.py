# SPDX-License-Identifier: Apache-2.0
"""report.html: one self-contained file without scripts, worst groups first.

Sections follow an operator's questions: how bad is it, which groups and why, how long until data
is lost, then everything else.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Final

from cometmq.insight.judge import STATES, Status
from cometmq.insight.words import (
    NOTHING,
    change,
    count,
    counted,
    lasting,
    moment,
    percent,
    rate,
    short,
)
from cometmq.spark.lag.columns import STATUSES, Report
from cometmq.spark.lag.output import plots, runbook
from cometmq.spark.lag.output.findings import Finding
from cometmq.spark.lag.output.sections import Section
from cometmq.spark.lag.output.summary import Summary
from cometmq.spark.lag.output.words import Row, sentence, time_left

GROUPS_MAX: Final = 500
WORST: Final = 3
BARS_MAX: Final = 12
MEMBERS_MAX: Final = 5
_NUMBERS: Final = {
    "unread", "oldest", "in", "out", "ETA", "queue", "messages", "change", "its rate", "mean",
    "Gini", "disk", "full in", "keeps", "deleted in", "last report", "week", "tested", "held",
    "matching (estimate)",
}  # fmt: skip
_UNTITLED: Final = {"group", "status", "", "why", "meaning", "command"}
"""Columns whose cells need no title on a narrow screen."""
Curves = Mapping[tuple[str, str], plots.Points]


def html_report(summary: Summary) -> bytes:
    report, found = summary.report, summary.findings
    curves = _curves(report)
    css = files(__package__).joinpath("report.css").read_text(encoding="utf-8")
    parts = [
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>Lag report {moment(report.header.snapshot_ts)}</title>",
        f"<style>\n{css}</style>\n</head>\n<body>",
        *_head(summary),
        *_worst(found, curves, report),
        *_loss(found),
        *_groups(found, curves),
    ]
    for section in summary.sections:
        parts += _section(section)
    parts += _steps(found)
    parts += _legend(report)
    parts.append("</body>\n</html>\n")
    return "\n".join(parts).encode()


def _curves(report: Report) -> Curves:
    curves = defaultdict(list)
    for row in report.rows("history"):
        curves[row["cluster"], row["group"]].append((row["ts"], row["lag"]))
    in_order = {key: sorted(points) for key, points in curves.items()}
    return {key: points for key, points in in_order.items() if points[0][0] < points[-1][0]}


def _head(summary: Summary) -> Iterator[str]:
    report, header = summary.report, summary.report.header
    clusters = sorted({row["cluster"] for row in report.rows("broker")})
    yield f"<h1>Lag report · {escape(', '.join(clusters) or 'no broker')}</h1>"
    yield f'<p class="verdict">{escape(summary.verdict)}</p>'
    yield (
        f'<p class="facts">{moment(header.snapshot_ts)} · '
        f"{counted(header.snapshot_count, 'snapshot')} · status over the last "
        f"{lasting(header.window_s)} · {percent(header.coverage)} of the queues seen</p>"
    )
    if header.unreachable:
        names = escape(", ".join(header.unreachable))
        yield f'<p class="alarm">Not reached: {names}. Their groups may be worse than shown.</p>'
    counts = [(status, header.status_counts.get(status, 0)) for status in STATUSES]
    badges = " ".join(_badge(status, f"{number} {status}") for status, number in counts if number)
    yield f'<p class="counts">{badges}</p>'


def _badge(status: str, text: str) -> str:
    return f'<span class="badge {STATUSES[status]}">{escape(text.replace("_", " "))}</span>'


def _worst(found: Sequence[Finding], curves: Curves, report: Report) -> Iterator[str]:
    bad = [one for one in found if one.is_bad][:WORST]
    if not bad:
        return
    brokers = {(it["cluster"], it["broker_name"]): it for it in report.rows("broker")}
    holders = _holders(report)
    yield '<h2>Look at these first</h2>\n<div class="cards">'
    for one in bad:
        row = one.row
        broker = brokers.get((row["cluster"], row["worst_broker_name"]))
        yield from _card(one, curves, broker, holders.get((row["cluster"], row["group"]), ()))
    yield "</div>"


def _holders(report: Report) -> Mapping[tuple[str, str], Sequence[str]]:
    """Return the client ids of the members that `--deep` has seen, by group."""
    found: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for row in report.rows("holder"):
        if row["client_id"]:
            found[row["cluster"], row["group"]].add(row["client_id"])
    return {key: sorted(names) for key, names in found.items()}


def _card(
    one: Finding, curves: Curves, broker: Row | None, holders: Sequence[str]
) -> Iterator[str]:
    row = one.row
    name = escape(row["group"])
    yield f'<article class="card {row["severity"]}">'
    yield f"<h3>{name} {_badge(row['status'], row['status'])}</h3>"
    yield f'<p class="why">{escape(one.why)}</p>'
    yield f'<p class="advice">{escape(one.advice)}</p>'
    yield "<dl>"
    for label, value in (
        ("unread", short(row["lag_sum"])),
        ("oldest", lasting(row["lag_time_s"])),
        ("arrive", rate(row["rate_in"])),
        ("consumed", rate(row["rate_out"])),
        ("members", "" if row["members"] is None else count(row["members"])),
    ):
        if value:
            yield f"<div><dt>{label}</dt><dd>{value}</dd></div>"
    yield "</dl>"
    points = curves.get((row["cluster"], row["group"]))
    if points:
        yield '<p class="axis">unread messages</p>'
        yield plots.lag_curve(points, row["severity"], f"Unread messages of {row['group']}")
    yield f'<p class="where">Worst queue: {escape(one.worst_queue)}</p>'
    if row["since_ts"] and "Behind since" not in one.why:
        bound = "at least " if row["since_at_least"] else ""
        yield f'<p class="where">Behind since {bound}{moment(row["since_ts"])}</p>'
    if holders:
        names = ", ".join(holders[:MEMBERS_MAX])
        more = f" and {len(holders) - MEMBERS_MAX} more" if len(holders) > MEMBERS_MAX else ""
        yield f'<p class="where">Members: {escape(names)}{more}</p>'
    yield f"<pre><code>{escape(runbook.command(row, broker))}</code></pre>"
    place = runbook.anchor(row)
    if place is not None:
        title = runbook.STEPS[place][0].replace("_", " ")
        yield f'<p class="where"><a href="#runbook-{place}">Runbook: {title}</a></p>'
    yield "</article>"


def _loss(found: Sequence[Finding]) -> Iterator[str]:
    rows = sorted(
        (
            (one.row["group"], one.row["time_to_loss_s"], one.row["severity"])
            for one in found
            if one.is_bad and one.row["time_to_loss_s"] is not None
        ),
        key=lambda row: (row[1], row[0]),
    )
    if not rows:
        return
    yield "<h2>When unread data is deleted</h2>"
    yield "<p>If nothing changes: the time left until a group loses its first message.</p>"
    yield '<div class="bars">'
    yield plots.loss_bars(rows[:BARS_MAX], "Time until unread data is deleted, by group")
    yield "</div>"


def _groups(found: Sequence[Finding], curves: Curves) -> Iterator[str]:
    head = ("group", "status", "unread", "", "oldest", "deleted in", "last report", "week", "why")
    yield "<h2>All groups</h2>\n<p>Worst first. Changes refer to unread messages.</p>"
    yield from _table(head, (_group_cells(one, curves) for one in found[:GROUPS_MAX]))
    if len(found) > GROUPS_MAX:
        yield f"<p>{len(found) - GROUPS_MAX:,} more groups are in report.json.</p>"


def _group_cells(one: Finding, curves: Curves) -> Sequence[str]:
    row = one.row
    points = curves.get((row["cluster"], row["group"]))
    line = plots.spark_line(points, row["severity"], "lag over time") if points else ""
    return (
        f"<strong>{escape(row['group'])}</strong>",
        _badge(row["status"], row["status"]),
        ("≤ " if row["filtered"] else "") + count(row["lag_sum"]),
        line,
        lasting(row["lag_time_s"]),
        time_left(row["time_to_loss_s"]),
        change(row["lag_change_last"]),
        change(row["lag_change_week"]),
        escape(one.why),
    )


def _section(section: Section) -> Iterator[str]:
    yield f"<h2>{escape(section.title)}</h2>\n<p>{escape(section.meaning)}</p>"
    yield from _table(section.head, (_cells(section.head, row) for row in section.rows))
    if section.left_out:
        yield f"<p>{section.left_out:,} more are in report.json.</p>"


def _cells(head: Sequence[str], row: Sequence[str]) -> Iterator[str]:
    for title, text in zip(head, row, strict=True):
        if title == "status":
            yield _badge(text, text)
        elif title == "command":
            yield f"<code>{escape(text)}</code>"
        else:
            yield escape(text)


def _table(head: Sequence[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    marks = [' class="num"' if title in _NUMBERS else "" for title in head]
    titles = "".join(f"<th{mark}>{title}</th>" for title, mark in zip(head, marks, strict=True))
    yield f"<table>\n<thead><tr>{titles}</tr></thead>\n<tbody>"
    # On a narrow screen, each cell is a line of its own, with its title.
    labels = ["" if title in _UNTITLED else f' data-t="{title}"' for title in head]
    for row in rows:
        parts = zip(marks, labels, row, strict=True)
        cells = (f"<td{mark}{label}>{cell}</td>" for mark, label, cell in parts)
        yield f"<tr>{''.join(cells)}</tr>"
    yield "</tbody></table>"


def _steps(found: Sequence[Finding]) -> Iterator[str]:
    """Yield the steps of the runbook for the statuses of this report."""
    places = dict.fromkeys(place for one in found if (place := runbook.anchor(one.row)) is not None)
    if not places:
        return
    yield '<h2>Runbook</h2>\n<p>What to do about a group, by status.</p>\n<dl class="steps">'
    for place in places:
        title, steps = runbook.STEPS[place]
        text = re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(steps, quote=False))
        yield f'<dt id="runbook-{place}">{title.replace("_", " ")}</dt><dd>{text}.</dd>'
    yield "</dl>"


def _legend(report: Report) -> Iterator[str]:
    header = report.header
    yield "<details><summary>Meaning of each status</summary>"
    yield from _table(
        ("status", "meaning"),
        (
            (_badge(status, status), escape(sentence(STATES[Status(status)].meaning)))
            for status in STATUSES
        ),
    )
    yield "</details>"
    zone = header.timezone
    yield (
        f"<footer>A group counts as OK up to {count(header.allowed_lag)} unread messages or "
        f"{lasting(header.allowed_age_s)} behind; it is at risk within "
        f"{lasting(3600 * header.risk_hours)} of losing data. Times are UTC; brokers delete by "
        f"the clock of {escape(zone)}. {NOTHING}: unknown or not applicable. "
        f"Report {escape(header.run_id)}, schema version {header.schema_version}.</footer>"
    )
