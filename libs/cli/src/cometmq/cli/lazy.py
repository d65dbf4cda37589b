# SPDX-License-Identifier: Apache-2.0
"""A command group whose commands are imported when they are called, not before.

`cometmq --help` and every command start in a fraction of the time that importing the broker, the
client and the table printer takes. The table of commands says all that the help page needs.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup


class CommandInfo(NamedTuple):
    """One command: the module whose `app` has it, its line of help, its panel on the help page."""

    module: str
    help: str
    panel: str
    is_in_family: bool = False
    """The module's app has several commands, of which one has this name."""


def load_command(name: str, info: CommandInfo) -> Any:
    """Import a command; of a family only the one that is asked for is built."""
    app: typer.Typer = import_module(info.module).app
    if info.is_in_family:
        family, app = app, typer.Typer(add_completion=False, rich_markup_mode=None)
        app.registered_commands = [it for it in family.registered_commands if it.name == name]
    command = typer.main.get_command(app)
    command.name = name
    return command


class LazyGroup(TyperGroup):
    """Reads its commands from a table; give a subclass with `table` set to `typer.Typer(cls=)`."""

    table: Mapping[str, CommandInfo] = {}
    aliases: Mapping[str, str] = {}
    """Other names of commands, in lower case."""

    def list_commands(self, _ctx: Any) -> list[str]:
        """Return the names in the order of the table."""
        return list(self.table)

    def get_command(self, _ctx: Any, cmd_name: str) -> Any:
        """Return what the help page shows; the command itself stays unloaded."""
        info = self.table.get(cmd_name)
        if info is None:
            return None
        return TyperCommand(cmd_name, help=info.help, rich_help_panel=info.panel)

    def format_commands(self, _ctx: Any, formatter: Any) -> None:
        """Write the commands under the heading of their panel."""
        panels: dict[str, list[tuple[str, str]]] = {}
        for name, info in self.table.items():
            panels.setdefault(info.panel, []).append((name, info.help))
        for panel, rows in panels.items():
            with formatter.section(panel):
                formatter.write_dl(rows)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Load the command that is called; mqadmin takes names in any case."""
        for name in self.table:  # the names that "did you mean" chooses from
            self.add_command(self.get_command(ctx, name), name)
        spelt = {**{name.lower(): name for name in self.table}, **self.aliases}
        if args[0] not in self.table:
            args = [spelt.get(args[0].lower(), args[0]), *args[1:]]
        called, command, rest = super().resolve_command(ctx, args)
        if called is not None and command is not None:
            command = load_command(called, self.table[called])
        return called, command, rest
