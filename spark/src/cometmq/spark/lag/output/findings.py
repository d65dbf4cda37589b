# SPDX-License-Identifier: Apache-2.0
"""Explains each group in words: the sentences that an operator reads first.

HTML and Markdown both take their wording from here.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from cometmq.spark.lag.columns import BAD, Report
from cometmq.spark.lag.output.text import count, duration, moment, plural, rate

Row = Mapping[str, Any]
"""One row of a table of the report."""

_TTL_CAUSES: Final = {
    "time": "they get older than the broker keeps them",
    "disk": "the broker's disk is filling",
    "lost": "deletion has reached them already",
}


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
    return [_finding(row) for row in report.table("group").to_pylist()]


def verdict(report: Report) -> str:
    """Summarize the report in one sentence."""
    header = report.header
    total = sum(header.status_counts.values())
    if total == 0:
        return "No consumer group was seen."
    bad = [found for found in findings(report) if found.is_bad]
    if not bad:
        return f"{_all(total)} well."
    losing = sum(found.row["severity"] == "critical" for found in bad)
    if not losing:
        return f"{len(bad)} of {plural(total, 'group')} need a look; no unread data is in danger."
    verb = "loses" if losing == 1 else "lose"
    return f"{plural(losing, 'group')} of {total} {verb} unread data or will soon" + (
        f"; {len(bad) - losing} more need a look." if len(bad) > losing else "."
    )


def _all(total: int) -> str:
    return "The only group is" if total == 1 else f"All {total} groups are"


def _finding(row: Row) -> Finding:
    why, advice = _WORDS[row["status"]]
    return Finding(row, why if isinstance(why, str) else why(row), advice)


def behind(row: Row) -> str:
    """Format how far the group is behind, for example `12 unread, the oldest for 3 min`."""
    text = f"{count(row['lag_sum'])} unread"
    if row["lag_time_s"]:
        text += f", the oldest for {duration(row['lag_time_s'])}"
    return text


def _speed(row: Row) -> str:
    return f"it reads {rate(row['rate_out'])} while {rate(row['rate_in'])} arrive"


def _since(row: Row) -> str:
    return f" Behind since {moment(row['since_ts'])} UTC." if row["since_ts"] else ""


def _growth(row: Row) -> str:
    return f", and {rate(row['rate_in'])} more arrive" if row["rate_in"] else ""


def _lost(row: Row) -> str:
    where = f"{row['worst_topic']}, {row['worst_broker_name']}, queue {row['worst_queue_id']}"
    return f"{count(row['lost_sum'])} messages were deleted before they were read ({where})."


def _at_risk(row: Row) -> str:
    cause = _TTL_CAUSES.get(row["ttl_model"], "the broker deletes old files")
    state = _speed(row) if row["online"] else "no member is connected to read them"
    return f"Unread messages are deleted in {duration(row['time_to_loss_s'])}: {cause}; {state}."


def _stalled(row: Row) -> str:
    return f"Members are connected, but nothing is consumed{_growth(row)}.{_since(row)}"


def _stopped(row: Row) -> str:
    return f"No member is connected{_growth(row)}.{_since(row)}"


def _slow(row: Row) -> str:
    return f"Cannot keep up with its producers: {_speed(row)}."


def _catching_up(row: Row) -> str:
    return f"Catches up in {duration(row['eta_catchup_s'])}: {_speed(row)}."


_WORDS: Final[Mapping[str, tuple[str | Callable[[Row], str], str]]] = {
    "LOST": (
        _lost,
        "Add consumers or raise fileReservedTime now; deleted messages cannot be recovered.",
    ),
    "AT_RISK": (
        _at_risk,
        "Start or add consumers; to gain time, raise fileReservedTime or give the disk space.",
    ),
    "REWIND": (
        "Its position jumped back: messages that were read already are read again.",
        "Ask who reset the offset; if nobody did, look for members with an old offset file.",
    ),
    "STALLED": (
        _stalled,
        "Look at the members' threads: a listener hangs, or one message fails forever.",
    ),
    "STOPPED": (_stopped, "Start its consumers, or delete the group if it has retired."),
    "NEVER_COMMITTED": (
        "Members are connected, but the group has never committed an offset.",
        "Check whether its listener ever returns, and whether it may commit offsets.",
    ),
    "SLOW": (_slow, "Add consumers or threads, up to one consumer for each queue."),
    "CATCHING_UP": (_catching_up, ""),
    "UNKNOWN": ("Too few recent snapshots to determine a status.", ""),
    "BROADCAST": ("Broadcasting: each member keeps its own offsets; brokers store none.", ""),
    "OK": ("Keeps up.", ""),
}
