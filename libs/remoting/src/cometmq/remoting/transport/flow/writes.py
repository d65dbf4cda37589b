# SPDX-License-Identifier: Apache-2.0
"""Writes the answers of one turn of the loop together, once the changes that they acknowledge are
durable.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from cometmq.remoting.transport.flow.connected import Output


class DirectAnswers(Protocol):
    """The answers of a lane; see `DirectIO`."""

    answers: list[Any]

    def flush(self) -> None:
        """Send the answers."""


class Writes:
    """The pending output of all connections of a server or client."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        before_write: Callable[[], None] | None,
        save: Callable[[], None] | None,
    ) -> None:
        self._loop = loop
        self._save = save
        self.before_write = before_write
        self._outlets: list[Output] = []
        self._is_scheduled = False
        self.direct: DirectAnswers | None = None
        """The answers of a lane, which are written first."""
        self.is_gathering = False
        """Whether answers wait for the end of the turn of the loop, and then for `save`."""

    def add(self, outlet: Output) -> None:
        """Write an outlet's output at the end of this turn of the loop."""
        self._outlets.append(outlet)
        self.schedule()

    def schedule(self) -> None:
        """Write all pending output at the end of this turn of the loop."""
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        self._is_scheduled = False
        self.flush()

    def flush(self) -> None:
        """Write all pending output, once per connection."""
        if self.direct is not None and self.direct.answers:
            self.direct.flush()
        outlets, self._outlets = self._outlets, []
        for outlet in outlets:
            outlet.flush()

    def prepare(self) -> None:
        """Make the changes durable that the answers acknowledge; call this before each write of
        answers.
        """
        if self.is_gathering and self._save is not None:
            self.is_gathering = False
            self._save()
        if self.before_write is not None:
            self.before_write()
