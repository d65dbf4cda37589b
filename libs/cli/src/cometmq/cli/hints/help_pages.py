# SPDX-License-Identifier: Apache-2.0
"""Help pages that fit on 80 columns and 24 lines. Options that many commands share are only named;
`cometmq help options` describes them.

An option is shared if its panel is `access.COMMON`.
"""

import re
import shutil
from collections.abc import Iterable
from importlib import import_module
from typing import Any, Final

import typer

from cometmq.cli.access import COMMON, JOINED

PAGE: Final = "options"
"""The word after `cometmq help` that shows the shared options."""
ALL: Final = "all"
"""The word after `cometmq help` that describes all commands."""
MQADMIN: Final = "mqadmin"
"""The command whose commands have areas of their own."""
MQADMIN_LIST: Final = "cometmq.cli.mqadmin.listing"
MQADMIN_HELP: Final = (
    "Names, options and output match mqadmin's, and no command asks for confirmation, so existing"
    " scripts keep working. Every command also takes --json."
)
_METAVARS: Final = {"str": "TEXT", "int": "N", "float": "N", "true|false": "BOOL"}
_METAVAR: Final = re.compile(r"<(str|int|float|path|file|true\|false)(?: range)?>")
_LEAST: Final = re.compile(r" *\[x>=[01]\]|; x>=[01](?=[];])|(?<=\[)x>=[01]; ")
"""Lower bounds of 0 and 1, which help pages leave out."""


_COLUMNS_MAX: Final = 80


def page_columns() -> int:
    """Return the width of help pages: that of the terminal, but at most 80 columns.

    Click's default is two columns narrower, and would wrap many lines.
    """
    return min(shutil.get_terminal_size().columns, _COLUMNS_MAX)


def write_options(command: Any, ctx: Any, formatter: Any, *, takes_global: bool) -> None:
    """Write the arguments and options of a command, the shared ones in one line."""
    params = command.get_params(ctx)
    own = [it for it in params if not is_shared(it)]
    has_arguments = any(it.param_type_name == "argument" for it in params)
    with formatter.section("Arguments and options" if has_arguments else "Options"):
        if rows := _rows(own, ctx):
            formatter.write_dl(rows)
        shared = [it for it in params if is_shared(it) and not it.hidden]
        names = [min(it.opts, key=len) for it in shared]
        more = "; context, account, TLS" if takes_global else ""
        formatter.write_text(f"And {', '.join(names)}{more}: cometmq help {PAGE}")


def is_shared(option: Any) -> bool:
    """Return whether the pages of commands only name this option."""
    return getattr(option, "rich_help_panel", "") == COMMON or option.name == "help"


def further_page(root: Any, *words: str) -> str:
    """Return a page of `cometmq help` that is no command's, or nothing; `root` is the context of
    `cometmq`.
    """
    if words == (PAGE,):
        return options_page(root)
    group, formatter = root.command, root.make_formatter()
    if words[:1] == (MQADMIN,):
        group, words = typer.main.get_command(import_module(MQADMIN_LIST).app), words[1:]
        formatter.write_text(MQADMIN_HELP)
        formatter.write_paragraph()
    areas: dict[str, str] = group.areas
    panels = [it for it, word in areas.items() if words in {(word,), (ALL,)}]
    if not panels:
        return ""
    group.describe(formatter, panels)
    return str(formatter.getvalue())


def options_page(root: Any) -> str:
    """Return the page that describes the shared options."""
    formatter = root.make_formatter()
    params = _options_of_commands()
    names = {it.opts[-1] for it in params}
    params += [it for it in root.command.params if is_shared(it) and it.opts[-1] not in names]
    with formatter.section(
        "Options of many commands (-n, --json, --timeout, account, TLS also before them)"
    ):
        formatter.write_dl(_rows(params, root))
    return str(formatter.getvalue())


def _options_of_commands() -> list[Any]:
    from cometmq.cli.connecting import DEFAULT_NAMESRV, DryRunOption, Namesrv, Yes  # noqa: PLC0415
    from cometmq.cli.output import AsJson  # noqa: PLC0415
    from cometmq.cli.programs.running import LogJson, LogLevel  # noqa: PLC0415
    from cometmq.cli.watching import Every  # noqa: PLC0415

    shared = typer.Typer(add_completion=False)

    @shared.command()
    def options(
        namesrv: Namesrv = DEFAULT_NAMESRV,
        yes: Yes = False,
        dry_run: DryRunOption = False,
        as_json: AsJson = False,
        every_s: Every = None,
        log_level: LogLevel = "info",
        log_json: LogJson = None,
    ) -> None: ...

    return list(typer.main.get_command(shared).params)


def _rows(params: Iterable[Any], ctx: Any) -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for param in params:
        record = param.get_help_record(ctx)
        if record is None:  # hidden
            continue
        names, text = _METAVAR.sub(_metavar, record[0]), _LEAST.sub("", record[1])
        text = text.replace("[env var: ", "[$")
        if param.rich_help_panel == JOINED:
            before, about = rows.pop()
            names, text = f"{before}, {names}", f"{about} {text}"
        rows.append((names, text))
    return rows


def _metavar(found: re.Match[str]) -> str:
    return _METAVARS.get(found[1], found[1].upper())
