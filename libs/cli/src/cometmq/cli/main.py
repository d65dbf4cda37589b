# SPDX-License-Identifier: Apache-2.0
"""The `cometmq` command: its table of commands and its exit status.

The exit statuses are listed in docs/reference/cli.md (docs/generators/cli.py).
"""

import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Annotated, Any, Final

import typer

from cometmq.cli.access import (
    ACCESS,
    Access,
    AccessKey,
    CredentialsFile,
    SecretKey,
    SecurityToken,
    Tls,
    TlsConfig,
)
from cometmq.cli.lazy import CommandInfo, LazyGroup
from cometmq.cli.mqadmin import ALIASES
from cometmq.cli.mqadmin import COMMANDS as MQADMIN_COMMANDS
from cometmq.cli.mqadmin import PANEL as MQADMIN_PANEL
from cometmq.cli.outcome import MISSING
from cometmq.cli.streams import OutputFailed, checked_streams
from cometmq.remoting.errors import CometError, SettingsError

PROGRAMS: Final = "Programs"
MESSAGES: Final = "Messages"
TOPICS: Final = "Topics and groups"
OPERATIONS: Final = "Operations"
MORE: Final = "More"


def _program(module: str, help_line: str) -> CommandInfo:
    """Return a command that accepts a program's settings as additional options."""
    return CommandInfo(module, help_line, PROGRAMS, takes_global_options=False, accepts_empty=True)


COMMANDS: Final[Mapping[str, CommandInfo]] = {
    "standalone": CommandInfo(
        "cometmq.cli.standalone",
        "Run name server, broker and txn-checker in one process.",
        PROGRAMS,
        takes_global_options=False,
    ),
    "namesrv": _program("cometmq.cli.programs.namesrv", "Run a name server."),
    "broker": _program("cometmq.cli.programs.broker", "Run a broker."),
    "txn-checker": _program("cometmq.cli.programs.txn_checker", "Run a transaction check service."),
    "produce": CommandInfo("cometmq.cli.produce", "Send messages.", MESSAGES),
    "consume": CommandInfo("cometmq.cli.consume", "Receive and print messages.", MESSAGES),
    "topic": CommandInfo(
        "cometmq.cli.topics", "List, create, alter, delete and describe topics.", TOPICS
    ),
    "group": CommandInfo(
        "cometmq.cli.groups", "List, create, alter, delete, reset consumer groups.", TOPICS
    ),
    "lag": CommandInfo("cometmq.cli.lag", "Show the lag of consumer groups.", TOPICS),
    "cluster": CommandInfo(
        "cometmq.cli.brokers", "Show the brokers with rates and disk usage.", OPERATIONS
    ),
    "dlq": CommandInfo("cometmq.cli.dlq", "List, export and replay dead letters.", OPERATIONS),
    "txn": CommandInfo("cometmq.cli.txn", "List, check and resolve open transactions.", OPERATIONS),
    "store": CommandInfo(
        "cometmq.cli.store", "Inspect, verify and dump a store offline.", OPERATIONS
    ),
    "mqadmin": CommandInfo(
        "cometmq.cli.mqadmin.listing",
        "Run a command of RocketMQ's mqadmin.",
        MORE,
        accepts_empty=True,
    ),
    "help": CommandInfo("cometmq.cli.about", "Show help for a command.", MORE, True),
    "version": CommandInfo("cometmq.cli.about", "Print the version.", MORE, True),
    **MQADMIN_COMMANDS,
}


USAGE: Final = frozenset({"InvalidArgument", "IllegalMessage"})
"""Class names of errors of the client for which the user's input is to blame: status 2."""

HINTS: Final[Mapping[str, str]] = {
    "NoNamesrv": "; start one (cometmq standalone), or give its address with -n or NAMESRV_ADDR",
}
"""Class name of an error -> remedy. By name, since the help page does not import the client."""


class Commands(LazyGroup):
    """The commands of `cometmq`."""

    table = COMMANDS
    aliases = ALIASES
    hidden_panels = (MQADMIN_PANEL,)  # listed by cometmq mqadmin --help


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},  # all commands inherit it
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # the help page takes 120, not 280 ms: boxes need rich
)


def print_version(is_wanted: bool) -> None:
    """Print the version and exit if `--version` is given."""
    if is_wanted:
        typer.echo(import_module("cometmq.cli.about").version_line())
        raise typer.Exit


Version = Annotated[
    bool,
    typer.Option(
        "--version", help="Print the version and exit.", is_eager=True, callback=print_version
    ),
]

GlobalNamesrv = Annotated[
    str, typer.Option("-n", "--namesrv", help="Name servers, host:port;host:port.")
]
GlobalJson = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]


@app.callback()
def cometmq(  # noqa: PLR0913  # one parameter per option
    access_key: AccessKey = "",
    secret_key: SecretKey = "",
    security_token: SecurityToken = "",
    credentials: CredentialsFile = None,
    *,
    tls: Tls = False,
    tls_config: TlsConfig = None,
    namesrv: GlobalNamesrv = "",
    as_json: GlobalJson = False,
    _version: Version = False,
) -> None:
    """CometMQ, a message broker for RocketMQ clients.

    The options go before or after the command.
    """

    account = (access_key, secret_key, security_token, credentials)
    ACCESS.set(Access(*account, tls, tls_config, namesrv, as_json))


def main() -> None:
    """Run the command line; an error that the user can fix is printed as one line."""
    with checked_streams():
        sys.exit(_run())


def _run() -> int:
    MISSING.clear()
    status: Any = 0
    try:
        app()
    except SystemExit as end:
        status = end.code
    except OutputFailed:
        raise
    except CometError as error:
        typer.echo(f"cometmq: {error}{HINTS.get(type(error).__name__, '')}", err=True)
        is_usage = isinstance(error, SettingsError) or type(error).__name__ in USAGE
        status = 2 if is_usage else 1
    for line in MISSING.values():
        typer.echo(f"cometmq: {line}", err=True)
    return status or int(bool(MISSING))
