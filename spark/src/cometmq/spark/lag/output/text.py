# SPDX-License-Identifier: Apache-2.0
"""Numbers and durations as people read them: short, whatever the number."""

import math
from datetime import UTC, datetime
from typing import Final, TypeGuard

_UNITS: Final = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
_MAGNITUDES: Final = "kMGTPE"
_WHOLE_MAX: Final = 10_000
"""Below it a short count is exact."""
_RATE_MIN: Final = 0.001
_YEAR_S: Final = 365 * 86_400
_YEARS_MAX: Final = 10
NOTHING: Final = "\N{EN DASH}"


def count(value: int | None) -> str:
    """Return a count with separators: 12,345."""
    return NOTHING if value is None else f"{value:,}"


def short_count(value: float | None) -> str:
    """Return a count of at most about four digits: 12.3 k, 4.1 M."""
    if not _is_known(value):
        return NOTHING
    if abs(value) < _WHOLE_MAX:
        return f"{value:,.0f}"
    for mark in _MAGNITUDES:
        value /= 1000
        if abs(value) < 999.5:  # else it would be rounded to 1e+03
            return f"{value:.3g} {mark}"
    return f"{value:,.0f} {_MAGNITUDES[-1]}"


def rate(value: float | None) -> str:
    """Return messages a second: 0.25/s, 140/s."""
    if not _is_known(value):
        return NOTHING
    if 0 < abs(value) < _RATE_MIN:
        return f"{'>' if value < 0 else '<'} {math.copysign(_RATE_MIN, value)}/s"
    return f"{value:,.0f}/s" if abs(value) >= 10 else f"{value or 0:.2g}/s"


def duration(seconds: float | None) -> str:
    """Return a duration in its two largest units: 2 h 10 min."""
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
    """Whether it is a number; a line through odd points may have an endless slope."""
    return value is not None and math.isfinite(value)


def time_left(seconds: float | None) -> str:
    """Return a time to come; nobody plans for what is more than a year away."""
    return NOTHING if seconds is None or seconds > _YEAR_S else duration(seconds)


def percent(ratio: float | None) -> str:
    """Return a ratio as percent: 99.2 %."""
    return NOTHING if ratio is None else f"{100 * ratio:.3g} %"


def moment(when: datetime | None) -> str:
    """Return a moment in UTC, to the minute."""
    return NOTHING if when is None else when.astimezone(UTC).strftime("%Y-%m-%d %H:%M")


def change(value: int | None) -> str:
    """Return a difference with its sign."""
    return NOTHING if value is None else f"{value:+,}"


def plural(number: int, noun: str) -> str:
    """Return a number with its noun: 1 group, 2 groups."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
