# SPDX-License-Identifier: Apache-2.0
"""`cometmq help` and `cometmq version`: the options `--help` and `--version` as commands."""

from typing import Annotated

import typer

from cometmq.cli.lazy import App
from cometmq.cli.output import AsJson, print_json
from cometmq.cli.say import say
from cometmq.remoting.versions import CURRENT_VERSION, version_name
from cometmq.runtime.version import VERSION

app = App()


@app.command("help")
def show_help(
    ctx: typer.Context,
    command: Annotated[list[str] | None, typer.Argument(help="As in: topic create.")] = None,
) -> None:
    """Show help for a command.

    \b
    EXAMPLE
      cometmq help topic create
    """
    args = [*(command or ()), "--help"]
    ctx.find_root().command.main(args, prog_name="cometmq", standalone_mode=False)


@app.command("version")
def show_version(*, as_json: AsJson = False) -> None:
    """Print the version of this program, and of RocketMQ's protocol as it speaks it.

    \b
    EXAMPLE
      cometmq version --json
    """
    if as_json:
        print_json({"version": VERSION, "wire_version": wire_version()})
    else:
        say(version_line())


def version_line() -> str:
    """Return the program and its version."""
    return f"cometmq {VERSION}, wire {wire_version()}"


def wire_version() -> str:
    """Return the version that peers see; 5.x clients of the remoting protocol accept it, too."""
    return version_name(CURRENT_VERSION)
