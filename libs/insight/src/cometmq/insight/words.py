# SPDX-License-Identifier: Apache-2.0
"""Numbers, times and commands for people: the sentences of findings, the console, the command line
and Spark's reports. A figure that is None or no finite number is a dash.
"""

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final, TypeGuard

from cometmq.insight.times import is_known
from cometmq.remoting.visible import command

__all__ = [
    "NOTHING", "change", "command", "count", "counted", "lasting", "latency", "listed", "moment",
    "percent", "rate", "short", "sized",
]  # fmt: skip

NOTHING: Final = "\N{EN DASH}"
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_MAGNITUDES: Final = "kMGTPE"
_EXACT_BELOW: Final = 10_000
_RATE_MIN: Final = 0.001
_PERIODS: Final = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
_YEARS_S: Final = 10 * 365 * 86_400


def _is_number(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value)


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: 1 message, 1,000 messages."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def listed(names: Sequence[str], count_max: int = 5) -> str:
    """Return names separated by commas; if there are more than `count_max`, the first ones and the
    number of the others.
    """
    if len(names) <= count_max:
        return ", ".join(names)
    return f"{', '.join(names[:count_max])} and {len(names) - count_max:,} others"


def count(value: float | None) -> str:
    """Return a count with separators: 12,345."""
    if not _is_number(value):
        return NOTHING
    return f"{value:,.1f}" if value != int(value) else f"{int(value):,}"


def change(value: int | None) -> str:
    """Return a difference with its sign: +12,345."""
    return NOTHING if value is None else f"{value:+,}"


def short(value: float | None) -> str:
    """Return a count with about four digits: 9,999, 12.3 k, 4.1 M."""
    if not _is_number(value):
        return NOTHING
    if abs(value) < _EXACT_BELOW:
        return f"{value:,.0f}"
    for mark in _MAGNITUDES:
        value /= 1_000
        if abs(value) < 999.5:  # larger values would be shown as 1e+03
            return f"{value:.3g} {mark}"
    return f"{value:,.0f} {_MAGNITUDES[-1]}"


def rate(value: float | None) -> str:
    """Return a number per second: 0.25/s, 140/s, 12.3 k/s."""
    if not _is_number(value):
        return NOTHING
    if 0 < abs(value) < _RATE_MIN:
        return f"{'above -' if value < 0 else 'below '}{_RATE_MIN}/s"
    return f"{short(value)}/s" if abs(value) >= 10 else f"{value or 0:.2g}/s"


def sized(size: float | None) -> str:
    """Return a number of bytes with its unit: 1.5 GiB."""
    if not _is_number(size):
        return NOTHING
    value, unit = float(size), 0
    while abs(value) >= 1_024 and unit < len(_UNITS) - 1:
        value /= 1_024
        unit += 1
    return f"{value:,.0f} {_UNITS[unit]}" if unit == 0 else f"{value:,.1f} {_UNITS[unit]}"


def percent(ratio: float | None) -> str:
    """Return a share of 1 in percent: 99.2 %."""
    return f"{100 * ratio:.3g} %" if _is_number(ratio) else NOTHING


def lasting(seconds: float | None) -> str:
    """Return a duration in its two largest units: 4 min 10 s; milliseconds below a second."""
    if not _is_number(seconds):
        return NOTHING
    if seconds < 0:
        return f"-{lasting(-seconds)}"
    if seconds < 1:
        return latency(seconds) if seconds else "0 s"
    if seconds > _YEARS_S:
        return "over 10 years"
    parts: list[str] = []
    rest = int(seconds)
    for unit, unit_s in _PERIODS:
        number, rest = divmod(rest, unit_s)
        if number or parts:
            parts.append(f"{number} {unit}" if number else "")
    return " ".join(filter(None, parts[:2]))


def latency(seconds: float) -> str:
    """Return how long something took; brokers measure nothing shorter than 1 ms."""
    if seconds < 0.001:
        return "below 1 ms"
    return f"{seconds * 1_000:.0f} ms" if seconds < 1 else lasting(seconds)


def moment(at: float | datetime | None) -> str:
    """Return a time, in ms since 1970 or with a zone, as UTC to the second."""
    if at is None:
        return NOTHING
    if not isinstance(at, datetime):
        if not is_known(at):
            return f"{at} ms since 1970"
        at = datetime.fromtimestamp(at / 1_000, UTC)
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")
