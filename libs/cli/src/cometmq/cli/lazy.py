# SPDX-License-Identifier: Apache-2.0
"""A command group that imports a command only when it is called.

`cometmq --help` and every command start in a fraction of the time that it takes to import the
broker, the client and the table printer. The table of commands contains everything that the help
page needs.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from math import isfinite
from typing import Any, Final, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from cometmq.cli.access import add_global_options, use_namespace
from cometmq.cli.say import say
from cometmq.remoting.visible import is_utf8
from cometmq.runtime.extras import INSTALL_EXTRA, needs_extra
from cometmq.runtime.process.garbage import no_collections

EXIT_USAGE: Final = 2
AREAS_HELP: Final = "What they do: cometmq help AREA (such as messages); cometmq help all"
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
        family, app = app, typer.Typer(add_completion=False, rich_markup_mode=None)
        app.registered_commands = [it for it in family.registered_commands if it.name == name]
    command: Any = typer.main.get_command(app)
    command.name = name
    command.rich_markup_mode = None  # boxes need rich, which is slow to import
    check_values(command)
    name_in_errors(command)
    list_untruncated(command)
    shorten_help(command, takes_global=info.takes_global_options)
    if not info.may_repeat:
        require_single(command)
    return command


def list_untruncated(command: Any) -> None:
    """Make the help page of a group show the first paragraph of each command's help in full."""
    for child in getattr(command, "commands", {}).values():
        child.short_help = " ".join((child.help or "").partition("\n\n")[0].split())


def write_options(command: Any, ctx: Any, formatter: Any, *, takes_global: bool) -> None:
    """Write the options of a command, and the commands of a group."""
    pages = import_module("cometmq.cli.hints.help_pages")  # not before a page is wanted
    pages.write_options(command, ctx, formatter, takes_global=takes_global)
    if hasattr(command, "commands"):
        command.format_commands(ctx, formatter)


def shorten_help(command: Any, *, takes_global: bool) -> None:
    """Make the help pages of a command and its subcommands fit on a screen."""

    command.format_options = partial(write_options, command, takes_global=takes_global)
    for child in getattr(command, "commands", {}).values():
        shorten_help(child, takes_global=takes_global)


def name_in_errors(command: Any) -> None:
    """Make errors of the parser name the command, so that its help page can be suggested.

    Click's own errors do not name it if the value of an option is missing.
    """
    parse = command.parse_args

    def parse_args(ctx: Any, args: list[str]) -> Any:
        try:
            return parse(ctx, args)
        except Exception as error:
            if getattr(error, "ctx", ctx) is None:
                error.ctx = ctx  # type: ignore[attr-defined]  # typer does not export the class
            raise

    command.parse_args = parse_args
    for child in getattr(command, "commands", {}).values():
        name_in_errors(child)


def check_values(command: Any) -> None:
    """Make a command and its subcommands refuse texts that are not UTF-8, and name the bounds of
    numbers if a value is not a number. Also refuse nan and inf, which range checks accept.
    """
    for param in command.params:
        kind = param.type.name.partition(" ")[0]
        if isinstance(param.type, _Checked):
            continue  # of a group that was called before
        if kind in {"int", "integer", "float"} and isinstance(getattr(param, "nargs", None), int):
            param.type = _Number(param.type)
        elif kind in {"str", "text"} and param.name not in TAKE_BYTES:
            param.type = _Text(param.type)
    for child in getattr(command, "commands", {}).values():
        check_values(child)


class _Checked:
    """A click type that wraps another one and checks more."""

    def __init__(self, bounded: Any) -> None:
        self._bounded = bounded

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bounded, name)

    def __call__(self, value: Any, param: Any = None, ctx: Any = None) -> Any:
        return None if value is None else self.convert(value, param, ctx)


class _Text(_Checked):
    """A click type for texts that UTF-8 can encode.

    Python keeps other bytes of an argument or a variable as lone surrogates.
    """

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        found = self._bounded.convert(value, param, ctx)
        if not is_utf8(found):
            self._bounded.fail("it is not UTF-8: convert it with iconv", param, ctx)
        return found


class _Number(_Checked):
    """A click type for finite numbers within the bounds of the wrapped type."""

    def __init__(self, bounded: Any) -> None:
        super().__init__(bounded)
        self._is_float = "float" in bounded.name

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        try:
            is_number = isfinite(float(value) if self._is_float else int(value))
        except OverflowError:  # an integer that is larger than every float
            is_number = True
        except ValueError:
            is_number = False
        if not is_number:
            self._bounded.fail(f"{value!r} must be {self._wanted()}", param, ctx)
        return self._bounded.convert(value, param, ctx)

    def _wanted(self) -> str:
        noun = "a number" if self._is_float else "a whole number"
        low, high = (getattr(self._bounded, name, None) for name in ("min", "max"))
        if low is not None and high is not None:
            return f"{noun} from {low} to {high}"
        return noun if low is None else f"{noun} >= {low}"


def require_single(command: Any) -> None:
    """Make a command and its subcommands refuse an option that is given twice.

    Otherwise the last value wins silently. mqadmin's commands are left as they are (`may_repeat`).
    """
    for child in getattr(command, "commands", {}).values():
        require_single(child)
    if getattr(command, "may_repeat", False):
        return
    parse = command.parse_args

    def parse_args(ctx: Any, args: list[str]) -> Any:
        refuse_repeated(command, ctx, args)
        return parse(ctx, args)

    command.parse_args = parse_args


def refuse_repeated(command: Any, ctx: Any, args: Sequence[str]) -> None:
    """Fail if an option that takes one value is given twice, or together with its opposite."""
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


class LazyGroup(TyperGroup):
    """A command group that reads its commands from a table.

    Set `table` in a subclass, and pass the subclass to `typer.Typer` as `cls`.
    """

    table: Mapping[str, CommandInfo] = {}
    aliases: Mapping[str, str] = {}
    """Other names of commands, in lower case."""
    areas: Mapping[str, str] = {}
    """The panels that the help page shows, each with the word after `cometmq help` that describes
    its commands; without any, the help page describes all commands.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Parse, unless an option is given twice or is not UTF-8."""
        check_values(self)
        refuse_repeated(self, ctx, args)
        return super().parse_args(ctx, args)

    def suggested(self, _word: str) -> Sequence[str]:
        """Return commands to suggest for an unknown word in lower case; override to suggest any."""
        return ()

    def list_commands(self, _ctx: Any) -> list[str]:
        """Return the names in the order of the table."""
        return list(self.table)

    def get_command(self, _ctx: Any, cmd_name: str) -> Any:
        """Return a stand-in for the help page, without loading the command."""
        info = self.table.get(cmd_name)
        if info is None:
            return None
        return TyperCommand(cmd_name, help=info.help, rich_help_panel=info.panel)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options, and then the commands."""
        write_options(self, ctx, formatter, takes_global=False)

    def format_commands(self, _ctx: Any, formatter: Any) -> None:
        """List the commands last: by area, if there are too many to describe on one screen."""
        if not self.areas:
            formatter.write_paragraph()
            self.describe(formatter, dict.fromkeys(it.panel for it in self.table.values()))
            return
        with formatter.section("Commands"):
            formatter.write_dl(
                [(word, ", ".join(self._of(panel))) for panel, word in self.areas.items()]
            )
            formatter.write_text(AREAS_HELP)

    def describe(self, formatter: Any, panels: Iterable[str]) -> None:
        """Describe the commands of panels, one after another."""
        shown = {panel: self._of(panel) for panel in panels}
        width = max(len(name) for found in shown.values() for name in found)
        for panel, found in shown.items():
            formatter.write_heading(panel)
            with formatter.indentation():
                formatter.write_dl([(f"{name:<{width}}", it.help) for name, it in found.items()])

    def _of(self, panel: str) -> Mapping[str, CommandInfo]:
        return {name: info for name, info in self.table.items() if info.panel == panel}

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
            if info.takes_global_options:
                add_global_options(command, ctx.find_root().command.params)
                if not info.takes_full_names:
                    use_namespace(command)
            if ctx.resilient_parsing:  # a shell completes
                import_module("cometmq.cli.hints.completion").complete_names(command)
        return called, command, rest
