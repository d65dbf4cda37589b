# SPDX-License-Identifier: Apache-2.0
"""Options of `cometmq` itself: account, TLS, name servers and JSON.

They apply to every command and may be given before or after it. The files they name are read only
when a client is created, because commands without a client do not need them.
"""

import os
from collections.abc import Mapping
from contextvars import ContextVar
from copy import copy
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import typer

TLS_CONFIG_VARIABLE: Final = "COMETMQ_TLS_CONFIG"

AccessKey = Annotated[
    str,
    typer.Option(envvar="COMETMQ_ACCESS_KEY", help="Access key for brokers with access control."),
]
SecretKey = Annotated[
    str,
    typer.Option(
        envvar="COMETMQ_SECRET_KEY",
        show_envvar=True,
        help="Secret key; prefer a file or the environment, which other users cannot see.",
    ),
]
SecurityToken = Annotated[
    str,
    typer.Option(envvar="COMETMQ_SECURITY_TOKEN", help="Security token of a temporary account."),
]
CredentialsFile = Annotated[
    Path | None,
    typer.Option(
        "--credentials",
        envvar="COMETMQ_CREDENTIALS",
        help="File with accessKey and secretKey, like RocketMQ's conf/tools.yml.",
    ),
]
Tls = Annotated[
    bool,
    typer.Option(
        "--tls",
        envvar="COMETMQ_TLS",
        help="Connect over TLS; servers are verified only if --tls-config sets"
        " tls.client.authServer=true.",
    ),
]
TlsConfig = Annotated[
    Path | None,
    typer.Option(
        envvar=TLS_CONFIG_VARIABLE,
        help="File with tls.client keys, like RocketMQ's tls.properties; implies --tls.",
    ),
]

EXIT_USAGE: Final = 2
NAMESRV_VARIABLE: Final = "NAMESRV_ADDR"
NAMESRV_HELP: Final = "Name servers, HOST:PORT;HOST:PORT; the default port is 9876."


class Access(NamedTuple):
    """The options of `cometmq` itself."""

    access_key: str = ""
    secret_key: str = ""
    security_token: str = ""
    credentials: Path | None = None
    is_tls: bool = False
    tls_config: Path | None = None
    namesrv: str = ""
    """The name servers given before the command; after the command, -n is an option of the command
    itself.
    """
    as_json: bool = False
    is_account_said: bool = False
    """Whether the account comes from options, not from the environment."""

    def with_account(self, said: Mapping[str, Any]) -> "Access":
        """Add account options; the first one replaces the whole account from the environment."""
        if not said:
            return self
        before = {} if self.is_account_said else ACCOUNT_DEFAULTS
        return self._replace(**{**before, **said, "is_account_said": True})


ACCOUNT_DEFAULTS: Final[Mapping[str, Any]] = {
    name: Access._field_defaults[name]
    for name in ("access_key", "secret_key", "security_token", "credentials")
}

ACCESS: Final[ContextVar[Access]] = ContextVar("ACCESS", default=Access())  # noqa: B039  # a tuple


def is_said(ctx: typer.Context, name: str | None) -> bool:
    """Return whether this option is given on the command line."""
    source = ctx.get_parameter_source(name or "")
    return source is not None and source.name == "COMMANDLINE"


def namesrv_or_global(ctx: typer.Context, param: typer.CallbackParam, namesrv: Any) -> Any:
    """Return the name servers given after the command, or those given before it, or the default."""
    if is_said(ctx, param.name):
        return namesrv
    if ACCESS.get().namesrv:
        return ACCESS.get().namesrv
    variable = os.environ.get(NAMESRV_VARIABLE)  # noqa: TID251  # click ignores an empty variable
    if variable == "":
        typer.echo(f"cometmq: {NAMESRV_VARIABLE} is empty: give a value, or unset it", err=True)
        raise typer.Exit(EXIT_USAGE)
    return namesrv


def tls_config_name(path: Path) -> str:
    """Return the option or variable that names the file with the TLS settings."""
    variable = os.environ.get(TLS_CONFIG_VARIABLE)  # noqa: TID251  # click does not tell which
    return TLS_CONFIG_VARIABLE if variable == str(path) else "--tls-config"


def note_unread_variables() -> None:
    """Print the COMETMQ_* variables that no program reads and that are probably misspelt."""
    variables = {
        name: value
        for name, value in os.environ.items()  # noqa: TID251  # their names are checked
        if name.startswith("COMETMQ_")
    }
    if not variables:
        return
    module = import_module("cometmq.runtime.variables")
    for name, guess in module.unread(variables, "", [NAMESRV_VARIABLE]).items():
        typer.echo(f"cometmq: {module.unread_line(name, [guess])}", err=True)


def json_or_global(as_json: bool) -> bool:
    """Return whether `--json` is given before or after the command."""
    return as_json or ACCESS.get().as_json


def add_global_options(command: Any, options: list[Any]) -> None:
    """Make a command and its subcommands also accept the access options of `cometmq`."""
    taken = {name for param in command.params for name in param.opts}
    for option in options:
        if option.name in _FIELDS and taken.isdisjoint(option.opts):
            command.params.append(_after_command(option))
    for child in getattr(command, "commands", {}).values():
        add_global_options(child, options)


def _after_command(option: Any) -> Any:
    after = copy(option)
    after.hidden, after.expose_value, after.envvar = True, False, None
    after.name = _PREFIX + option.name  # commands have parameters of the same names
    after.callback = _take_after_command
    return after


def _take_after_command(ctx: typer.Context, param: Any, value: Any) -> None:
    if is_said(ctx, param.name):
        field, convert = _FIELDS[param.name.removeprefix(_PREFIX)]
        access, change = ACCESS.get(), {field: convert(value)}
        is_account = field in ACCOUNT_DEFAULTS
        ACCESS.set(access.with_account(change) if is_account else access._replace(**change))


_PREFIX: Final = "global_"
_FIELDS: Final[dict[str, tuple[str, type[Any]]]] = {
    "access_key": ("access_key", str),
    "secret_key": ("secret_key", str),
    "security_token": ("security_token", str),
    "credentials": ("credentials", Path),
    "tls": ("is_tls", bool),
    "tls_config": ("tls_config", Path),
}
"""Maps each parameter of `cometmq` that commands also accept to its field of `Access` and that
field's type.
"""
