# SPDX-License-Identifier: Apache-2.0
"""The `cometmq` command: its table of commands and its exit status.

The exit statuses are listed in docs/reference/cli.md (docs/generators/cli.py).
"""

import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Annotated, Any, Final

import typer

from cometmq.cli.access import (
    ACCESS,
    ACCOUNT_DEFAULTS,
    NAMESRV_HELP,
    Access,
    AccessKey,
    ContextName,
    CredentialsFile,
    SecretKey,
    SecurityToken,
    Timeout,
    Tls,
    TlsConfig,
    is_said,
    note_unread_variables,
)
from cometmq.cli.failures import print_error, print_missing, print_wrong_usage
from cometmq.cli.lazy import EXIT_USAGE, App, CommandInfo, LazyGroup
from cometmq.cli.mqadmin import ALIASES
from cometmq.cli.mqadmin import COMMANDS as MQADMIN_COMMANDS
from cometmq.cli.option_sets import opt
from cometmq.cli.outcome import DAMAGES, MISSING
from cometmq.cli.say import say
from cometmq.cli.streams import OutputFailed, checked_streams
from cometmq.remoting.errors import CometError, SettingsError
from cometmq.runtime import programs

PROGRAMS: Final = "Programs"
MESSAGES: Final = "Messages"
CLUSTER: Final = "Topics, groups and brokers"
OPERATION: Final = "Operation"
OWN: Final = "This command line"


_OWN: Final[Mapping[str, Mapping[str, tuple[str, str]]]] = {
    MESSAGES: {
        "produce": ("cometmq.cli.verbs.produce", "Send messages."),
        "consume": ("cometmq.cli.consuming.consume", "Receive and print messages."),
        "request": ("cometmq.cli.messaging.request", "Send requests, and print the replies."),
        "reply": ("cometmq.cli.messaging.reply", "Reply to requests."),
        "message": ("cometmq.cli.verbs.messages", "Show, trace, find and recall messages."),
        "dlq": ("cometmq.cli.verbs.dlq", "List, export and replay dead letters."),
        "txn": ("cometmq.cli.verbs.txn", "List, check and resolve open transactions."),
        "backup": ("cometmq.cli.archives.backup", "Copy messages into files."),
        "restore": ("cometmq.cli.archives.restore", "Send the messages of a backup."),
    },
    CLUSTER: {
        "topic": (
            "cometmq.cli.verbs.topics",
            "List, create, alter, trim, delete and describe topics.",
        ),
        "group": (
            "cometmq.cli.consuming.groups",
            "List, create, alter, delete and move consumer groups.",
        ),
        "lag": ("cometmq.cli.consuming.lag", "Show the lag of consumer groups."),
        "account": ("cometmq.cli.operation.accounts", "Show who may do what."),
        "definitions": (
            "cometmq.cli.verbs.definitions", "Export and import topics, groups and rights.",
        ),
        "cluster": (
            "cometmq.cli.verbs.brokers", "Show the brokers with their rates and disk usage.",
        ),
        "top": ("cometmq.cli.operation.top", "Watch topics, groups and connections."),
        "ha": ("cometmq.cli.operation.ha", "Control failover groups."),
        "k8s": ("cometmq.cli.operation.k8s", "Control a Kubernetes BrokerGroup."),
        "store": ("cometmq.cli.verbs.store", "Inspect, verify and dump a store offline."),
    },
    OPERATION: {
        "check": ("cometmq.cli.operation.check", "Compare the cluster with thresholds."),
        "doctor": ("cometmq.cli.operation.doctor", "Examine a cluster, and say what to do."),
        "report": ("cometmq.cli.operation.doctor", "Show the state of a cluster on one page."),
        "debug": ("cometmq.cli.operation.doctor", "Write an archive for those who help."),
        "bench": ("cometmq.cli.operation.bench", "Measure sends, reads and latencies."),
        "audit": ("cometmq.cli.operation.kept", "List changes made with a console."),
        "mcp": ("cometmq.cli.mcp.command", "Serve tools to an assistant that speaks MCP."),
    },
    OWN: {
        "context": (
            "cometmq.cli.verbs.context", "Name clusters and accounts, and choose one of them.",
        ),
        "config": (
            "cometmq.cli.operation.config", "Check settings files; compare brokers' settings.",
        ),
        "explain": ("cometmq.cli.verbs.explain", "Say what a code, an event or a remark means."),
        "generate": (
            "cometmq.cli.verbs.generate", "Print files for Grafana, Prometheus, KEDA, systemd.",
        ),
        "mqadmin": ("cometmq.cli.mqadmin", "Run one of RocketMQ's mqadmin commands."),
        "help": ("cometmq.cli.verbs.about", "Show help for a command."),
        "version": ("cometmq.cli.verbs.about", "Print the version."),
    },
}  # fmt: skip
"""The module and the help line of each command, by panel of the help page."""
_PROGRAM: Final[dict[str, bool]] = {"takes_global_options": False, "may_repeat": True}
_FAMILY: Final[dict[str, bool]] = {"is_in_family": True}
_MORE: Final[Mapping[str, dict[str, Any]]] = {
    **dict.fromkeys(("doctor", "report", "debug", "help", "version"), _FAMILY),
    "audit": {**_FAMILY, "takes_global_options": False},
    "k8s": {"takes_global_options": False},
    "check": {"exit_usage": 3},
    "mqadmin": {"accepts_empty": True},
}

COMMANDS: Final[Mapping[str, CommandInfo]] = {
    "standalone": CommandInfo(
        "cometmq.cli.programs.standalone",
        "Run name server, broker and txn-checker in one process.",
        PROGRAMS,
        **_PROGRAM,
    ),
    **{
        name: CommandInfo(
            f"cometmq.cli.programs.{'broker' if name == 'broker' else 'commands'}",
            it.help, PROGRAMS, accepts_empty=True, **_FAMILY, **_PROGRAM,
        )
        for name, it in programs.COMMANDS.items()
    },
    **{
        name: CommandInfo(module, line, panel, **_MORE.get(name, {}))
        for panel, commands in _OWN.items()
        for name, (module, line) in commands.items()
    },
    **MQADMIN_COMMANDS,
}  # fmt: skip


USAGE: Final = frozenset({"InvalidArgument", "InvalidMessage"})
"""Class names of client errors caused by the user's input; the exit status is 2."""


class Commands(LazyGroup):
    """The commands of `cometmq`."""

    table = COMMANDS
    aliases = ALIASES
    panels = (PROGRAMS, MESSAGES, CLUSTER, OPERATION, OWN)

    def suggested(self, word: str) -> Sequence[str]:
        """Return commands for a name that users of other tools may try."""
        from cometmq.cli.hints import SUGGESTIONS  # noqa: PLC0415  # rarely needed

        return SUGGESTIONS.get(word, ())


app = App(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"]},  # all commands inherit it
    add_completion=True,
    pretty_exceptions_enable=False,
)


def print_version(is_wanted: bool) -> None:
    """Print the version and exit if `--version` is given."""
    if is_wanted:
        say(import_module("cometmq.cli.verbs.about").version_line())
        raise typer.Exit


Version = Annotated[
    bool, opt("--version", "Print the version and exit.", is_eager=True, callback=print_version)
]

GlobalNamesrv = Annotated[str, opt("-n", "--namesrv", NAMESRV_HELP)]
GlobalJson = Annotated[bool, opt("--json", "Print JSON for scripts.")]


@app.callback()
def cometmq(  # noqa: PLR0913  # one parameter per option
    ctx: typer.Context,
    context: ContextName = "",
    access_key: AccessKey = "",
    secret_key: SecretKey = "",
    security_token: SecurityToken = "",
    credentials: CredentialsFile = None,
    *,
    tls: Tls = False,
    tls_config: TlsConfig = None,
    namesrv: GlobalNamesrv = "",
    timeout: Timeout = None,
    as_json: GlobalJson = False,
    _version: Version = False,
) -> None:
    """CometMQ, a message broker for RocketMQ clients."""

    info = COMMANDS.get(ctx.invoked_subcommand or "")
    if info is None or info.panel != PROGRAMS:  # programs check the variables of their settings
        note_unread_variables()
    for option in ctx.command.params:
        if option.name and is_said(ctx, option.name) and ctx.params.get(option.name) == "":
            say(f"cometmq: {option.opts[0]} is empty: give a value", err=True)
            raise typer.Exit(EXIT_USAGE)
    account = (access_key, secret_key, security_token, credentials)
    said = {name: ctx.params[name] for name in ACCOUNT_DEFAULTS if is_said(ctx, name)}
    is_tls_said = is_said(ctx, "tls") or is_said(ctx, "tls_config")
    access = Access(*account, tls, tls_config, namesrv, as_json)
    access = access._replace(context=context, is_tls_said=is_tls_said, timeout_s=timeout)
    ACCESS.set(access.with_account(said))


def main() -> None:
    """Run the command line; an error that the user can fix is printed as one line."""
    with checked_streams():
        sys.exit(_run())


def _usage_status(error: Any) -> int:
    """Return the exit status of a command that was called incorrectly."""
    ctx = getattr(error, "ctx", None)
    name = ""
    while ctx is not None and ctx.parent is not None:
        name, ctx = ctx.info_name or "", ctx.parent
    info = COMMANDS.get(name)
    return EXIT_USAGE if info is None else info.exit_usage


def _has_working_folder() -> bool:
    try:
        os.getcwd()  # noqa: PTH109  # pathlib's import is saved
    except FileNotFoundError:
        return False
    return True


def _run() -> int:
    MISSING.clear()
    DAMAGES.clear()
    status: Any = 0
    try:
        # Otherwise, click would print usage errors on four lines.
        status = app(standalone_mode=False) or 0
    except SystemExit as end:
        status = end.code
    except OutputFailed:
        raise
    except CometError as error:
        print_error(error)
        is_usage = isinstance(error, SettingsError) or type(error).__name__ in USAGE
        status = 2 if is_usage else 1
    except FileNotFoundError:
        if _has_working_folder():
            raise
        say("cometmq: the current folder was deleted: change to another one", err=True)
        status = 1
    except Exception as error:
        if hasattr(error, "format_message"):  # typer does not export click's class
            print_wrong_usage(error)
            status = _usage_status(error)
        else:
            refusal = import_module("cometmq.runtime.worker").refused_thread(error)
            if refusal is None:
                raise
            print_error(refusal)
            status = 1
    print_missing()
    return status or int(bool(MISSING or DAMAGES))
