# SPDX-License-Identifier: Apache-2.0
"""The workers' log: writes to Python's `logging`, from which Spark collects events.

Spark starts the workers and builds the readers itself, so a log cannot be passed to them.
"""

import logging
from typing import Final

_LOGGER: Final = logging.getLogger("cometmq.spark")  # noqa: TID251  # Spark collects these


class WorkerLog:
    """A `Log` of `cometmq.remoting` that writes lines of the form `event key=value`."""

    __slots__ = ()

    def debug(self, event: str, /, **facts: object) -> None:
        _LOGGER.debug(_line(event, facts))

    def info(self, event: str, /, **facts: object) -> None:
        _LOGGER.info(_line(event, facts))

    def warning(self, event: str, /, **facts: object) -> None:
        _LOGGER.warning(_line(event, facts))

    def error(self, event: str, /, **facts: object) -> None:
        _LOGGER.error(_line(event, facts))


WORKER_LOG: Final = WorkerLog()


def _line(event: str, facts: dict[str, object]) -> str:
    return " ".join([event, *(f"{key}={value}" for key, value in facts.items())])
