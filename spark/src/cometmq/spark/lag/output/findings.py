# SPDX-License-Identifier: Apache-2.0
"""Explains each group, and sums up the report in a verdict: what an operator reads first.

A sentence must agree with the figures beside it, which are sums over the group. If only some of a
group's queues have its status, the sentence says so and gives the figures of these queues.

The verdict says that no unread data is in danger only if no group loses data, no time until a loss
is known, no disk is filling up, and no figure that this depends on is unknown.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from cometmq.insight.judge import BAD, STATES, Status
from cometmq.insight.words import NOTHING, count, counted, lasting, moment, rate
from cometmq.spark.lag.columns import Header, Report, Row

_YEAR_S: Final = 365 * 86_400
_UNSURE: Final = frozenset({"UNKNOWN", "NEVER_COMMITTED"})
_WELL: Final = frozenset({"OK", "BROADCAST"})
_HOUR_S: Final = 3600
_TTL_CAUSES: Final = {
    "time": "they get older than the broker keeps them",
    "disk": "the broker's disk is filling",
    "lost": "deletion has reached them already",
}


def time_left(seconds: float | None) -> str:
    """Format a time until an event; more than a year counts as never."""
    if seconds is None or seconds > _YEAR_S:
        return NOTHING
    return lasting(seconds) if seconds > 0 else "now"


class View(msgspec.Struct, frozen=True):
    """A group and those of its queues that have its status."""

    row: Row
    header: Header
    queues: Sequence[Row] = ()
    """Empty if the report has no rows for them."""

    @property
    def bad_count(self) -> int:
        """Number of queues with the status of the group; 0 if unknown."""
        return len(self.queues) or int(self.row["queues_bad"])

    @property
    def is_partial(self) -> bool:
        return 0 < self.bad_count < int(self.row["queues"])

    @property
    def part(self) -> str:
        """The affected queues, for example `1 of 4 queues`."""
        return f"{self.bad_count} of {counted(self.row['queues'], 'queue')}"

    def sum(self, name: str) -> float | None:
        """Add up a figure of the affected queues, or return that of the group."""
        if not self.is_partial:
            return self._figure(self.row, name)
        values = [value for it in self.queues if (value := self._figure(it, name)) is not None]
        return sum(values) if values else None

    def max(self, name: str) -> float | None:
        """Return the highest figure of the affected queues; None if one of them is unknown."""
        if not self.queues:
            return self._figure(self.row, name)
        values = [self._figure(it, name) for it in self.queues]
        return None if None in values else max(it for it in values if it is not None)

    @staticmethod
    def _figure(row: Row, name: str) -> float | None:
        value: float | None = row[name]
        return value

    def speed(self) -> str:
        """Format the rates of the affected queues; empty if one of them is unknown."""
        rates = (self.sum("rate_out"), self.sum("rate_in"))
        if None in rates:
            return ""
        return f"it reads {rate(rates[0])} while {rate(rates[1])} arrive"

    def gains(self) -> int | None:
        """Compare the printed rates: 1 if more is read than arrives, -1 if less, 0 if equal; None
        if unknown.
        """
        out, into = self.sum("rate_out"), self.sum("rate_in")
        if out is None or into is None:
            return None
        return 0 if rate(out) == rate(into) else (1 if out > into else -1)


def _since(view: View) -> str:
    if not view.row["since_ts"]:
        return ""
    bound = "at least " if view.row["since_at_least"] else ""
    return f" Behind since {bound}{moment(view.row['since_ts'])}."


def _growth(view: View) -> str:
    into = view.sum("rate_in")
    return f", and {rate(into)} more arrive" if into and into > 0 else ""


def _lost(view: View) -> str:
    row = view.row
    where = f"{row['worst_topic']}, {row['worst_broker_name']}, queue {row['worst_queue_id']}"
    if not row["lost_sum"]:
        window = lasting(view.header.window_s)
        return f"Within the last {window}, messages were deleted before they were read ({where})."
    if view.is_partial or view.bad_count > 1:
        where = f"most at risk: {where}"
    return f"{count(row['lost_sum'])} messages were deleted before they were read ({where})."


def _at_risk(view: View) -> str:
    row = view.row
    cause = _TTL_CAUSES.get(row["ttl_model"], "the broker deletes old files")
    state = "no member is connected to read them"
    if row["online"] or (row["rate_out"] or 0) > 0:
        state = view.speed() or "how fast the group reads is unknown"
        if view.is_partial:
            state = f"in {view.part} {state}"
    left = row["time_to_loss_s"]
    when = "are being deleted" if not left else f"are deleted in {lasting(left)}"
    return f"Unread messages {when}: {cause}; {state}."


def _stalled(view: View) -> str:
    where = "nothing is consumed"
    if view.is_partial:
        where = f"nothing is consumed in {view.part}"
    elif (view.row["rate_out"] or 0) > 0:
        where = "nothing is consumed in some of the queues"
    return f"Members are connected, but {where}{_growth(view)}.{_since(view)}"


def _stopped(view: View) -> str:
    who = "No member is connected"
    if view.row["online"]:
        who = f"No member reads {view.part if view.is_partial else 'some of the queues'}"
    out = view.row["rate_out"] or 0
    rest = "; what was read before is done" if out > 0 and not view.row["online"] else ""
    return f"{who}{rest}{_growth(view)}.{_since(view)}"


def _rewound(view: View) -> str:
    where = f" in {view.part}" if view.is_partial else ""
    return f"Its position jumped back{where}: messages that were read already are read again."


def _never_committed(view: View) -> str:
    where = f" in {view.part}" if view.is_partial else ""
    return f"Members are connected, but the group has never committed an offset{where}."


def _slow(view: View) -> str:
    where = f" in {view.part}" if view.is_partial else ""
    speed, gains = view.speed(), view.gains()
    if gains == -1:
        return f"Cannot keep up with its producers{where}: {speed}."
    window = lasting(view.header.window_s)
    text = f"Behind during the last {window}{where}"
    if gains == 1:
        return f"{text}: {speed}, too little to tell when it will have caught up."
    if gains == 0:
        return f"{text}, and not catching up: {speed}."
    return f"{text}, and not catching up."


def _catching_up(view: View) -> str:
    where = f" in {view.part}" if view.is_partial else ""
    eta = view.max("eta_catchup_s")
    when = "Is catching up" if eta is None else f"Catches up in {lasting(eta)}"
    speed = f": {view.speed()}" if view.gains() == 1 else ""
    return f"{when}{where}{speed}."


def _unknown(view: View) -> str:
    row, window = view.row, lasting(view.header.window_s)
    if row["coverage"] < 1:
        return "A broker did not answer, so the status of some queues is unknown."
    if any(it["lag"] is None for it in view.queues):
        return "No offset is committed, so it is unknown what the group has read."
    if not row["online"] and any(it["lag"] and it["rate_out"] for it in view.queues):
        return (
            f"No member is connected, but it read within the last {window}:"
            " the next snapshots show whether it has finished."
        )
    return "Too few recent snapshots to determine a status."


def _ok(view: View) -> str:
    row, header = view.row, view.header
    if not row["lag_sum"] or (row["lag_time_s"] or 0) <= header.allowed_age_s:
        return "Keeps up."
    return f"Keeps up: no queue was behind for all of the last {lasting(header.window_s)}."


REASONS: Final[Mapping[str, Callable[[View], str]]] = {
    "LOST": _lost,
    "AT_RISK": _at_risk,
    "REWIND": _rewound,
    "STALLED": _stalled,
    "STOPPED": _stopped,
    "NEVER_COMMITTED": _never_committed,
    "SLOW": _slow,
    "CATCHING_UP": _catching_up,
    "UNKNOWN": _unknown,
    "OK": _ok,
}
"""By status, what is wrong, with figures; for others, the meaning of the status says all."""


def reason(view: View) -> str:
    """Say why a group has its status."""
    status = Status(view.row["status"])
    found = REASONS.get(status)
    return sentence(STATES[status].meaning) if found is None else found(view)


def advice(view: View) -> str:
    """Say what to check first; empty if no action is needed."""
    status = Status(view.row["status"])
    if status is Status.AT_RISK and view.row["ttl_model"] == "disk":
        return (
            "Make space on the disk; a longer fileReservedTime does not help. Then add consumers."
        )
    return sentence(STATES[status].advice)


def sentence(words: str) -> str:
    """Write words of `judge` as a sentence."""
    return f"{words[:1].upper()}{words[1:]}." if words else ""


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
