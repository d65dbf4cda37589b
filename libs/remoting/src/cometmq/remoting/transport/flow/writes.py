# SPDX-License-Identifier: Apache-2.0
"""Writes the answers of one turn of the loop together, after what they acknowledge is durable."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cometmq.remoting.transport.direct import DirectIO
    from cometmq.remoting.transport.peer.outlet import Outlet


class Writes:
    """Gathers the pending output of all connections of a server or client, and writes it once per
    turn, after the changes that it acknowledges are durable.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        check: Callable[[], None] | None = None,
        save: Callable[[], None] | None = None,
    ) -> None:
        """Call `check` before each write, and `save` once, before the first write after
        `gather`.
        """
        self._loop = loop
        self.check = check
        self._save = save
        self.is_gathering = False
        """Whether answers wait for the end of the turn of the loop, and then for `save`."""
        self.must_prepare = check is not None
        """Whether answers must not be written without a call to `prepare`."""
        self._outlets: list[Outlet] = []
        self.is_scheduled = False
        """Whether output is pending; it may have been written in this turn of the loop."""
        self.direct: DirectIO | None = None
        """The answers of a lane, which are written first."""

    def gather(self) -> None:
        """Hold all answers until the end of this turn of the loop, when `save` is called."""
        self.is_gathering = self.must_prepare = True
        self.schedule()

    def prepare(self) -> None:
        """Make the changes durable that the next answers acknowledge."""
        if self.is_gathering:
            self.is_gathering, self.must_prepare = False, self.check is not None
            if self._save is not None:
                self._save()
        if self.check is not None:
            self.check()

    def add(self, outlet: "Outlet") -> None:
        """Write an outlet's output at the end of this turn of the loop."""
        self._outlets.append(outlet)
        self.schedule()

    def schedule(self) -> None:
        """Write all pending output at the end of this turn of the loop."""
        if not self.is_scheduled:
            self.is_scheduled = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        self.is_scheduled = False
        self.flush()
        if self.is_gathering:  # there was no output
            self.prepare()

    def flush(self) -> None:
        """Write all pending output, once per connection."""
        if self.direct is not None and self.direct.rows:
            self.direct.flush()
        outlets, self._outlets = self._outlets, []
        for outlet in outlets:
            outlet.flush()
