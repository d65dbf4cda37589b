# SPDX-License-Identifier: Apache-2.0
"""report.html: one self-contained file without scripts, worst groups first.

Sections follow an operator's questions: how bad is it, which groups and why, how long until data
is lost, then everything else.
"""

import shlex
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, Final

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from cometmq.insight import words
from cometmq.insight.judge import STATES, Status
from cometmq.insight.plots import Line, line_plot, spark_line
from cometmq.spark.lag.columns import STATUSES, Report, Row
from cometmq.spark.lag.output.findings import Finding, findings, sentence, time_left, verdict
from cometmq.spark.lag.output.sections import all_sections

GROUPS_MAX: Final = 500
WORST: Final = 3
BARS_MAX: Final = 12
MEMBERS_MAX: Final = 5
POINTS_MAX: Final = 240
NAME_CHARACTERS_MAX: Final = 24
_NUMBERS: Final = {
    "unread", "oldest", "in", "out", "ETA", "queue", "messages", "change", "its rate", "mean",
    "Gini", "disk", "full in", "keeps", "deleted in", "last report", "week", "tested", "held",
    "matching (estimate)",
}  # fmt: skip
_UNTITLED: Final = {"group", "status", "", "why", "meaning", "command"}
"""Columns whose cells need no title on a narrow screen."""
_GROUP_HEAD: Final = (
    "group", "status", "unread", "", "oldest", "deleted in", "last report", "week", "why",
)  # fmt: skip
Points = Sequence[tuple[int, int]]
"""A curve as (ms since 1970, unread messages)."""
Curves = Mapping[tuple[str, str], Points]


def html_report(report: Report) -> bytes:
    """Render the page; the same report always yields the same bytes."""
    found, curves = findings(report), _curves(report)
    places = dict.fromkeys(place for one in found if (place := anchor(one.row)) is not None)
    return (
        _template()
        .render(
            header=report.header,
            clusters=", ".join(sorted({row["cluster"] for row in report.rows("broker")})),
            verdict=verdict(report),
            cards=list(_cards(report, found, curves)),
            losses=_losses(found),
            group_head=_GROUP_HEAD,
            groups=[_group(one, curves) for one in found[:GROUPS_MAX]],
            groups_left_out=max(0, len(found) - GROUPS_MAX),
            sections=list(all_sections(report)),
            steps={place: STEPS[place] for place in places},
        )
        .encode()
    )


@cache
def _template() -> Template:
    here = files(__package__)
    page = Environment(
        autoescape=True, lstrip_blocks=True, trim_blocks=True, undefined=StrictUndefined
    )
    names = {name: getattr(words, name) for name in words.__all__}
    page.globals.update(
        names,
        css=Markup(here.joinpath("report.css").read_text(encoding="utf-8")),  # noqa: S704  # ours
        severities=STATUSES,
        meanings=[(name, sentence(STATES[Status(name)].meaning)) for name in STATUSES],
        numeric=lambda title: Markup(' class="num"') if title in _NUMBERS else "",
        label=lambda title: "" if title in _UNTITLED else Markup(' data-t="{}"').format(title),
        zip=zip,
    )
    return page.from_string(here.joinpath("report.html").read_text(encoding="utf-8"))


def _curves(report: Report) -> Curves:
    curves: defaultdict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    for row in report.rows("history"):
        curves[row["cluster"], row["group"]].append(
            (round(row["ts"].timestamp() * 1_000), row["lag"])
        )
    in_order = {key: _thinned(sorted(points)) for key, points in curves.items()}
    return {key: points for key, points in in_order.items() if points[0][0] < points[-1][0]}


def _thinned(points: Points) -> Points:
    """Reduce a curve to about one point per pixel, keeping the peaks and both ends."""
    each = -(-len(points) // POINTS_MAX)
    if each < 2:
        return points
    inner = points[1:-1]
    parts = (inner[first : first + each] for first in range(0, len(inner), each))
    return [points[0], *(max(part, key=lambda it: it[1]) for part in parts), points[-1]]


def _cards(report: Report, found: Sequence[Finding], curves: Curves) -> Iterator[dict[str, Any]]:
    brokers = {(it["cluster"], it["broker_name"]): it for it in report.rows("broker")}
    holders: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for it in report.rows("holder"):
        if it["client_id"]:
            holders[it["cluster"], it["group"]].add(it["client_id"])
    for one in [bad for bad in found if bad.is_bad][:WORST]:
        row = one.row
        key = row["cluster"], row["group"]
        figures = (
            ("unread", words.short(row["lag_sum"])),
            ("oldest", words.lasting(row["lag_time_s"])),
            ("arrive", words.rate(row["rate_in"])),
            ("consumed", words.rate(row["rate_out"])),
            ("members", "" if row["members"] is None else words.count(row["members"])),
        )
        since = ""
        if row["since_ts"] and "Behind since" not in one.why:
            since = f"{'at least ' if row['since_at_least'] else ''}{words.moment(row['since_ts'])}"
        yield {
            "row": row,
            "why": one.why,
            "advice": one.advice,
            "figures": [pair for pair in figures if pair[1]],
            "curve": _curve(curves[key], row["group"]) if key in curves else "",
            "worst_queue": one.worst_queue,
            "since": since,
            "members": words.listed(sorted(holders[key]), MEMBERS_MAX),
            "command": command_for(row, brokers.get((row["cluster"], row["worst_broker_name"]))),
            "runbook": anchor(row),
        }


def _curve(points: Points, group: str) -> Markup:
    plot = line_plot(
        [Line("unread", points)], points[0][0], points[-1][0],
        title=f"Unread messages of {group}", text=words.short,
    )  # fmt: skip
    return Markup(plot)  # noqa: S704  # it is escaped


def _losses(found: Sequence[Finding]) -> list[tuple[str, str, int, str]]:
    """Return name, time, length in percent and severity of the bars of groups that lose data."""
    rows = sorted(
        (one.row["time_to_loss_s"], one.row["group"], one.row["severity"])
        for one in found
        if one.is_bad and one.row["time_to_loss_s"] is not None
    )[:BARS_MAX]
    longest_s = max((left for left, *_ in rows), default=0) or 1
    return [
        (_shortened(name), words.lasting(left) if left > 0 else "now",
         round(100 * (left / longest_s)), severity)
        for left, name, severity in rows
    ]  # fmt: skip


def _shortened(name: str) -> str:
    """Shorten a name in the middle, to leave room for its bar."""
    if len(name) <= NAME_CHARACTERS_MAX:
        return name
    half = NAME_CHARACTERS_MAX // 2
    return f"{name[:half]}\N{HORIZONTAL ELLIPSIS}{name[1 - half :]}"


def _group(one: Finding, curves: Curves) -> Sequence[str]:
    row, points = one.row, curves.get((one.row["cluster"], one.row["group"]), ())
    line = spark_line([lag for _, lag in points], "lag over time") if points else ""
    return (
        row["group"],
        row["status"],
        ("≤ " if row["filtered"] else "") + words.count(row["lag_sum"]),
        Markup(line),  # noqa: S704  # it is escaped
        words.lasting(row["lag_time_s"]),
        time_left(row["time_to_loss_s"]),
        words.change(row["lag_change_last"]),
        words.change(row["lag_change_week"]),
        one.why,
    )


STEPS: Final[Mapping[str, tuple[str, str]]] = {
    "at-risk-by-time": (
        "AT_RISK, by time",
        (
            "First buy time: raise `fileReservedTime` of the running broker with"
            " `cometmq updateBrokerConfig -b ADDRESS -k fileReservedTime -v 120`, after checking"
            " that the disk has room. Then add members, up to one per queue"
        ),
    ),
    "at-risk-by-disk": (
        "AT_RISK, by disk",
        "See The disk is full and make space first. A longer `fileReservedTime` does not help",
    ),
    "lost": (
        "LOST",
        (
            "Act as for `AT_RISK`, to stop further losses. Deleted messages cannot be recovered:"
            " tell the owner of the group how many were lost, and from which queue"
        ),
    ),
    "stopped": (
        "STOPPED",
        (
            "Start the consumers of the group. If the group is no longer used, delete it with"
            " `cometmq group delete GROUP`; otherwise every report will list it"
        ),
    ),
    "stalled": (
        "STALLED",
        (
            "Take thread dumps of the group's members: `cometmq-lag report --deep --namesrv ADDRESS"
            " --out DIR` writes them to `DIR/threads` and lists queues without a reader; or use"
            " `cometmq consumerStatus -g GROUP -s`. If only one queue is stalled, either an orderly"
            " listener keeps failing, or one message never completes. See The lag of a group grows"
        ),
    ),
    "rewind": (
        "REWIND",
        (
            "Find out who reset the offsets. If they were not reset manually, either a member"
            " started with old offsets, or two clusters share one group. The status clears when the"
            " group reaches its old position again"
        ),
    ),
    "slow": (
        "SLOW",
        (
            "Add members or threads, up to one member per queue. Check `Hot queues` first: if one"
            " queue receives most of the messages, adding members does not help"
        ),
    ),
    "never-committed": (
        "NEVER_COMMITTED",
        (
            "Check whether the group's listener ever returns, and whether its members' account may"
            " commit offsets"
        ),
    ),
}
"""By anchor: the title and the steps. `code` is in backticks."""

_MORE_HOURS: Final = 48
"""Retention to add, to gain time."""


def anchor(row: Row) -> str | None:
    """Return the anchor of the steps for a group; None if it needs none."""
    if row["status"] == "AT_RISK":
        return "at-risk-by-disk" if row["ttl_model"] == "disk" else "at-risk-by-time"
    name = row["status"].lower().replace("_", "-")
    return name if name in STEPS else None


def command_for(row: Row, broker: Row | None) -> str:
    """Return a command to copy; `broker` is that of the group's worst queue."""
    group = shlex.quote(row["group"])
    if row["status"] in ("AT_RISK", "LOST") and row["ttl_model"] != "disk" and broker is not None:
        kept = broker["file_reserved_hours"]
        if kept is not None and broker["reachable"]:
            return (
                f"cometmq updateBrokerConfig -b {shlex.quote(broker['addr'])} -k fileReservedTime"
                f" -v {kept + _MORE_HOURS}"
            )
    if row["status"] == "STALLED":
        return f"cometmq consumerStatus -g {group} -s"
    if row["status"] in ("NEVER_COMMITTED", "REWIND"):
        return f"cometmq group describe {group}"
    return f"cometmq lag {group}"
