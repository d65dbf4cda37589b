# SPDX-License-Identifier: Apache-2.0
"""`cometmq help` and `cometmq version`: the options `--help` and `--version` as commands."""

from importlib import import_module
from typing import Annotated

import typer

from cometmq.cli.output import AsJson, print_json

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command("help")
def show_help(
    ctx: typer.Context,
    command: Annotated[
        list[str] | None, typer.Argument(help="Command and subcommand, as in: topic create.")
    ] = None,
) -> None:
    """Show help for a command, or list all commands."""
    args = [*(command or ()), "--help"]
    ctx.find_root().command.main(args, prog_name="cometmq", standalone_mode=False)


@app.command("version")
def show_version(*, as_json: AsJson = False) -> None:
    """Print the version."""
    if as_json:
        print_json({"version": version()})
    else:
        typer.echo(version_line())


def version_line() -> str:
    """Return the program and its version."""
    return f"cometmq {version()}"


def version() -> str:
    """Return the version of the distribution."""
    metadata = import_module("importlib.metadata")  # 12 ms that other commands save
    found: str = metadata.version("cometmq-cli")
    return found
