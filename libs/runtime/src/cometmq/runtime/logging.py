# SPDX-License-Identifier: Apache-2.0
"""Logging with structlog: JSON lines in a container, coloured lines on a terminal.

All logs go to standard error, because standard output carries the output of commands. A call at a
disabled level only returns None (structlog's native filter). Records of the standard library's
loggers, mainly asyncio's, go to the same log.
"""

import logging
import sys
from collections.abc import Callable, MutableMapping
from typing import Any, BinaryIO, cast

import msgspec

from cometmq.remoting.log import Log
from cometmq.runtime.clock import Clock, SystemClock
from cometmq.runtime.imports import hidden_module

# structlog imports rich for console tracebacks if it is installed. That costs 110 ms of the
# import's 200 ms, and 5 MB; plain tracebacks suffice.
with hidden_module("rich"):
    import structlog
    from structlog.typing import Processor

LEVELS = ("debug", "info", "warning", "error")

REPEAT_COUNT_MAX = 10
"""Identical warnings or errors logged per window; the first one after the window shows how many
were suppressed (`suppressed_count`).
"""
INFO_COUNT_MAX = 1_000
"""The same for information: peers cause some of it, such as members that join a group."""
REPEAT_WINDOW_MS = 10_000
VALUE_CHARS_MAX = 2_048
"""Characters of a fact that are logged; peers choose names of up to 64 KB."""
_COUNTS_MAX = {"warning": REPEAT_COUNT_MAX, "error": REPEAT_COUNT_MAX, "info": INFO_COUNT_MAX}
_UNLIMITED = frozenset({"log.damaged", "records.damaged"})
"""Events that are logged once for each damaged place; a repair must know all of them."""

EventDict = MutableMapping[str, Any]


def configure(
    *, json: bool | None = None, level: str = "info", stream: BinaryIO | None = None
) -> None:
    """Set up logging for this process; `json=None` means JSON unless stderr is a terminal."""
    assert level in LEVELS, f"level must be one of {LEVELS}"
    is_json = not sys.stderr.isatty() if json is None else json
    number = getattr(logging, level.upper())
    structlog.configure(
        processors=_processors(is_json=is_json),
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.BytesLoggerFactory(stream or sys.stderr.buffer),
        cache_logger_on_first_use=True,
    )
    root = logging.getLogger()  # noqa: TID251  # the one place that catches foreign loggers
    root.handlers = [_Forward(level=max(number, logging.WARNING))]


def get(name: str) -> Log:
    """Return a component's logger; call this once, in the component's constructor."""
    return cast("Log", structlog.get_logger(component=name))


class RateLimit:
    """Limits how many identical events are logged per window, and counts the others.

    A loop that fails ten times a second must not fill the disk with its tracebacks, nor a peer that
    comes and goes.
    """

    __slots__ = ("_clock", "_windows")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._windows: dict[tuple[object, ...], list[int]] = {}

    def __call__(self, _logger: object, method: str, event: EventDict) -> EventDict:
        """Act as a structlog processor: return the event, or raise DropEvent."""
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
        log = structlog.get_logger(component=record.name)
        facts: dict[str, object] = {"message": record.getMessage()}
        if record.exc_info and record.exc_info[1] is not None:
            facts["error"] = f"{type(record.exc_info[1]).__name__}: {record.exc_info[1]}"
        method = log.error if record.levelno >= logging.ERROR else log.warning
        method("library.reported", **facts)


def _processors(*, is_json: bool) -> list[Processor]:
    shared: list[Processor] = [
        RateLimit(SystemClock()),
        _shorten,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if is_json:
        return [*shared, structlog.processors.format_exc_info, _to_json]
    render = structlog.dev.ConsoleRenderer(
        colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
    )
    return [*shared, structlog.processors.format_exc_info, _escape, _encoded(render)]


def _shorten(_logger: object, _method: str, event: EventDict) -> EventDict:
    """Cut long texts."""
    for key, value in event.items():
        if isinstance(value, str) and len(value) > VALUE_CHARS_MAX:
            event[key] = f"{value[:VALUE_CHARS_MAX]}... ({len(value)} characters)"
    return event


_encoder = msgspec.json.Encoder(enc_hook=str)


def _to_json(_logger: object, _method: str, event: EventDict) -> bytes:
    try:
        return _encoder.encode(event)
    except UnicodeEncodeError:  # lone surrogates, for example in a name from a peer
        return _encoder.encode({key: ascii(value) for key, value in event.items()})


def _escape(_logger: object, _method: str, event: EventDict) -> EventDict:
    """Escape characters that would control the terminal of a reader: peers choose names."""
    for key, value in event.items():
        if isinstance(value, str) and not value.isprintable():
            shown = (it if it.isprintable() or it in "\n\t" else ascii(it)[1:-1] for it in value)
            event[key] = "".join(shown)
    return event


def _encoded(render: Callable[[Any, str, EventDict], str]) -> Processor:
    def encode(logger: Any, method: str, event: EventDict) -> bytes:
        return render(logger, method, event).encode("utf-8", "backslashreplace")

    return encode
