# SPDX-License-Identifier: Apache-2.0
"""Generate docs/reference/events.md: all events that the code logs, found in its syntax trees."""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from cometmq.runtime.meanings.events import MEANINGS

from .markdown import code, notice, table

ROOT: Final = Path(__file__).parents[2]
SOURCES: Final = ("libs/*/src", "services/*/src", "operator/src")
LEVELS: Final = ("error", "warning", "info", "debug")
_NO_FACTS: Final = frozenset({"exc_info"})
_FAILED: Final = frozenset({"failed", "_failed"})
"""The client's `Outages.failed(event, error, ...)` and its alias, which log a warning."""
_FAILED_LEVEL: Final = "failed"
_CALLS: Final = re.compile(rf"\.(?:{'|'.join([*LEVELS, *_FAILED])})\s*\(")
"""A module without a match logs nothing, so it need not be parsed."""

INTRODUCTION: Final = """\
Programs log each event with a fixed name and its facts: as JSON lines, or as text on a terminal
(`--log-json`, `--log-text`; `--log-level` sets the lowest level that is logged). Programs never log
an *info* event for each message.

- *error*: an operator must act;
- *warning*: something went wrong, and the program handled it;
- *info*: a change of state that an operator wants to see on a timeline;
- *debug*: details of single requests.

`...` stands for the facts that identify a broker, for the changed settings, for the topics and
queues of a callback, or for `down_s` and `failed_count` of an outage.
"""


class Event(NamedTuple):
    """A place in the code that logs an event."""

    name: str
    level: str
    facts: tuple[str, ...]
    module: str


def page() -> str:
    """Return the page with the catalogue of events."""
    lines = ["# Events", "", notice("events"), "", *INTRODUCTION.split("\n")]
    by_name: dict[str, list[Event]] = {}
    for event in sorted(all_events()):
        by_name.setdefault(event.name, []).append(event)
    rows = (_row(name, events) for name, events in by_name.items())
    head = ("event", "level", "facts", "meaning", "logged by")
    return "\n".join([*lines, *table(head, rows)]) + "\n"


@functools.cache
def all_events() -> tuple[Event, ...]:
    """Return every place in the code that logs an event."""
    return tuple(
        event
        for pattern in SOURCES
        for folder in sorted(ROOT.glob(pattern))
        for path in sorted(folder.rglob("*.py"))
        for event in _events_of(path, folder)
    )


def without_meaning() -> list[str]:
    """Return warnings and errors without a written meaning, and the meanings of unknown events."""
    events = all_events()
    loud = {event.name for event in events if event.level in {"error", "warning"}}
    ghosts = MEANINGS.keys() - {event.name for event in events}
    return sorted((loud - MEANINGS.keys()) | ghosts)


def _row(name: str, events: list[Event]) -> tuple[str, ...]:
    levels = [level for level in LEVELS if any(event.level == level for event in events)]
    facts = dict.fromkeys(fact for event in events for fact in event.facts)
    modules = dict.fromkeys(event.module for event in events)
    return (
        code(name),
        ", ".join(levels),
        ", ".join(code(fact) for fact in facts),
        MEANINGS.get(name, ""),
        ", ".join(code(module) for module in modules),
    )


def _events_of(path: Path, folder: Path) -> Iterator[Event]:
    module = ".".join(path.relative_to(folder).with_suffix("").parts)
    text = path.read_text(encoding="utf-8")
    for scope in ast.walk(ast.parse(text)) if _CALLS.search(text) else ():
        if isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _events_in(scope, module)


def _events_in(scope: ast.FunctionDef | ast.AsyncFunctionDef, module: str) -> Iterator[Event]:
    for call in ast.walk(scope):
        if not isinstance(call, ast.Call) or not (level := _level(call.func)):
            continue
        facts = [keyword.arg or "..." for keyword in call.keywords if keyword.arg not in _NO_FACTS]
        if level == _FAILED_LEVEL:
            level, facts = "warning", [*facts, "error"]
        for name in _names(call.args[0], scope) if call.args else ():
            yield Event(name, level, tuple(facts), module)


def _level(function: ast.expr) -> str:
    """Return the level at which a call such as `log.warning` or `outages.failed` logs, or ""."""
    if not isinstance(function, ast.Attribute):
        return ""
    if function.attr in _FAILED:
        return _FAILED_LEVEL
    receiver = function.value
    name = getattr(receiver, "attr", None) or getattr(receiver, "id", "")
    is_log = isinstance(name, str) and name.endswith("log")
    return function.attr if is_log and function.attr in LEVELS else ""


def _names(argument: ast.expr, scope: ast.AST) -> list[str]:
    """Return the event names that an argument can evaluate to, as far as the scope shows."""
    if isinstance(argument, ast.Constant):
        return [argument.value] if isinstance(argument.value, str) else []
    if isinstance(argument, ast.IfExp):
        return [*_names(argument.body, scope), *_names(argument.orelse, scope)]
    if isinstance(argument, ast.Name):
        return [
            name
            for node in ast.walk(scope)
            if isinstance(node, ast.Assign)
            and any(isinstance(one, ast.Name) and one.id == argument.id for one in node.targets)
            for name in _names(node.value, scope)
        ]
    return []
