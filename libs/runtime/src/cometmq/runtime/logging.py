# SPDX-License-Identifier: Apache-2.0
"""Logging: JSON lines in a container, lines coloured by structlog on a terminal.

All logs go to standard error, because standard output carries the output of commands. Records of
the standard library's loggers, mainly asyncio's, go to the same log.

JSON lines need no structlog, which takes 0.9 MiB of each process that imports it.
"""

import logging
import sys
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, BinaryIO, Final

import msgspec

from cometmq.remoting.log import Log
from cometmq.runtime.clock import Clock, SystemClock
from cometmq.runtime.imports import hidden_module

LEVELS: Final = ("debug", "info", "warning", "error")

REPEAT_COUNT_MAX = 10
"""Identical warnings or errors logged per window; the first one after the window shows how many
were suppressed (`suppressed_count`).
"""
INFO_COUNT_MAX = 1_000
"""REPEAT_COUNT_MAX for events of level info: peers cause some of them, for example by joining a
group.
"""
REPEAT_WINDOW_MS = 10_000
VALUE_CHARS_MAX = 2_048
"""Maximum length of a fact in a log line, in characters; peers choose names of up to 64 KB."""
_COUNTS_MAX = {"warning": REPEAT_COUNT_MAX, "error": REPEAT_COUNT_MAX, "info": INFO_COUNT_MAX}
_UNLIMITED = frozenset({"log.damaged", "records.damaged"})
"""Events without a limit: each is logged once for a damaged range, and a repair must know all of
them.
"""

EventDict = dict[str, Any]


def configure(
    *, json: bool | None = None, level: str = "info", stream: BinaryIO | None = None
) -> None:
    """Set up logging for this process; `json=None` means JSON unless stderr is a terminal."""
    assert level in LEVELS, f"level must be one of {LEVELS}"
    is_json = not sys.stderr.isatty() if json is None else json
    number = getattr(logging, level.upper())
    _output.configure(number, _to_json if is_json else _for_terminals(), stream)
    root = logging.getLogger()  # noqa: TID251  # the one place that catches foreign loggers
    root.handlers = [_Forward(level=max(number, logging.WARNING))]


def get(name: str) -> Log:
    """Return a component's logger; call this once, in the component's constructor."""
    return _ComponentLog(name)


class RateLimit:
    """Limits how many identical events are logged per window, and counts the others.

    Otherwise a loop that fails ten times a second, or a peer that reconnects again and again, would
    fill the disk.
    """

    __slots__ = ("_clock", "_windows")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._windows: dict[tuple[object, ...], list[int]] = {}

    def admits(self, method: str, event: EventDict) -> bool:
        """Return whether to log an event; if so, add the number of suppressed ones before it to the
        event.
        """
        count_max = _COUNTS_MAX.get(method)
        if count_max is None or event["event"] in _UNLIMITED:
            return True
        now_ms = self._clock.monotonic_ms()
        key = (method, event["event"], event.get("component"), event.get("task"))
        window = self._windows.setdefault(key, [now_ms, 0, 0])
        if now_ms - window[0] >= REPEAT_WINDOW_MS:
            if window[2]:
                event["suppressed_count"] = window[2]
            window[:] = [now_ms, 0, 0]
        if window[1] >= count_max:
            window[2] += 1
            return False
        window[1] += 1
        return True


class _Output:
    """Writes the events of this process: level, format, rate limit and stream."""

    def __init__(self) -> None:
        self.configure(logging.INFO, _to_json, None)

    def configure(
        self, level: int, render: Callable[[EventDict], bytes], stream: BinaryIO | None
    ) -> None:
        self.level = level
        self._render = render
        self._stream = stream
        self._limit = RateLimit(SystemClock())

    def write(self, method: str, event: EventDict) -> None:
        if not self._limit.admits(method, event):
            return
        _shorten(event)
        event["level"] = method
        event["timestamp"] = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        if error := event.pop("exc_info", None):
            shown = error if isinstance(error, BaseException) else sys.exception()
            event["exception"] = "".join(traceback.format_exception(shown)).rstrip("\n")
        stream = self._stream or sys.stderr.buffer
        stream.write(self._render(event) + b"\n")
        stream.flush()


class _ComponentLog:
    """Writes the events of a component."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def debug(self, event: str, /, **facts: object) -> None:
        if _output.level <= logging.DEBUG:
            _output.write("debug", {"component": self._name, **facts, "event": event})

    def info(self, event: str, /, **facts: object) -> None:
        if _output.level <= logging.INFO:
            _output.write("info", {"component": self._name, **facts, "event": event})

    def warning(self, event: str, /, **facts: object) -> None:
        if _output.level <= logging.WARNING:
            _output.write("warning", {"component": self._name, **facts, "event": event})

    def error(self, event: str, /, **facts: object) -> None:
        _output.write("error", {"component": self._name, **facts, "event": event})


class _Forward(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        log = get(record.name)
        facts: dict[str, object] = {"message": record.getMessage()}
        if record.exc_info and record.exc_info[1] is not None:
            facts["error"] = f"{type(record.exc_info[1]).__name__}: {record.exc_info[1]}"
        method = log.error if record.levelno >= logging.ERROR else log.warning
        method("library.reported", **facts)


def _for_terminals() -> Callable[[EventDict], bytes]:
    # structlog imports rich for console tracebacks if it is installed. That costs 110 ms of the
    # import's 200 ms, and 5 MB; plain tracebacks suffice.
    with hidden_module("rich"):
        from structlog.dev import ConsoleRenderer, plain_traceback  # noqa: PLC0415
    render = ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=plain_traceback)

    def encoded(event: EventDict) -> bytes:
        _escape(event)
        return str(render(None, event["level"], event)).encode("utf-8", "backslashreplace")

    return encoded


def _shorten(event: EventDict) -> None:
    """Cut long texts."""
    for key, value in event.items():
        if isinstance(value, str) and len(value) > VALUE_CHARS_MAX:
            event[key] = f"{value[:VALUE_CHARS_MAX]}... ({len(value)} characters)"


_encoder = msgspec.json.Encoder(enc_hook=str)


def _to_json(event: EventDict) -> bytes:
    try:
        return _encoder.encode(event)
    except UnicodeEncodeError:  # lone surrogates, for example in a name from a peer
        return _encoder.encode({key: ascii(value) for key, value in event.items()})


def _escape(event: EventDict) -> None:
    """Escape characters that would control the terminal of a reader: peers choose names."""
    for key, value in event.items():
        if isinstance(value, str) and not value.isprintable():
            shown = (it if it.isprintable() or it in "\n\t" else ascii(it)[1:-1] for it in value)
            event[key] = "".join(shown)


_output: Final = _Output()
