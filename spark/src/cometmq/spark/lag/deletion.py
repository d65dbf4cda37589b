# SPDX-License-Identifier: Apache-2.0
"""When brokers delete old files: the hours of `deleteWhen` in their zone, summer time included."""

from datetime import UTC, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo

Span = tuple[datetime, datetime]

DELETE_WHEN: Final = "04"
"""RocketMQ's default."""
_STEP: Final = timedelta(minutes=15)
"""All zones differ from UTC by a multiple of it."""


def hours_of(delete_when: str | None) -> frozenset[int]:
    """Return the hours of `04;16`; words that are none are left out, as brokers do."""
    words = (delete_when or DELETE_WHEN).split(";")
    hours = {int(word) for word in words if word.strip().isascii() and word.strip().isdigit()}
    return frozenset(hour for hour in hours if hour < 24)


def deletion_spans(
    delete_when: str | None, zone: ZoneInfo, *, begin: datetime, end: datetime
) -> list[Span]:
    """Return the spans of time between two moments in which files may be deleted, in order.

    A broker looks every few seconds while the local hour is one of them, so all of the hour
    counts. An hour that the clocks skip does not come on that day; one they repeat comes twice.
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
