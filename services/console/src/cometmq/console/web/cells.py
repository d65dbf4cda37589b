# SPDX-License-Identifier: Apache-2.0
"""Formats values as HTML. Unknown, empty and zero look different."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from enum import Enum
from math import isfinite
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from cometmq.insight.model import Since, Unknown, Unreachable
from cometmq.insight.times import is_known
from cometmq.insight.words import count, lasting, latency, percent, rate, sized
from cometmq.remoting.visible import visible


def templates(folder: Path, names: Mapping[str, object]) -> Environment:
    """Return the templates of a folder; `names` and the macros of `macros.html`, as `m`, are
    defined in all of them. One that uses a missing value raises UndefinedError.
    """
    found = Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        auto_reload=False,
        finalize=_finalized,
        lstrip_blocks=True,
        trim_blocks=True,
        undefined=StrictUndefined,
    )
    found.globals.update(names)
    found.globals["m"] = found.get_template("macros.html").module
    return found


def escaped(value: Any) -> Markup:
    """Escape a value for HTML, with control characters written out; `Markup` is left unchanged."""
    return value if type(value) is Markup else escape(visible(str(value)))


def _finalized(value: Any) -> Any:
    """Return what a template shows of a value; Jinja escapes it then."""
    is_done = isinstance(value, Markup | StrictUndefined)
    return value if is_done else visible(str(value))


def pause(since: Since | None) -> str:
    """Return since when a group reads nothing; empty if it reads."""
    return "" if since is None else moment(since.ms) + (" or earlier" if since.is_bound else "")


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
    "number": count,
    "rate": rate,
    "size": sized,
    "percent": percent,
    "duration": lasting,
    "latency": latency,
    "loss": lambda value: value if isinstance(value, str) else lasting(value),
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
