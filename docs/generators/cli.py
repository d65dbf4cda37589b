# SPDX-License-Identifier: Apache-2.0
"""docs/reference/cli.md: the help page of every command of `cometmq`."""

from collections.abc import Iterator
from importlib import import_module
from typing import Any, Final

import typer

from cometmq.cli.main import COMMANDS

from .markdown import notice, table

WIDTH: Final = 92

INTRODUCTION: Final = """\
`cometmq COMMAND --help` prints the same. Exit status: 0 done, 1 failed, 2 wrong usage, settings
or environment (with one line that says what to change), 130 interrupted.
"""


def page() -> str:
    """Return the reference of the command line."""
    lines = ["# Command line", "", notice("cli"), "", *INTRODUCTION.split("\n")]
    rows = ((f"[{name}](#cometmq-{name})", info.help) for name, info in COMMANDS.items())
    lines += table(("command", "what it does"), rows)
    for name, info in COMMANDS.items():
        command = typer.main.get_command(import_module(info.module).app)
        lines += _section(command, f"cometmq {name}")
    return "\n".join(lines) + "\n"


def _section(command: Any, path: str) -> Iterator[str]:
    """Yield the help page of a command, then those of its own commands."""
    command.rich_markup_mode = None  # plain text, whatever terminal there is
    context = typer.Context(command, info_name=path, terminal_width=WIDTH, max_content_width=WIDTH)
    level = "#" * (path.count(" ") + 1)
    yield from ("", f"{level} {path}", "", "```text", command.get_help(context).rstrip(), "```")
    for name, child in getattr(command, "commands", {}).items():
        yield from _section(child, f"{path} {name}")
