# SPDX-License-Identifier: Apache-2.0
"""Formats numbers and durations for readers."""

import math
from datetime import UTC, datetime
from typing import Final, TypeGuard

_UNITS: Final = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
_MAGNITUDES: Final = "kMGTPE"
_WHOLE_MAX: Final = 10_000
"""Smaller counts are printed exactly."""
_RATE_MIN: Final = 0.001
_YEAR_S: Final = 365 * 86_400
_YEARS_MAX: Final = 10
NOTHING: Final = "\N{EN DASH}"


def count(value: int | None) -> str:
    """Format a count with separators: 12,345."""
    return NOTHING if value is None else f"{value:,}"


def short_count(value: float | None) -> str:
    """Format a count with about four digits: 12.3 k, 4.1 M."""
    if not _is_known(value):
        return NOTHING
    if abs(value) < _WHOLE_MAX:
        return f"{value:,.0f}"
    for mark in _MAGNITUDES:
        value /= 1000
        if abs(value) < 999.5:  # larger values would print as 1e+03
            return f"{value:.3g} {mark}"
    return f"{value:,.0f} {_MAGNITUDES[-1]}"


def rate(value: float | None) -> str:
    """Format messages per second: 0.25/s, 140/s."""
    if not _is_known(value):
        return NOTHING
    if 0 < abs(value) < _RATE_MIN:
        return f"{'>' if value < 0 else '<'} {math.copysign(_RATE_MIN, value)}/s"
    return f"{value:,.0f}/s" if abs(value) >= 10 else f"{value or 0:.2g}/s"


def duration(seconds: float | None) -> str:
    """Format a duration in its two largest units: 2 h 10 min."""
    if not _is_known(seconds):
        return NOTHING
    if seconds > _YEARS_MAX * _YEAR_S:
        return f"over {_YEARS_MAX} years"
    whole = round(seconds)
    for index, (unit, size) in enumerate(_UNITS):
        if whole >= size:
            first, rest = divmod(whole, size)
            if index + 1 == len(_UNITS) or first >= 10:
                return f"{first} {unit}"
            next_unit, next_size = _UNITS[index + 1]
            second = rest // next_size
            return f"{first} {unit} {second} {next_unit}" if second else f"{first} {unit}"
    return "0 s"


def _is_known(value: float | None) -> TypeGuard[float]:
    """Return whether the value is a finite number; a regression may yield an infinite slope."""
    return value is not None and math.isfinite(value)


def time_left(seconds: float | None) -> str:
    """Format a time until an event; more than a year counts as never."""
    if seconds is None or seconds > _YEAR_S:
        return NOTHING
    return duration(seconds) if seconds > 0 else "now"


def percent(ratio: float | None) -> str:
    """Format a ratio: 99.2 %."""
    return NOTHING if ratio is None else f"{100 * ratio:.3g} %"


def moment(when: datetime | None) -> str:
    """Format a time in UTC, to the minute."""
    return NOTHING if when is None else when.astimezone(UTC).strftime("%Y-%m-%d %H:%M")


def change(value: int | None) -> str:
    return NOTHING if value is None else f"{value:+,}"


def plural(number: int, noun: str) -> str:
    """Format a number with its noun: 1 group, 2 groups."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
