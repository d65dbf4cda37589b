# SPDX-License-Identifier: Apache-2.0
"""Computes when brokers delete old files: in the hours of `deleteWhen`, in their time zone."""

from datetime import UTC, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo

Span = tuple[datetime, datetime]

DELETE_WHEN: Final = "04"
"""RocketMQ's default."""
_STEP: Final = timedelta(minutes=15)
"""Every zone's offset from UTC is a multiple of this."""


def hours_of(delete_when: str | None) -> frozenset[int]:
    """Parse a list of hours such as `04;16`, without entries at which no broker deletes.

    Such entries are numbers above 23, for example 99 for never, and invalid texts, which CometMQ
    rejects when it starts and RocketMQ when it compares them with the hour.
    """
    words = (delete_when or DELETE_WHEN).split(";")
    hours = {int(word) for word in words if word.strip().isascii() and word.strip().isdigit()}
    return frozenset(hour for hour in hours if hour < 24)


def deletion_spans(
    delete_when: str | None, zone: ZoneInfo, *, begin: datetime, end: datetime
) -> list[Span]:
    """List the intervals between `begin` and `end` in which files may be deleted, in order.

    A broker checks every few seconds while the local hour matches, so the whole hour counts. An
    hour that DST skips does not occur on that day; an hour that DST repeats occurs twice.
    """
    hours = hours_of(delete_when)
    spans: list[Span] = []
    moment = begin.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    while hours and moment < end:
        if moment.astimezone(zone).hour in hours:
            if spans and spans[-1][1] == moment:
                spans[-1] = (spans[-1][0], moment + _STEP)
            else:
                spans.append((moment, moment + _STEP))
        moment += _STEP
    return spans
