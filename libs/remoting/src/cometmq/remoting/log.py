# SPDX-License-Identifier: Apache-2.0
"""The logging interface of the libraries, and a silent default.

An event has a static name (`noun.past_participle`); all variable parts are passed as facts. The
services pass a logger of `cometmq.runtime.logging`.
"""

from typing import Final, Protocol


class Log(Protocol):
    """Logs events with facts at four levels."""

    def debug(self, event: str, /, **facts: object) -> object:
        """Log the details of one request; off by default."""

    def info(self, event: str, /, **facts: object) -> object:
        """Log a change of state that belongs on an operator's timeline."""

    def warning(self, event: str, /, **facts: object) -> object:
        """Log a degradation that was handled."""

    def error(self, event: str, /, **facts: object) -> object:
        """Log a problem that requires a person to act."""


class _SilentLog:
    __slots__ = ()

    def debug(self, event: str, /, **facts: object) -> None: ...

    info = warning = error = debug


NO_LOG: Final[Log] = _SilentLog()
