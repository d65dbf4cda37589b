# SPDX-License-Identifier: Apache-2.0
"""Shows the output of a command again and again, like `watch`."""

import asyncio
import inspect
import io
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import partial, wraps
from typing import Annotated, Any, Final, get_type_hints

import typer

from cometmq.cli.access import ACCESS
from cometmq.cli.connecting import run
from cometmq.cli.failures import print_error, print_missing
from cometmq.cli.option_sets import opt, with_parameters
from cometmq.cli.outcome import MISSING
from cometmq.cli.say import say
from cometmq.cli.streams import OutputFailed, fail_if_output_closes, is_terminal
from cometmq.client.clock import wall_ms
from cometmq.insight.times import shown
from cometmq.remoting.errors import CometError
from cometmq.runtime.hangup import interrupts_kept

INTERVAL_S_MIN: Final = 0.1
INTERVAL_S_MAX: Final = 86_400
Every = Annotated[
    float | None,
    opt(
        "--watch", "Repeat until Ctrl-C.", min=INTERVAL_S_MIN, max=INTERVAL_S_MAX, metavar="SECONDS"
    ),
]
_CLEAR: Final = "\x1b[H\x1b[2J"


def watch(ask: Callable[[], Callable[[], None]], every_s: float, *, as_json: bool) -> None:
    """Ask, and print the answer, every `every_s` seconds, until a signal ends the command.

    `ask` returns a function that prints, so a terminal is cleared only once the answer has arrived.
    In a pipe or a file, the answers are printed one after another; in JSON, each answer is a
    document. Errors end the command only if there has been no answer yet, because servers may
    restart meanwhile.
    """
    is_redrawn = is_terminal(sys.stdout) and not as_json
    has_answer = False
    with interrupts_kept() as check:
        while True:
            try:
                show = ask()
                if is_redrawn:
                    sys.stdout.write(_CLEAR)
                elif has_answer and not as_json:
                    say()
                if not as_json:
                    again = f"; again every {every_s:g} s, Ctrl-C ends" if is_redrawn else ""
                    say(f"{shown(wall_ms())}{again}")
                show()
                has_answer = True
            except OutputFailed:
                raise
            except CometError as error:
                if not has_answer:
                    raise
                print_error(error)
            except typer.Exit as end:  # no broker has answered, wrong usage, or a signal
                if not has_answer or end.exit_code != 1:
                    raise
            sys.stdout.flush()
            print_missing()
            MISSING.clear()  # printed
            check()
            run(_pause(every_s))


def watched(command: Callable[..., None]) -> Callable[..., None]:
    """Add `--watch` to a command that lists something."""
    option = inspect.Parameter(
        "every_s", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Every
    )
    hints = get_type_hints(command, include_extras=True)

    @wraps(command)
    def run_command(**values: Any) -> None:
        every_s = values.pop("every_s")
        if every_s is None:
            command(**values)
        else:
            shown = partial(_captured, partial(command, **values))
            watch(shown, every_s, as_json=ACCESS.get().as_json)

    parameters = [
        it.replace(annotation=hints.get(it.name, it.annotation))
        for it in inspect.signature(command).parameters.values()
    ]
    return with_parameters(run_command, [*parameters, option])


class _Page(io.StringIO):
    """The output of one round, laid out for the place where it is shown."""

    def isatty(self) -> bool:
        """Return whether the output is a terminal."""
        return is_terminal(sys.__stdout__)


def _captured(command: Callable[[], None]) -> Callable[[], None]:
    """Run a command; return a function that prints its output."""
    page = _Page()
    with redirect_stdout(page):
        command()
    return partial(typer.echo, page.getvalue(), nl=False)  # noqa: TID251  # safe, with colours


async def _pause(seconds: float) -> None:
    """Wait, and raise OutputClosed at once if the reader of standard output closes it."""
    async with asyncio.TaskGroup() as tasks:
        watch = tasks.create_task(fail_if_output_closes())
        await asyncio.sleep(seconds)
        watch.cancel()
