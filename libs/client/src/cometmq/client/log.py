# SPDX-License-Identifier: Apache-2.0
"""Client logging, through the program's structlog if it is configured, or through `logging`.

The logger "cometmq" has no handler. If logging is not configured, Python's handler of
last resort therefore writes warnings and errors to standard error.
"""

import logging
import sys
from collections.abc import Callable, Hashable, Iterator
from types import ModuleType
from typing import Any, Final, TypeAlias

import msgspec

from cometmq.client.clock import monotonic_ms
from cometmq.client.errors import InvalidArgument, shown
from cometmq.remoting.log import Log

LOGGER_NAME: Final = "cometmq"

REPEAT_WINDOW_MS: Final = 10_000
REPEAT_COUNT_MAX: Final = 10
"""How many equal warnings or errors are logged per window; only one if it has a traceback."""

_KINDS_MAX: Final = 1_024
_IDENTITY: Final = ("group", "topic", "peer", "task", "hook", "callback")
"""The facts that distinguish two failures with the same event."""

_UNLIMITED: Final = frozenset({"messages.missing"})
"""Events whose sources limit themselves, because none of their facts may be lost."""

_METHODS: Final = {
    logging.DEBUG: "debug",
    logging.INFO: "info",
    logging.WARNING: "warning",
    logging.ERROR: "error",
}

StandardLogger: TypeAlias = "logging.Logger | logging.LoggerAdapter[Any]"
AnyLog: TypeAlias = "Log | StandardLogger | None"
"""The type of the clients' `log` argument."""


class Levels:
    """A log whose four methods write the same way."""

    __slots__ = ()

    def _write(self, level: int, event: str, facts: dict[str, Any]) -> None:
        raise NotImplementedError

    def debug(self, event: str, /, **facts: object) -> None:
        """Log a detail."""
        self._write(logging.DEBUG, event, facts)

    def info(self, event: str, /, **facts: object) -> None:
        """Log a change of state."""
        self._write(logging.INFO, event, facts)

    def warning(self, event: str, /, **facts: object) -> None:
        """Log a degradation that was handled."""
        self._write(logging.WARNING, event, facts)

    def error(self, event: str, /, **facts: object) -> None:
        """Log a failure that needs attention."""
        self._write(logging.ERROR, event, facts)


class LoggerLog(Levels):
    """Writes to a logger of the module `logging`, with all values in the text."""

    __slots__ = ("_logger",)

    def __init__(self, logger: StandardLogger) -> None:
        self._logger = logger

    def _write(self, level: int, event: str, facts: dict[str, Any]) -> None:
        if self._logger.isEnabledFor(level):
            exc_info = facts.pop("exc_info", None)
            self._logger.log(level, "%s", readable(event, facts), exc_info=exc_info)


class ProgramLog(LoggerLog):
    """Writes to structlog or `logging`, according to the configuration at the time of the event."""

    __slots__ = ()

    def _write(self, level: int, event: str, facts: dict[str, Any]) -> None:
        structlog: Any = sys.modules.get("structlog")
        if structlog is None or not structlog.is_configured():
            super()._write(level, event, facts)
            return
        write = getattr(structlog.get_logger(LOGGER_NAME, component="client"), _METHODS[level])
        write(event, **facts)


PROGRAM_LOG: Final[Log] = ProgramLog(logging.getLogger(LOGGER_NAME))  # noqa: TID251  # the library's


def log_of(log: AnyLog) -> Log:
    """Return the `Log` for a client's `log` argument; raise InvalidArgument if it is not a log."""
    if log is None:
        return PROGRAM_LOG
    if isinstance(log, logging.Logger | logging.LoggerAdapter):
        return LoggerLog(log)
    is_object = not isinstance(log, type | ModuleType)  # `logging` has functions of these names
    if not is_object or not all(callable(getattr(log, name, None)) for name in _METHODS.values()):
        raise InvalidArgument(
            "log must be a logger of the module logging, or an object with the methods debug, "
            "info, warning and error, called as log.info('route.changed', topic='Orders'), not "
            f"{shown(log)}"
        )
    return log


def readable(event: str, facts: dict[str, Any]) -> str:
    """Return `event name=value name='a value with spaces'`."""
    return " ".join([event, *(f"{name}={_value(value)}" for name, value in facts.items())])


def _value(value: object) -> str:
    """Return a value; servers choose names and errors, which must not control a terminal."""
    text = str(value)
    is_plain = bool(text) and text.isprintable() and " " not in text
    return text if is_plain else repr(text)


class _Lasting(msgspec.Struct):
    begin_ms: int
    warned_ms: int | None = None


class Reminders:
    """Says when to warn of states that last: once they have lasted for a while, and then once per
    interval.
    """

    def __init__(self, every_ms: int, *, clock_ms: Callable[[], int] = monotonic_ms) -> None:
        self._every_ms = every_ms
        self._clock_ms = clock_ms
        self._states: dict[Hashable, _Lasting] = {}

    def __contains__(self, state: object) -> bool:
        return state in self._states

    def __iter__(self) -> Iterator[Any]:
        return iter(tuple(self._states))

    def is_due(self, state: Hashable, *, since_ms: int | None = None, after_ms: int = 0) -> bool:
        """Return whether to warn now of a state that holds, since `since_ms` or the first call."""
        now_ms = self._clock_ms()
        found = self._states.get(state)
        if found is None:
            if len(self._states) >= _KINDS_MAX:
                self._states.clear()
            found = self._states[state] = _Lasting(now_ms if since_ms is None else since_ms)
        last_ms, pause_ms = found.warned_ms, self._every_ms
        if last_ms is None:
            last_ms, pause_ms = found.begin_ms, after_ms
        if now_ms - last_ms < pause_ms:
            return False
        found.warned_ms = now_ms
        return True

    def lasted_ms(self, state: Hashable) -> int:
        """Return how long a state has held."""
        return self._clock_ms() - self._states[state].begin_ms

    def end(self, state: Hashable) -> bool:
        """Forget a state; return whether it held."""
        return self._states.pop(state, None) is not None


class _Window(msgspec.Struct):
    write: Callable[..., object]
    event: str
    identity: dict[str, object]
    begin_ms: int
    error: dict[str, object]
    """The fact `error` of the last event, if it had one."""
    passed_count: int = 0
    suppressed_count: int = 0


class LimitedLog(Levels):
    """Limits repeated warnings and errors; the next one that is logged reports the number of
    suppressed events.

    Only the first failure of a kind has its traceback: a listener that fails for each of a million
    messages must not fill the disk.
    """

    def __init__(self, log: Log, *, clock_ms: Callable[[], int] = monotonic_ms) -> None:
        self._log = log
        self._clock_ms = clock_ms
        self._windows: dict[tuple[object, ...], _Window] = {}

    def flush(self) -> None:
        """Log how many events were suppressed since the last one logged, and the last error."""
        windows, self._windows = self._windows, {}
        for window in windows.values():
            if window.suppressed_count:
                window.write(
                    window.event,
                    **window.identity,
                    **window.error,
                    suppressed_count=window.suppressed_count,
                )

    def _write(self, level: int, event: str, facts: dict[str, Any]) -> None:
        write = getattr(self._log, _METHODS[level])
        if level < logging.WARNING or event in _UNLIMITED:
            write(event, **facts)
            return
        identity: dict[str, object] = {n: facts[n] for n in _IDENTITY if n in facts}
        failure = facts.get("exc_info")
        key = (event, type(failure), *identity.items())
        now_ms = self._clock_ms()
        window = self._windows.get(key)
        if window is None:
            if len(self._windows) >= _KINDS_MAX:
                self.flush()
            window = self._windows[key] = _Window(write, event, identity, now_ms, {})
        else:
            window.error = {n: facts[n] for n in ("error",) if n in facts}
            facts.pop("exc_info", None)
            if now_ms - window.begin_ms >= REPEAT_WINDOW_MS:
                window.begin_ms, window.passed_count = now_ms, 0
            elif window.passed_count >= (1 if failure else REPEAT_COUNT_MAX):
                window.suppressed_count += 1
                return
        if window.suppressed_count:
            facts["suppressed_count"] = window.suppressed_count
            window.suppressed_count = 0
        window.passed_count += 1
        write(event, **facts)
