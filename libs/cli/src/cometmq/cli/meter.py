# SPDX-License-Identifier: Apache-2.0
"""Progress of slow commands: one line on standard error, only on a terminal."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from time import monotonic
from typing import Final, Self

from cometmq.cli.streams import is_terminal

FIRST_S: Final = 0.5
"""Commands that end sooner than this show no progress."""

REFRESH_S: Final = 0.25
_CLEAR: Final = "\r\x1b[K"


class Meter:
    """A line that is rewritten in place and removed at the end.

    `beside_output` means that the command prints while it works. If the output and the line
    were both printed to a terminal, they would mix, so the line is not shown.
    """

    def __init__(self, *, beside_output: bool = False) -> None:
        is_mixed = beside_output and is_terminal(sys.stdout)
        self.is_shown = is_terminal(sys.stderr) and not is_mixed
        self._due = monotonic() + FIRST_S
        self._has_line = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def show(self, text: str) -> None:
        """Replace the line, unless it was replaced a moment ago."""
        if not self.is_shown or monotonic() < self._due:
            return
        sys.stderr.write(f"{_CLEAR}{text}")
        sys.stderr.flush()
        self._has_line = True
        self._due = monotonic() + REFRESH_S

    def clear(self) -> None:
        """Remove the line, so that other text can be printed."""
        if self._has_line:
            sys.stderr.write(_CLEAR)
            sys.stderr.flush()
            self._has_line = False


@asynccontextmanager
async def live(
    text: Callable[[], str], *, beside_output: bool = False, wanted: bool = True
) -> AsyncIterator[None]:
    """Show `text()`, refreshed by a timer, while the body runs."""

    async def refresh(meter: Meter) -> None:
        while True:
            await asyncio.sleep(REFRESH_S)
            meter.show(text())

    with Meter(beside_output=beside_output) as meter:
        if not (wanted and meter.is_shown):
            yield
            return
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(refresh(meter))
            try:
                yield
            finally:
                task.cancel()


def rate(count: int, since: float, total: int | None = None) -> str:
    """Return a count as text, with its rate since `since`, a time on the monotonic clock.

    `total` is the expected final count, which `count` may exceed.
    """
    seconds = max(monotonic() - since, 0.001)
    whole = "" if total is None else f" of {max(total, count):,}"
    return f"{count:,}{whole} messages, {count / seconds:,.0f} per second"
