# SPDX-License-Identifier: Apache-2.0
"""Events of workers in Python's own log, which is where Spark collects them from.

Spark starts the processes and builds the readers, so nobody can hand a log to them.
"""

import logging
from typing import Final

_LOGGER: Final = logging.getLogger("cometmq.spark")  # noqa: TID251  # Spark collects these


class WorkerLog:
    """A `Log` of `cometmq.remoting` that writes `event key=value` lines."""

    __slots__ = ()

    def debug(self, event: str, /, **facts: object) -> None:
        """Record a detail."""
        _LOGGER.debug(_line(event, facts))

    def info(self, event: str, /, **facts: object) -> None:
        """Record a change of state."""
        _LOGGER.info(_line(event, facts))

    def warning(self, event: str, /, **facts: object) -> None:
        """Record something degraded but handled."""
        _LOGGER.warning(_line(event, facts))

    def error(self, event: str, /, **facts: object) -> None:
        """Record something that a person must act on."""
        _LOGGER.error(_line(event, facts))


WORKER_LOG: Final = WorkerLog()


def _line(event: str, facts: dict[str, object]) -> str:
    return " ".join([event, *(f"{key}={value}" for key, value in facts.items())])
