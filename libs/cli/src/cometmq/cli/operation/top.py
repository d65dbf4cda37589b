# SPDX-License-Identifier: Apache-2.0
"""`cometmq top`: topics, groups, connections, the slowest groups and refusals on a full screen.

Plain ANSI sequences; the terminal is restored however the command ends.
"""

import asyncio
import os
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Annotated, Final, Literal

from cometmq.cli.admin import no_broker_text
from cometmq.cli.connecting import DEFAULT_NAMESRV, Namesrv, run, with_access
from cometmq.cli.lazy import App
from cometmq.cli.operation.top_views import (
    SENTENCES,
    Screen,
    empty_text,
    rendered,
    rows_of,
    sort_column,
)
from cometmq.cli.option_sets import arg, opt
from cometmq.cli.outcome import MISSING
from cometmq.cli.output import AsJson, print_rows
from cometmq.cli.streams import is_terminal
from cometmq.client import ClientOptions
from cometmq.client.admin import AdminClient
from cometmq.client.errors import BrokerMissing
from cometmq.insight.rules.brokers import unreachable
from cometmq.insight.snapshot import Watch
from cometmq.remoting.errors import CometError
from cometmq.remoting.log import NO_LOG

ENTER: Final = "\x1b[?1049h\x1b[?25l"  # other screen, no cursor
LEAVE: Final = "\x1b[?25h\x1b[?1049l"
HOME: Final = "\x1b[H"
CLEAR_LINE: Final = "\x1b[K"
CLEAR_REST: Final = "\x1b[J"
WIDTH: Final = 80
HEIGHT: Final = 24
"""The assumed number of lines of a terminal that does not report its size."""
PIPED_CHARS: Final = 160
"""The width of tables that contain sentences, if the output is not a terminal."""
FIRST_RATES_S: Final = 1.1
"""A rate needs two snapshots, at least a second apart."""

app = App()


@app.command()
def top(
    view: Annotated[
        Literal["topics", "groups", "connections", "slowest", "refused"], arg("What to show first.")
    ] = "topics",
    namesrv: Namesrv = DEFAULT_NAMESRV,
    every_s: Annotated[
        float, opt("--every", "Seconds between two snapshots.", min=0.5, max=3600)
    ] = 2.0,
    sort: Annotated[str, opt("Column to sort by; the largest first, names from A.")] = "",
    *,
    as_json: AsJson = False,
) -> None:
    """Show and plot what happens: rates, lag, connections, the slowest groups, refusals.

    Keys: 1 to 5 or Tab choose the view, s the column to sort by, r reverses, p pauses, q ends. If
    the output is not a terminal, one table is printed.

    \b
    EXAMPLES
      cometmq top groups --sort lag
      cometmq top refused --json
    """
    screen = Screen(view, sort)
    sort_column(screen)  # raises for an unknown one
    is_live = is_terminal(sys.stdout) and is_terminal(sys.stdin) and not as_json
    run(_watched(namesrv, screen, every_s) if is_live else _once(namesrv, screen, as_json=as_json))


async def _once(namesrv: str, screen: Screen, *, as_json: bool) -> None:
    options = with_access(ClientOptions())
    async with AdminClient(namesrv, options=options, log=NO_LOG) as admin:
        watch = Watch(admin)
        await watch.refresh()
        if not watch.failure:
            await asyncio.sleep(FIRST_RATES_S)
        found = await watch.refresh()
        if found is None:
            raise _failure(watch)
    for it in unreachable(found, watch.history):
        MISSING.setdefault(it.subject, f"{it.text}; {it.remedy}")
    if not found.brokers:
        raise BrokerMissing(no_broker_text([namesrv]))
    columns, rows = rows_of(found, screen)
    print_rows(
        columns,
        rows,
        as_json=as_json,
        empty=empty_text(found, screen.view),
        piped_chars=PIPED_CHARS if screen.view in SENTENCES else None,
    )


async def _watched(namesrv: str, screen: Screen, every_s: float) -> None:
    options = with_access(ClientOptions())
    changed = asyncio.Event()
    async with AdminClient(namesrv, options=options, log=NO_LOG) as admin:
        watch = Watch(admin)
        if (first := await watch.refresh()) is None:
            raise _failure(watch)
        screen.note(first)
        with _raw_terminal(screen, changed):
            while not screen.is_over:
                _draw(watch, screen)
                changed.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(every_s):
                        await changed.wait()
                        continue
                if not screen.is_paused and (found := await watch.refresh()) is not None:
                    screen.note(found)


def _failure(watch: Watch) -> CometError:
    assert watch.error is not None, "without a snapshot, there is an error"
    return watch.error


def _draw(watch: Watch, screen: Screen) -> None:
    assert watch.snapshot is not None
    size = os.get_terminal_size(sys.stdout.fileno())
    width, height = size.columns or WIDTH, size.lines or HEIGHT
    lines = rendered(watch.snapshot, watch.failure, screen, width, height)
    text = f"{CLEAR_LINE}\r\n".join(lines)
    sys.stdout.write(f"{HOME}{text}{CLEAR_LINE}{CLEAR_REST}")
    sys.stdout.flush()


@contextmanager
def _raw_terminal(screen: Screen, changed: asyncio.Event) -> Iterator[None]:
    """Read single keys, and restore the terminal at the end."""
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    loop = asyncio.get_running_loop()

    def read() -> None:
        for key in os.read(descriptor, 64).decode("ascii", "replace") or "q":
            screen.press(key)
        changed.set()

    try:
        tty.setcbreak(descriptor)
        loop.add_reader(descriptor, read)
        sys.stdout.write(ENTER)
        yield
    finally:
        loop.remove_reader(descriptor)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
        sys.stdout.write(LEAVE)
        sys.stdout.flush()
