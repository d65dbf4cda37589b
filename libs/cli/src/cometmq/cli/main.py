# SPDX-License-Identifier: Apache-2.0
"""The `cometmq` command: its catalogue of commands and its exit status.

Exit status: 0 done, 1 failed, 2 wrong usage, settings or environment (with one line that says
what to change), 130 interrupted.
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
from cometmq.cli.outcome import MISSING
from cometmq.remoting.errors import CometError

PROGRAMS: Final = "Programs"
MESSAGES: Final = "Messages"
ADMIN: Final = "Administration"

COMMANDS: Final[Mapping[str, CommandInfo]] = {
    "standalone": CommandInfo(
        "cometmq.cli.standalone", "Run a whole suite in one process.", PROGRAMS
    ),
    "namesrv": CommandInfo("cometmq.cli.programs.namesrv", "Run a name server.", PROGRAMS),
    "broker": CommandInfo("cometmq.cli.programs.broker", "Run a broker.", PROGRAMS),
    "txn-checker": CommandInfo(
        "cometmq.cli.programs.txn_checker", "Run a transaction check service.", PROGRAMS
    ),
    "produce": CommandInfo("cometmq.cli.produce", "Send messages.", MESSAGES),
    "consume": CommandInfo("cometmq.cli.consume", "Receive and print messages.", MESSAGES),
    "topic": CommandInfo("cometmq.cli.topics", "List, create, delete, describe topics.", ADMIN),
    "group": CommandInfo(
        "cometmq.cli.groups", "List, create, move, delete, describe consumer groups.", ADMIN
    ),
    "lag": CommandInfo("cometmq.cli.lag", "Show what groups have not consumed yet.", ADMIN),
    "dlq": CommandInfo("cometmq.cli.dlq", "Look at dead letters, send them again.", ADMIN),
    "txn": CommandInfo("cometmq.cli.txn", "Look at open transactions, end them by hand.", ADMIN),
    "cluster": CommandInfo("cometmq.cli.brokers", "Show the brokers.", ADMIN),
    "store": CommandInfo("cometmq.cli.store", "Look into a store's folder.", ADMIN),
    **MQADMIN_COMMANDS,
}


HINTS: Final[Mapping[str, str]] = {
    "NoNamesrv": "; start one (cometmq standalone), or give its address with -n or NAMESRV_ADDR",
}
"""Name of an error's class -> what to try. By name: the help page does not import the client."""


class Commands(LazyGroup):
    """The commands of `cometmq`."""

    table = COMMANDS
    aliases = ALIASES


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # the help page in 120 instead of 280 ms: boxes cost the import of rich
)


def print_version(is_wanted: bool) -> None:
    """Print the version and exit, if asked to."""
    if is_wanted:
        metadata = import_module("importlib.metadata")  # 12 ms that no other command pays
        typer.echo(f"cometmq {metadata.version('cometmq-cli')}")
        raise typer.Exit


Version = Annotated[
    bool,
    typer.Option(
        "--version", help="Print the version and exit.", is_eager=True, callback=print_version
    ),
]


@app.callback()
def cometmq(  # one parameter per option
    access_key: AccessKey = "",
    secret_key: SecretKey = "",
    security_token: SecurityToken = "",
    credentials: CredentialsFile = None,
    *,
    tls: Tls = False,
    tls_config: TlsConfig = None,
    _version: Version = False,
) -> None:
    """CometMQ: a message broker that RocketMQ clients use."""
    ACCESS.set(Access(access_key, secret_key, security_token, credentials, tls, tls_config))


def main() -> None:
    """Run the command line; an error that a person can mend is one line."""
    MISSING.clear()
    status: Any = 1
    try:
        app()
    except SystemExit as end:
        status = end.code
    except CometError as error:
        typer.echo(f"cometmq: {error}{HINTS.get(type(error).__name__, '')}", err=True)
    for line in MISSING.values():
        typer.echo(f"cometmq: {line}", err=True)
    sys.exit(status or bool(MISSING))
