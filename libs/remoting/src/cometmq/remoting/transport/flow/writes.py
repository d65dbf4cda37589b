# SPDX-License-Identifier: Apache-2.0
"""Writes the answers of one turn of the loop together."""

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

from cometmq.remoting.transport.flow.before_write import BeforeWrite
from cometmq.remoting.transport.flow.connected import Output


class DirectOutput(Protocol):
    """The answers of a lane; see `DirectAnswers`."""

    rows: list[Any]
    """Answers that are not sent yet."""

    def reply_rows(self, rows: Sequence[tuple[Any, bytes, int]]) -> None:
        """Send encoded answers; see `DirectAnswers.reply_rows`."""

    def reply(self, replies: Any) -> Any:
        """Encode and send answers now; return None if they must wait."""

    def flush(self) -> None:
        """Send the answers in `rows` now."""


class Writes:
    """Gathers the pending output of all connections of a server or client, and writes it once per
    turn.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, before: BeforeWrite) -> None:
        self._loop = loop
        self.before = before
        """Called before each write of answers."""
        self._outlets: list[Output] = []
        self._is_scheduled = False
        self.direct: DirectOutput | None = None
        """The answers of a lane, which are written first."""

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
        if self.direct is not None and self.direct.rows:
            self.direct.flush()
        outlets, self._outlets = self._outlets, []
        for outlet in outlets:
            outlet.flush()
