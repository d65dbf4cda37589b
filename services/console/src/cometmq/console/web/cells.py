# SPDX-License-Identifier: Apache-2.0
"""Formats values for people, as text and HTML. Unknown, empty and zero look different."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from enum import Enum
from math import isfinite
from typing import Any, Final

from markupsafe import Markup

from cometmq.console.web.templating import escaped
from cometmq.insight.model import Since, Unknown, Unreachable
from cometmq.insight.times import is_known

_BINARY: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_DECIMAL: Final = ("", "k", "M", "G")


def number(value: float) -> str:
    """Return a count as text, with separators."""
    if value != int(value):
        return f"{value:,.1f}"
    return f"{int(value):,}"


def rate(value: float) -> str:
    """Return a rate per second as text."""
    if 0 < value < 0.1:
        return f"{value:.1g}/s" if value >= 0.001 else "below 0.001/s"
    for unit in _DECIMAL[:-1]:
        if abs(value) < 1_000 or (not unit and abs(value) < 10_000):
            digits = 0 if value == int(value) or abs(value) >= 100 else 1
            return f"{value:,.{digits}f}{unit and f' {unit}'}/s"
        value /= 1_000
    return f"{value:,.1f} {_DECIMAL[-1]}/s"


def size(value: float) -> str:
    """Return a number of bytes as text."""
    for unit in _BINARY[:-1]:
        if abs(value) < 1024:
            return f"{value:,.0f} {unit}" if unit == "B" else f"{value:,.1f} {unit}"
        value /= 1024
    return f"{value:,.1f} {_BINARY[-1]}"


def percent(value: float) -> str:
    """Return a share between 0 and 1 as a percentage."""
    return f"{value * 100:.1f} %" if 0 < value < 0.1 else f"{value * 100:.0f} %"


def duration(seconds: float) -> str:
    """Return a duration as text, in its two largest units."""
    if seconds < 0:
        return f"-{duration(-seconds)}"
    if seconds < 1:
        return latency(seconds) if seconds else "0 s"
    parts = []
    rest = int(seconds)
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        count, rest = divmod(rest, length)
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2])


def latency(seconds: float) -> str:
    """Return how long something took as text; brokers measure nothing shorter than 1 ms."""
    if seconds < 0.001:
        return "below 1 ms"
    return f"{seconds * 1_000:.0f} ms" if seconds < 1 else duration(seconds)


def pause(since: Since | None) -> str:
    """Return since when a group reads nothing; empty if it reads."""
    return "" if since is None else moment(since.ms) + (" or earlier" if since.is_bound else "")


def loss(value: float | str) -> str:
    """Return the time until a loss as text, or the word for none."""
    return value if isinstance(value, str) else duration(value)


def moment(ms: float) -> Markup:
    """Return a time in UTC as an HTML element, or the word `never` if it is unknown."""
    if not is_known(ms):
        return Markup('<span class="none">never</span>')
    at = datetime.fromtimestamp(ms / 1_000, UTC)
    return Markup('<time datetime="{}">{} UTC</time>').format(
        at.isoformat(timespec="milliseconds"), at.strftime("%Y-%m-%d %H:%M:%S")
    )


def flag(value: object) -> str:
    """Return a truth value as text."""
    return "yes" if value else "no"


def words(value: Any) -> str:
    """Return a value as text: yes or no, `key=value` pairs, or items with commas between them."""
    if isinstance(value, bool):
        return flag(value)
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={item}" for key, item in value.items())
    if isinstance(value, list | tuple | set | frozenset):
        return ", ".join(str(item) for item in value)
    return str(value.value) if isinstance(value, Enum) else str(value)


FORMATS: Final[Mapping[str, Callable[[Any], str]]] = {
    "text": words,
    "prose": words,
    "short": words,
    "id": words,
    "number": number,
    "rate": rate,
    "size": size,
    "percent": percent,
    "duration": duration,
    "latency": latency,
    "loss": loss,
    "moment": moment,
    "pause": pause,
    "flag": flag,
}
NUMERIC: Final = frozenset({"number", "rate", "size", "percent", "duration", "latency", "loss"})


def cell(value: Any, kind: str = "text") -> Markup:
    """Return a value as HTML; for an Unknown, the reason."""
    if value is None and kind != "pause":
        return Markup('<span class="none" title="not reported">&ndash;</span>')
    if isinstance(value, Unknown) and value.is_new:
        reason = escaped(value.reason)
        return Markup('<span class="none" title="{}">new</span>').format(reason)
    if isinstance(value, Unknown) and not value.is_silence:
        return Markup('<span class="unknown" title="{}">unknown</span>').format(
            escaped(value.reason)
        )
    if isinstance(value, Unknown | Unreachable):
        reason = escaped(value.reason)
        return Markup('<span class="bad" title="{}">no answer</span>').format(reason)
    if isinstance(value, float) and not isfinite(value):
        return cell(Unknown("the broker reports no number"))
    text = FORMATS[kind](value)
    if not text:
        return Markup('<span class="none">none</span>')
    return escaped(text)
