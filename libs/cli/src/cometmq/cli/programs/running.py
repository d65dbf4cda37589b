# SPDX-License-Identifier: Apache-2.0
"""Options, log, start and stop of the commands that run a program."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from cometmq.cli.access import NAMESRV_HELP, namesrv_or_global
from cometmq.cli.lazy import imports_of
from cometmq.cli.option_sets import OptionSet, opt
from cometmq.cli.output import print_notes
from cometmq.cli.say import say
from cometmq.remoting.errors import SettingsError
from cometmq.remoting.log import Log
from cometmq.runtime import logging
from cometmq.runtime.program import configured_program
from cometmq.runtime.programs import PROGRAMS
from cometmq.runtime.service import EXIT_CANNOT_START, EXIT_FAILED, EXIT_OK, run
from cometmq.runtime.settings import Loaded
from cometmq.runtime.settings import load as load_settings
from cometmq.runtime.settings.fields import describe
from cometmq.runtime.settings.mistakes import refuse_wrong_file

OWN_OPTIONS: Final = {"allow_extra_args": True, "ignore_unknown_options": True}
"""Context settings of a command that accepts every setting as an option."""


def _settings_file(text: str) -> Path:
    """Refuse an empty path, as after an unset variable in a script; Path("") is the folder."""
    if not text:
        raise fail("-c is empty: give the path of a file")
    return Path(text)


ConfigFile = Annotated[
    Path | None,
    opt(
        "-c",
        "--config",
        "Settings file, in RocketMQ's properties format or TOML.",
        parser=_settings_file,
        metavar="PATH",
    ),
]
Namesrv = Annotated[str | None, opt("-n", "--namesrv", NAMESRV_HELP, callback=namesrv_or_global)]
LogLevel = Annotated[
    str,
    opt(
        "Log level: debug, info, warning or error.", envvar="COMETMQ_LOG_LEVEL", show_default=False
    ),
]
LogJson = Annotated[
    bool | None,
    opt(
        "--log-json/--log-text",
        "Log format; by default text on a terminal, otherwise JSON.",
        envvar="COMETMQ_LOG_JSON",
    ),
]


class RunOptions(OptionSet, frozen=True, kw_only=True):
    """The options of every program that runs in a process of its own."""

    print_settings: Annotated[
        bool,
        opt(
            "-p",
            "--print-settings",
            "Print all settings with their sources, and exit; status 1 if one is probably a"
            " mistake.",
        ),
    ] = False
    describe_settings: Annotated[
        bool, opt("--describe-settings", "Print what each setting does, and exit.")
    ] = False
    log_level: LogLevel = "info"
    log_json: LogJson = None


@contextmanager
def exit_on_bad_settings() -> Iterator[None]:
    """If settings are invalid, print one line for each and exit with status 2."""
    try:
        yield
    except SettingsError as error:
        raise fail(str(error)) from error


def fail(text: str) -> typer.Exit:
    """Print the lines of a text; return the `Exit` for a program that could not start."""
    for line in text.splitlines():
        say(f"cometmq: {line}", err=True)
    return typer.Exit(EXIT_CANNOT_START)


def configure_log(name: str, *, level: str, json: bool | None) -> Log:
    """Configure logging for the process and return the program's logger."""
    if level not in logging.LEVELS:
        raise fail(f"--log-level={level}: must be one of {', '.join(logging.LEVELS)}")
    logging.configure(json=json, level=level)
    return logging.get(name)


def warn_unknown(loaded: Loaded[Any], log: Log) -> None:
    """Log unknown keys of the settings file, and each key or variable that is probably a
    mistake.
    """
    mistakes = loaded.mistakes
    if mistakes.places:
        log.warning("settings.unknown", keys=sorted(mistakes.places), **mistakes.facts())
    if mistakes.unread:
        log.warning("variables.unread", did_you_mean=dict(mistakes.unread))


def named(namesrv: str | None) -> dict[str, str]:
    """Return the setting given by --namesrv, if any."""
    return {} if namesrv is None else {"namesrvAddr": namesrv}


def run_program(  # noqa: PLR0913  # one for each way in which programs differ
    name: str,
    config: Path | None,
    running: RunOptions,
    *,
    args: Sequence[str] = (),
    cli: Mapping[str, str] | None = None,
    load: Callable[[], Loaded[Any]] | None = None,
    table: Callable[[Loaded[Any]], str] = Loaded.as_table,
    more: Mapping[str, Any] | None = None,
) -> None:
    """Load the settings and print them, or run the program until a signal stops it.

    `args` and `cli` are the settings on the command line; `load` replaces the usual way to load
    them, `table` renders them, and `more` are further arguments of the program's class.
    """
    program = PROGRAMS[name]
    with imports_of(name):
        settings_type, app_type = program.settings_type(), program.app_type()
    with exit_on_bad_settings():
        if load is None:
            load = partial(
                load_settings, settings_type, prefix=program.prefix, file=config, cli=cli, args=args
            )
        settings = load()
        if running.describe_settings:
            say(describe(settings_type), nl=False)
            raise typer.Exit(EXIT_OK)
        refuse_wrong_file(name, settings, config)
    if running.print_settings:
        say(table(settings), nl=False)
        lines = settings.mistakes.lines()
        print_notes(lines)
        raise typer.Exit(EXIT_FAILED if lines else EXIT_OK)
    log = configure_log(name, level=running.log_level, json=running.log_json)
    warn_unknown(settings, log)
    build = partial(app_type, settings, **(more or {}))
    sys.exit(run(configured_program(build, settings, log=log), log=log))
