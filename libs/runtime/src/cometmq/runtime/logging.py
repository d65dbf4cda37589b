# SPDX-License-Identifier: Apache-2.0
"""Logging by structlog: JSON lines in a container, coloured lines on a terminal.

All logs go to standard error, because standard output carries the output of commands. Records of
the standard library's loggers, mainly asyncio's, go to the same log.
"""

import logging
import sys
from collections.abc import MutableMapping
from typing import Any, BinaryIO, Final

import msgspec

from cometmq.remoting.log import Log
from cometmq.runtime.clock import Clock, SystemClock

# structlog imports rich for tracebacks on terminals if it is installed: 110 ms and 5 MB in each
# program; plain tracebacks suffice.
_has_rich = "rich" in sys.modules
if not _has_rich:
    sys.modules["rich"] = None  # type: ignore[assignment]  # as if it were not installed
import structlog  # noqa: E402

if not _has_rich:
    del sys.modules["rich"]

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

EventDict = MutableMapping[str, Any]


def configure(
    *, json: bool | None = None, level: str = "info", stream: BinaryIO | None = None
) -> None:
    """Set up logging for this process; `json=None` means JSON unless stderr is a terminal."""
    assert level in LEVELS, f"level must be one of {LEVELS}"
    is_json = not sys.stderr.isatty() if json is None else json
    number = getattr(logging, level.upper())
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            RateLimit(SystemClock()),
            _shorten,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            *([structlog.processors.JSONRenderer(serializer=_to_json)] if is_json else _terminal()),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        # Looked up at each event, because tests and programs replace standard error.
        logger_factory=lambda *_: structlog.BytesLogger(stream or sys.stderr.buffer),
    )
    root = logging.getLogger()  # noqa: TID251  # the one place that catches foreign loggers
    root.handlers = [_Forward(level=max(number, logging.WARNING))]


def get(name: str) -> Log:
    """Return a component's logger; call this once, in the component's constructor."""
    log: Log = structlog.get_logger(component=name)
    return log


class RateLimit:
    """Limits how many identical events are logged per window, and counts the others.

    Otherwise a loop that fails ten times a second, or a peer that reconnects again and again, would
    fill the disk.
    """

    __slots__ = ("_clock", "_windows")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._windows: dict[tuple[object, ...], list[int]] = {}

    def __call__(self, _logger: object, method: str, event: EventDict) -> EventDict:
        """Return the event, with the number of suppressed ones before it, or raise DropEvent."""
        count_max = _COUNTS_MAX.get(method)
        if count_max is None or event["event"] in _UNLIMITED:
            return event
        now_ms = self._clock.monotonic_ms()
        key = (method, event["event"], event.get("component"), event.get("task"))
        window = self._windows.setdefault(key, [now_ms, 0, 0])
        if now_ms - window[0] >= REPEAT_WINDOW_MS:
            if window[2]:
                event["suppressed_count"] = window[2]
            window[:] = [now_ms, 0, 0]
        if window[1] >= count_max:
            window[2] += 1
            raise structlog.DropEvent
        window[1] += 1
        return event


class _Forward(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        log = get(record.name)
        facts: dict[str, object] = {"message": record.getMessage()}
        if record.exc_info and record.exc_info[1] is not None:
            facts["error"] = f"{type(record.exc_info[1]).__name__}: {record.exc_info[1]}"
        method = log.error if record.levelno >= logging.ERROR else log.warning
        method("library.reported", **facts)


def _shorten(_logger: object, _method: str, event: EventDict) -> EventDict:
    """Cut long texts."""
    for key, value in event.items():
        if isinstance(value, str) and len(value) > VALUE_CHARS_MAX:
            event[key] = f"{value[:VALUE_CHARS_MAX]}... ({len(value)} characters)"
    return event


def _to_json(event: EventDict, **_: object) -> bytes:
    try:
        return _encoder.encode(event)
    except UnicodeEncodeError:  # lone surrogates, for example in a name from a peer
        return _encoder.encode({key: ascii(value) for key, value in event.items()})


_encoder = msgspec.json.Encoder(enc_hook=str)


def _terminal() -> list[structlog.typing.Processor]:
    render = structlog.dev.ConsoleRenderer(
        colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
    )
    return [_escape, render, _encode]


def _encode(_logger: object, _method: str, line: Any) -> bytes:
    encoded: bytes = line.encode("utf-8", "backslashreplace")
    return encoded


def _escape(_logger: object, _method: str, event: EventDict) -> EventDict:
    """Escape characters that would control the terminal of a reader: peers choose names."""
    for key, value in event.items():
        if isinstance(value, str) and not value.isprintable():
            shown = (it if it.isprintable() or it in "\n\t" else ascii(it)[1:-1] for it in value)
            event[key] = "".join(shown)
    return event
