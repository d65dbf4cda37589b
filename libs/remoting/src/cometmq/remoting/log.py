# SPDX-License-Identifier: Apache-2.0
"""The log that libraries write to, and the silent one they use by default.

An event is a static name (``noun.past_participle``); everything that varies is a fact. The
services pass a structlog logger, which fits the protocol as it is.
"""

from typing import Final, Protocol


class Log(Protocol):
    """Four levels of events with facts."""

    def debug(self, event: str, /, **facts: object) -> object:
        """Record one request's detail; off by default."""

    def info(self, event: str, /, **facts: object) -> object:
        """Record a change of state that an operator wants on a timeline."""

    def warning(self, event: str, /, **facts: object) -> object:
        """Record something degraded but handled."""

    def error(self, event: str, /, **facts: object) -> object:
        """Record something that a person must act on."""


class _SilentLog:
    """Drop every event: the default where nobody passed a log."""

    __slots__ = ()

    def debug(self, event: str, /, **facts: object) -> None:
        """Drop the event."""

    info = warning = error = debug


NO_LOG: Final[Log] = _SilentLog()
