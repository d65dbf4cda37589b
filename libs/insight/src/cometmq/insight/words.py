# SPDX-License-Identifier: Apache-2.0
"""Numbers, times and commands as the sentences of findings, the console and the command line show
them.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from cometmq.insight.times import is_known
from cometmq.remoting.visible import command

__all__ = ["command", "counted", "lasting", "listed", "moment", "sized"]

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_MINUTE_S: Final = 60
_HOUR_S: Final = 3_600
_DAY_S: Final = 86_400


def counted(count: int, noun: str) -> str:
    """Return a number with its noun: 1 message, 1,000 messages."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def listed(names: Sequence[str], count_max: int = 5) -> str:
    """Return names separated by commas; if there are more than `count_max`, the first ones and the
    number of the others.
    """
    if len(names) <= count_max:
        return ", ".join(names)
    return f"{', '.join(names[:count_max])} and {len(names) - count_max:,} others"


def lasting(seconds: float) -> str:
    """Return a duration in its two largest units: 4 min 10 s."""
    whole = max(0, int(seconds))
    if whole < _MINUTE_S:
        return f"{whole} s"
    for unit_s, name, part_s, part in (
        (_DAY_S, "d", _HOUR_S, "h"),
        (_HOUR_S, "h", _MINUTE_S, "min"),
        (_MINUTE_S, "min", 1, "s"),
    ):
        if whole >= unit_s:
            rest = whole % unit_s // part_s
            return f"{whole // unit_s} {name}" + (f" {rest} {part}" if rest else "")
    return f"{whole} s"


def sized(size: float) -> str:
    """Return a number of bytes with its unit: 1.5 GiB."""
    value, unit = float(size), 0
    while abs(value) >= 1_024 and unit < len(_UNITS) - 1:
        value /= 1_024
        unit += 1
    return f"{value:,.0f} {_UNITS[unit]}" if unit == 0 else f"{value:,.1f} {_UNITS[unit]}"


def moment(ms: int) -> str:
    """Return a time in UTC, to the second."""
    if not is_known(ms):
        return f"{ms} ms since 1970"
    return datetime.fromtimestamp(ms / 1_000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
