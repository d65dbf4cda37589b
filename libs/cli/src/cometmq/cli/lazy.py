# SPDX-License-Identifier: Apache-2.0
"""Our commands and groups of commands, and a group that imports a command only when it is called.

`cometmq --help` and every command start in a fraction of the time that it takes to import the
broker, the client and the table printer. The table of commands contains everything that the help
page needs.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from math import isfinite
from typing import Any, Final, NamedTuple, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from cometmq.cli.access import after_command, in_namespace, resolve_timeout
from cometmq.cli.option_sets import as_command
from cometmq.cli.say import say
from cometmq.remoting.visible import is_utf8
from cometmq.runtime.extras import INSTALL_EXTRA, needs_extra
from cometmq.runtime.process.garbage import no_collections

F = TypeVar("F", bound=Callable[..., Any])

EXIT_USAGE: Final = 2
TAKE_BYTES: Final = frozenset({"body", "format_"})
"""Parameters whose values may be any bytes; paths may be, too."""
_EMPTY_OPTION: Final = re.compile(r"--[a-z-]+=")


class CommandInfo(NamedTuple):
    """A command: the module whose `app` defines it, its help line, and its help-page panel."""

    module: str
    help: str
    panel: str
    is_in_family: bool = False
    """Whether the module's app has several commands, of which this is the one with the same name.
    """
    takes_global_options: bool = True
    """Whether options of `cometmq` may follow the command."""
    takes_full_names: bool = False
    """Whether names include their namespace, as in mqadmin."""
    accepts_empty: bool = False
    """Whether values may be empty, as in mqadmin and in the settings of programs."""
    may_repeat: bool = False
    """Whether the last value of a repeated option wins; wrappers of programs append options."""
    exit_usage: int = EXIT_USAGE
    """The exit status after wrong usage."""


class _Ours:
    """What our commands and groups do beyond Typer's: they take the options of `cometmq`, and
    refuse values that are not UTF-8 or not finite, and options that are given twice.
    """

    info = CommandInfo("", "", "", takes_global_options=False)
    """That of the command below `cometmq`."""
    params: list[Any]

    def get_params(self, ctx: Any) -> list[Any]:
        """Return also the options of `cometmq`, hidden."""
        own: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        if not self.info.takes_global_options:
            return own
        taken = {name for it in own for name in it.opts}
        root, is_group = ctx.find_root().command, hasattr(self, "commands")
        return [*own, *after_command(root.params, taken, is_group=is_group)]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse and check; errors name the command, so that its help page can be suggested."""
        if not self.info.may_repeat:
            refuse_repeated(self, ctx, args)
        try:
            rest: list[str] = super().parse_args(ctx, args)  # type: ignore[misc]
        except Exception as error:
            if getattr(error, "ctx", ctx) is None:
                error.ctx = ctx  # type: ignore[attr-defined]  # typer does not export the class
            raise
        for it in self.params:
            value = ctx.params.get(it.name)
            if isinstance(value, float) and not isfinite(value):
                ctx.fail(f"Invalid value for '{it.opts[0]}': {value} is not a number")
            is_text = (
                it.type.name.partition(" ")[0] in {"str", "text"} and it.name not in TAKE_BYTES
            )
            many = value if isinstance(value, list | tuple) else [value]
            if is_text and not all(is_utf8(one) for one in many if isinstance(one, str)):
                ctx.fail(f"{it.opts[0]} is not UTF-8: convert it with iconv")
        if self.info.takes_global_options:
            resolve_timeout(ctx, self.params)
            if not self.info.takes_full_names:
                in_namespace(ctx)
        return rest


class Verb(_Ours, TyperCommand):
    """A command."""

    def get_short_help_str(self, _limit: int = 0) -> str:
        """Return the first paragraph of the help, for the page of a group."""
        return " ".join((self.help or "").partition("\n\n")[0].split())


class Group(_Ours, TyperGroup):
    """A group of commands."""


class App(typer.Typer):
    """Commands that share a module; with `text`, a group with this help."""

    def __init__(self, text: str | None = None, **more: Any) -> None:
        if text is not None:
            more["help"] = text
        super().__init__(
            **{"cls": Group, "no_args_is_help": True, "add_completion": False, **more},
            rich_markup_mode=None,  # boxes need rich, which is slow to import
        )

    def command(  # type: ignore[override]  # further arguments are Typer's
        self, name: str | None = None, *, cls: type[TyperCommand] = Verb, **more: Any
    ) -> Callable[[F], F]:
        """Return a decorator that adds a command; see `as_command` for what it may be."""
        add = super().command(name, cls=cls, **more)
        return lambda function: add(as_command(function))


@contextmanager
def imports_of(name: str) -> Iterator[None]:
    """Import what a command needs; print one line and exit if an extra is not installed."""
    try:
        with no_collections():
            yield
    except ModuleNotFoundError as error:
        if not needs_extra(error):
            raise
        say(f"cometmq {name}: {error}: {INSTALL_EXTRA}", err=True)
        raise typer.Exit(EXIT_USAGE) from error


def load_command(name: str, info: CommandInfo) -> Any:
    """Import a command. If its module defines several, build only this one."""
    with imports_of(name):
        app: typer.Typer = import_module(info.module).app
    if info.is_in_family:
        family, app = app, App()
        app.registered_commands = [it for it in family.registered_commands if it.name == name]
    command: Any = typer.main.get_command(app)
    command.name = name
    _adopt(command, info)
    return command


def _adopt(command: Any, info: CommandInfo) -> None:
    command.info = info
    for child in getattr(command, "commands", {}).values():
        _adopt(child, info)


def refuse_repeated(command: Any, ctx: Any, args: Sequence[str]) -> None:
    """Fail if an option that takes one value is given twice, or together with its opposite."""
    if getattr(command, "may_repeat", False):
        return
    try:
        _, _, given = command.make_parser(ctx).parse_args(args=list(args))
    except Exception:  # noqa: BLE001  # typer does not export its class of errors
        return  # the command parses again, and reports it
    for param in {id(it): it for it in given if given.count(it) > 1}.values():
        is_single = not (param.multiple or param.count) if param.opts[0][:1] == "-" else False
        is_switch = param.is_flag and not param.secondary_opts if is_single else False
        if is_single and not is_switch:
            names = "/".join([max(param.opts, key=len), *param.secondary_opts])
            ctx.fail(f"{names} is given more than once: give it once")


def refuse_empty(command: str, args: Sequence[str]) -> None:
    """Print one line and exit if an argument is empty, as after an unset variable in a script."""
    for number, arg in enumerate(args, 1):
        before = args[number - 2] if number > 1 else ""
        if not arg:
            place = before if before.startswith("-") else f"the argument after {before or command}"
        elif _EMPTY_OPTION.fullmatch(arg):
            place = arg[:-1]
        else:
            continue
        say(f"cometmq {command}: {place} is empty: give a value", err=True)
        raise typer.Exit(EXIT_USAGE)


class LazyGroup(Group):
    """A command group that reads its commands from a table.

    Set `table` in a subclass, and pass the subclass to `typer.Typer` as `cls`.
    """

    table: Mapping[str, CommandInfo] = {}
    aliases: Mapping[str, str] = {}
    """Other names of commands, in lower case."""
    panels: Sequence[str] = ()
    """The panels that the help page shows."""

    def suggested(self, _word: str) -> Sequence[str]:
        """Return commands to suggest for an unknown word in lower case; override to suggest any."""
        return ()

    def list_commands(self, _ctx: Any) -> list[str]:
        """Return the names in the order of the table."""
        return list(self.table)

    def get_command(self, _ctx: Any, cmd_name: str) -> Any:
        """Return a stand-in for the help page, without loading the command."""
        info = self.table.get(cmd_name)
        return None if info is None else Verb(cmd_name, help=info.help)

    def format_commands(self, _ctx: Any, formatter: Any) -> None:
        """Describe the commands of the panels, one after another."""
        width = max(len(it) for it, info in self.table.items() if info.panel in self.panels)
        for panel in self.panels:
            found = {it: info.help for it, info in self.table.items() if info.panel == panel}
            with formatter.section(panel):
                formatter.write_dl([(f"{name:<{width}}", text) for name, text in found.items()])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Load the called command; names are matched regardless of case, as in mqadmin."""
        for name in self.table:  # candidates for "did you mean"
            self.add_command(self.get_command(ctx, name), name)
        spelt = {**{name.lower(): name for name in self.table}, **self.aliases}
        if args[0] not in self.table:
            args = [spelt.get(args[0].lower(), args[0]), *args[1:]]
        if args[0] not in self.table and (names := self.suggested(args[0].lower())):
            ctx.fail(
                f"No such command '{args[0]}'. See: {', '.join(names)}; cometmq mqadmin --help"
            )
        called, command, rest = super().resolve_command(ctx, args)
        if called is not None and command is not None:
            info = self.table[called]
            command = load_command(called, info)
            if not info.accepts_empty:
                refuse_empty(called, rest)
            if ctx.resilient_parsing:  # a shell completes
                import_module("cometmq.cli.hints").complete_names(command)
        return called, command, rest
