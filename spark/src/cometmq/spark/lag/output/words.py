# SPDX-License-Identifier: Apache-2.0
"""The sentences that explain the status of a group.

A sentence must agree with the figures beside it, which are sums over the group. If only some of a
group's queues have its status, the sentence says so and gives the figures of these queues.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from cometmq.insight.judge import STATES, Status
from cometmq.insight.words import NOTHING, count, counted, lasting, moment, rate
from cometmq.spark.lag.columns import Header

_YEAR_S: Final = 365 * 86_400

Row = Mapping[str, Any]
"""One row of a table of the report."""

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


def behind(row: Row) -> str:
    """Format how far the group is behind, for example `12 unread, the oldest for 3 min`."""
    text = f"{count(row['lag_sum'])} unread"
    if row["lag_time_s"]:
        text += f", the oldest for {lasting(row['lag_time_s'])}"
    return text


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
