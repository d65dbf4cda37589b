# SPDX-License-Identifier: Apache-2.0
"""Explains each group, and sums up the report in a verdict: what an operator reads first.

HTML and Markdown both take their wording from here. The verdict says that no unread data is in
danger only if no group loses data, no time until a loss is known, no disk is filling up, and no
figure that this depends on is unknown.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

import msgspec

from cometmq.insight.words import NOTHING, counted, lasting
from cometmq.spark.lag.columns import BAD, Report
from cometmq.spark.lag.output.words import Row, View, advice, reason, time_left

_UNSURE: Final = frozenset({"UNKNOWN", "NEVER_COMMITTED"})
_WELL: Final = frozenset({"OK", "BROADCAST"})
_HOUR_S: Final = 3600


class Finding(msgspec.Struct, frozen=True):
    """A group of the report, with an explanation."""

    row: Row
    why: str
    """What is wrong, with supporting figures."""
    advice: str
    """What to check first; empty if no action is needed."""

    @property
    def is_bad(self) -> bool:
        return self.row["severity"] in BAD

    @property
    def worst_queue(self) -> str:
        return f"{self.row['worst_topic']} · {self.row['worst_broker_name']} · queue " + str(
            self.row["worst_queue_id"]
        )


def findings(report: Report) -> list[Finding]:
    queues: defaultdict[tuple[str, str, str], list[Row]] = defaultdict(list)
    for row in report.rows("queue"):
        queues[row["cluster"], row["group"], row["status"]].append(row)
    return [
        Finding(row, reason(view), advice(view))
        for row in report.rows("group")
        for view in [View(row, report.header, queues[row["cluster"], row["group"], row["status"]])]
    ]


def verdict(report: Report) -> str:
    """Summarize the report in one sentence."""
    rows = report.rows("group")
    if not rows:
        return "No consumer group was seen." + _not_reached(report)
    bad = [row for row in rows if row["severity"] in BAD]
    losing = sum(row["severity"] == "critical" for row in bad)
    total = len(rows)
    if losing:
        verb = "loses" if losing == 1 else "lose"
        more = f"; {len(bad) - losing} more need a look" if len(bad) > losing else ""
        return f"{counted(losing, 'group')} of {total} {verb} unread data or will soon{more}."
    danger = _danger(report, rows)
    if bad:
        safe = "no unread data is in danger"
        return f"{len(bad)} of {counted(total, 'group')} need a look; {danger or safe}."
    return _without_trouble(rows) + (f"; {danger}." if danger else ".")


def _without_trouble(rows: Sequence[Row]) -> str:
    total = len(rows)
    well = sum(row["status"] in _WELL for row in rows)
    if well == total:
        return "The only group is well" if total == 1 else f"All {total} groups are well"
    rest = []
    for status, words in (("CATCHING_UP", "catching up"), ("UNKNOWN", "without a known status")):
        number = sum(row["status"] == status for row in rows)
        if number:
            rest.append(f"{number} {'is' if number == 1 else 'are'} {words}")
    are = "is" if well == 1 else "are"
    return f"{well} of {counted(total, 'group')} {are} well, {' and '.join(rest)}"


def _danger(report: Report, rows: Sequence[Row]) -> str:
    """Name the nearest danger to unread data, or what is unknown; empty if there is none."""
    horizon_s = report.header.risk_hours * _HOUR_S
    losses = [row for row in rows if _may_lose(row, horizon_s)]
    if losses:
        first = min(losses, key=lambda row: (row["time_to_loss_s"], row["group"]))
        left = first["time_to_loss_s"]
        when = f"in {lasting(left)}" if left else "now"
        return f"the first unread data is deleted {when} ({first['group']})"
    brokers = report.rows("broker")
    filling = [(it["disk_full_s"], it["broker_name"]) for it in brokers]
    left, name = min((it for it in filling if it[0] is not None), default=(horizon_s + 1, ""))
    if left <= horizon_s:
        return f"the disk of {name} is full" + (f" in {lasting(left)}" if left else "")
    if report.header.unreachable:
        return _not_reached(report).removeprefix(" ").removesuffix(".")
    unsure = sum(_is_unsure(row) for row in rows)
    if unsure:
        return f"too little is known about {counted(unsure, 'group')} to rule out a loss"
    return ""


def _may_lose(row: Row, horizon_s: float) -> bool:
    """Return whether the group loses data if nothing changes; a healthy group only counts if the
    loss is within `horizon_s`.
    """
    left = row["time_to_loss_s"]
    if left is None:
        return False
    return bool(left < horizon_s or (row["severity"] in BAD and time_left(left) != NOTHING))


def _is_unsure(row: Row) -> bool:
    is_unread_of_unknown_age = bool(row["lag_sum"]) and row["lag_time_s"] is None
    return row["status"] in _UNSURE or is_unread_of_unknown_age or row["coverage"] < 1


def _not_reached(report: Report) -> str:
    names = report.header.unreachable
    return f" {counted(len(names), 'broker')} did not answer." if names else ""
