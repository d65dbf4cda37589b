# SPDX-License-Identifier: Apache-2.0
"""One line of progress: rewritten on a terminal, printed at intervals elsewhere."""

import asyncio
import sys
from collections.abc import Callable
from time import monotonic
from typing import Final

import msgspec

from cometmq.remoting.errors import CometError


class DemoFailed(CometError):
    """A process of the demo has failed or timed out."""


def stalled(what: str, stall_s: float) -> DemoFailed:
    """Return the error for a demo that has made no progress for `stall_s` seconds."""
    return DemoFailed(
        f"{what}; nothing moved for {stall_s:g} s; on a slow machine: make demo"
        f" ARGS='--timeout {3 * stall_s:g}'"
    )


REFRESH_S: Final = 0.25
PRINT_S: Final = 2.0
BAR_CHARS: Final = 30


class Counts(msgspec.Struct, frozen=True):
    """Messages sent and received so far."""

    sent: int
    received: int


async def show_progress(total: int, counts: Callable[[], Counts], stall_s: float) -> None:
    """Show the counts until everything has been received; raise DemoFailed after `stall_s` without
    progress.
    """
    is_terminal = sys.stdout.isatty()
    begin = moved = monotonic()
    before = shown = counts()
    interval_s = REFRESH_S if is_terminal else PRINT_S
    due = begin + interval_s
    while before.received < total:
        await asyncio.sleep(REFRESH_S)
        now, current = monotonic(), counts()
        moved = now if current != before else moved
        before = current
        if now - moved > stall_s:
            text = (
                f"{current.sent:,} of {total:,} messages were sent, {current.received:,} received"
            )
            raise stalled(text, stall_s)
        if now >= due and current != shown:
            due, shown = now + interval_s, current
            _show(_line(current, total, now - begin), is_terminal=is_terminal)
    if is_terminal:
        sys.stdout.write("\r\x1b[K")


def _line(counts: Counts, total: int, seconds: float) -> str:
    done = BAR_CHARS * counts.received // total
    bar = "#" * done + "." * (BAR_CHARS - done)
    return (
        f"  [{bar}] sent {counts.sent:>9,} ({counts.sent / seconds:,.0f}/s)"
        f"  received {counts.received:>9,} ({counts.received / seconds:,.0f}/s)"
    )


def _show(line: str, *, is_terminal: bool) -> None:
    sys.stdout.write(f"\r\x1b[K{line}" if is_terminal else f"{line}\n")
    sys.stdout.flush()
