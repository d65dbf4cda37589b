# SPDX-License-Identifier: Apache-2.0
"""Options, log, start and stop of the commands that run a program."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import msgspec
import typer

from cometmq.cli.access import namesrv_or_global
from cometmq.cli.option_sets import OptionSet
from cometmq.cli.output import print_notes
from cometmq.remoting.errors import SettingsError
from cometmq.remoting.log import Log
from cometmq.runtime import logging
from cometmq.runtime.program import Build, configured_program
from cometmq.runtime.service import EXIT_CANNOT_START, EXIT_FAILED, EXIT_OK, run
from cometmq.runtime.settings import Loaded, parse_options

S = TypeVar("S", bound=msgspec.Struct)

OWN_OPTIONS: Final = {"allow_extra_args": True, "ignore_unknown_options": True}
"""Context settings of a command that accepts every setting as an option."""

ConfigFile = Annotated[
    Path | None,
    typer.Option("-c", "--config", help="Settings file, in RocketMQ's properties format or TOML."),
]
Namesrv = Annotated[
    str | None,
    typer.Option(
        "-n", "--namesrv", help="Name servers, host:port;host:port.", callback=namesrv_or_global
    ),
]
LogLevel = Annotated[
    str, typer.Option(help="Log level: debug, info, warning or error.", envvar="COMETMQ_LOG_LEVEL")
]
LogJson = Annotated[
    bool | None,
    typer.Option(
        "--log-json/--log-text",
        help="Log format; by default text on a terminal, otherwise JSON.",
        envvar="COMETMQ_LOG_JSON",
    ),
]


class RunOptions(OptionSet, frozen=True, kw_only=True):
    """The options of every program that runs in a process of its own."""

    print_settings: Annotated[
        bool,
        typer.Option(
            "-p",
            "--print-settings",
            help="Print each setting with its source and exit; the status is 1 if a key in the"
            " file is mistyped.",
        ),
    ] = False
    log_level: LogLevel = "info"
    log_json: LogJson = None


OWN_KEYS: Final[Mapping[str, frozenset[str]]] = {
    "broker": frozenset(
        {"brokerName", "brokerClusterName", "brokerId", "brokerRole", "storePathRootDir"}
    ),
    "namesrv": frozenset({"kvConfigPath", "configStorePath", "orderMessageEnable", "clusterTest"}),
    "txn-checker": frozenset({"pollNameServerInterval", "questionsPerSecond"}),
}
"""Keys that distinguish one program's settings file from another's."""


@contextmanager
def exit_on_bad_settings() -> Iterator[None]:
    """If the settings are invalid, print one line and exit with status 2."""
    try:
        yield
    except SettingsError as error:
        raise fail(str(error)) from error


def fail(line: str) -> typer.Exit:
    """Print one line; return the `Exit` for a program that could not start."""
    typer.echo(f"cometmq: {line}", err=True)
    return typer.Exit(EXIT_CANNOT_START)


def configure_log(name: str, *, level: str, json: bool | None) -> Log:
    """Set up the log of the process and return the program's logger."""
    if level not in logging.LEVELS:
        raise fail(f"--log-level={level}: must be one of {', '.join(logging.LEVELS)}")
    logging.configure(json=json, level=level)
    return logging.get(name)


def warn_unknown(loaded: Loaded[Any], log: Log) -> None:
    """Log unknown keys of the settings file, with suggestions for mistyped ones."""
    if loaded.unknown:
        guesses = {"did_you_mean": guessed} if (guessed := loaded.misspelt()) else {}
        log.warning("settings.unknown", keys=sorted(loaded.unknown), **guesses)


def misspelt_lines(loaded: Loaded[Any], file: Path | None) -> list[str]:
    """Return a line for each key of the settings file that nearly matches a setting."""
    return [
        f"{name} in {file} is no setting; did you mean {guess}?"
        for name, guess in loaded.misspelt().items()
    ]


def refuse_file_of_another(name: str, loaded: Loaded[Any], file: Path | None) -> None:
    """Raise SettingsError if the file has keys that only a different program knows."""
    for other, keys in OWN_KEYS.items():
        if other != name and (found := sorted(keys & loaded.unknown.keys())):
            raise SettingsError(
                f"{file} is a settings file of cometmq {other}: {', '.join(found)} mean nothing to"
                f" {name}; give each program a file of its own"
            )


def given_options(ctx: typer.Context, settings: type[Any], namesrv: str | None) -> dict[str, str]:
    """Return the settings on the command line; `namesrv` is the value of --namesrv."""
    named = {} if namesrv is None else {"namesrvAddr": namesrv}
    return named | parse_options(settings, ctx.args)


def run_program(
    name: str,
    load: Callable[[], Loaded[S]],
    build: Callable[[Loaded[S]], Build],
    *,
    config: Path | None,
    running: RunOptions,
    shown: Callable[[Loaded[S]], Loaded[S]] = lambda loaded: loaded,
) -> None:
    """Load the settings and print them, or run the program until a signal stops it.

    `shown` completes the settings to print with values that the program derives from others.
    """
    with exit_on_bad_settings():
        settings = load()
        refuse_file_of_another(name, settings, config)
    if running.print_settings:
        typer.echo(shown(settings).as_table(), nl=False)
        lines = misspelt_lines(settings, config)
        print_notes(lines)
        raise typer.Exit(EXIT_FAILED if lines else EXIT_OK)
    log = configure_log(name, level=running.log_level, json=running.log_json)
    warn_unknown(settings, log)
    sys.exit(run(configured_program(build(settings), settings, log=log), log=log))
