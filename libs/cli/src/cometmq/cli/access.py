# SPDX-License-Identifier: Apache-2.0
"""Options of `cometmq` itself: context, account, TLS, name servers, timeout and JSON.

They apply to every command and may be given before or after it. The files they name are read only
when a client is created, because commands without a client do not need them.

A value comes from the first of these sources that has it: an option; the context that --context or
COMETMQ_CONTEXT names; another variable; the context of `cometmq context use`; the default. All
values of an account come from the same source.
"""

import os
from collections.abc import Collection, Mapping
from contextvars import ContextVar
from copy import copy
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import typer

from cometmq.cli.option_sets import opt
from cometmq.cli.say import say

TLS_CONFIG_VARIABLE: Final = "COMETMQ_TLS_CONFIG"
CONTEXTS_FILE: Final = "cometmq/contexts.json"
"""The file with the user's contexts, relative to XDG_CONFIG_HOME."""

AccessKey = Annotated[str, opt("Access key of an account.", envvar="COMETMQ_ACCESS_KEY")]
SecretKey = Annotated[
    str,
    opt(
        "Secret key; prefer a file or the environment, which other users cannot see.",
        envvar="COMETMQ_SECRET_KEY",
        show_envvar=True,
    ),
]
SecurityToken = Annotated[str, opt("Temporary account's token.", envvar="COMETMQ_SECURITY_TOKEN")]
CredentialsFile = Annotated[
    Path | None,
    opt(
        "--credentials",
        "File with accessKey and secretKey, like RocketMQ's conf/tools.yml.",
        envvar="COMETMQ_CREDENTIALS",
    ),
]
Tls = Annotated[
    bool,
    opt(
        "--tls",
        "Connect over TLS; without --tls-config, servers are not verified.",
        envvar="COMETMQ_TLS",
    ),
]
TlsConfig = Annotated[
    Path | None,
    opt(
        "File like RocketMQ's tls.properties; implies --tls; with"
        " tls.client.authServer=true, servers are verified.",
        envvar=TLS_CONFIG_VARIABLE,
    ),
]

ContextName = Annotated[
    str, opt("--context", "Named cluster and account.", envvar="COMETMQ_CONTEXT")
]
Timeout = Annotated[
    float | None, opt("--timeout", "Seconds to wait for each answer of a server (3).", min=0)
]

EXIT_USAGE: Final = 2
NAMESRV_VARIABLE: Final = "NAMESRV_ADDR"
NAMESRV_HELP: Final = "Name servers, HOST:PORT;HOST:PORT; the default port is 9876."


class Access(NamedTuple):
    """The values of the options of `cometmq` itself, completed from the context."""

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
    """Whether the account is given by options, not by variables."""
    context: str = ""
    """The context that --context or COMETMQ_CONTEXT names."""
    is_tls_said: bool = False
    """Whether the TLS options are given on the command line."""
    is_resolved: bool = False
    """Whether the values of the context are filled in."""
    account_from: str = ""
    """The name of the context that the account comes from; empty if it comes from elsewhere."""
    tls_from: str = ""
    """The name of the context that the TLS settings come from; empty if they come from
    elsewhere.
    """
    context_namesrv: str = ""
    namespace: str = ""
    """The namespace of topics and groups in commands other than mqadmin's."""
    timeout_s: float | None = None
    """How long to wait for an answer of a server; None means the client's own time."""
    is_dry_run: bool = False
    """Whether the command only says what it would change."""

    def with_account(self, said: Mapping[str, Any]) -> "Access":
        """Add account options; the first one replaces the whole account from the environment."""
        if not said:
            return self
        before = {} if self.is_account_said else ACCOUNT_DEFAULTS
        return self._replace(**{**before, **said, "is_account_said": True, "account_from": ""})


ACCOUNT_DEFAULTS: Final[Mapping[str, Any]] = {
    name: Access._field_defaults[name]
    for name in ("access_key", "secret_key", "security_token", "credentials")
}

ACCESS: Final[ContextVar[Access]] = ContextVar("ACCESS", default=Access())  # noqa: B039  # a tuple


def is_said(ctx: typer.Context, name: str | None) -> bool:
    """Return whether the option called `name` is given on the command line."""
    source = ctx.get_parameter_source(name or "")
    return source is not None and source.name == "COMMANDLINE"


def namesrv_or_global(ctx: typer.Context, param: typer.CallbackParam, namesrv: Any) -> Any:
    """Return the name servers given after the command, or else before it, or else the default."""
    if is_said(ctx, param.name):
        return namesrv
    if ACCESS.get().namesrv:
        return ACCESS.get().namesrv
    variable = os.environ.get(NAMESRV_VARIABLE)  # noqa: TID251  # click ignores an empty variable
    if variable == "":
        say(f"cometmq: {NAMESRV_VARIABLE} is empty: give a value, or unset it", err=True)
        raise typer.Exit(EXIT_USAGE)
    return namesrv


def namesrv_in_use(ctx: typer.Context, param: typer.CallbackParam, namesrv: Any) -> Any:
    """Return the name servers as `namesrv_or_global` does, or those of the context."""
    access = resolved_access()
    found = namesrv_or_global(ctx, param, namesrv)
    if is_said(ctx, param.name) or access.namesrv or not access.context_namesrv:
        return found
    is_variable = bool(os.environ.get(NAMESRV_VARIABLE))  # noqa: TID251  # as above
    return found if is_variable and not access.context else access.context_namesrv


def resolved_access() -> Access:
    """Return the options, with the values of the context where no option is given."""
    access = ACCESS.get()
    if not access.is_resolved:
        name, context = _chosen_context(access.context)
        access = access._replace(is_resolved=True)
        if context is not None:
            access = with_context(access, name, context)
        ACCESS.set(access)
    return access


def _chosen_context(name: str) -> tuple[str, Any]:
    """Return the name and the values of the context in use; None instead of the values if there is
    none.

    Raise SettingsError if the file of contexts is invalid.
    """
    config = os.environ.get("XDG_CONFIG_HOME", "")  # noqa: TID251  # a stat instead of imports
    folder = config if config.startswith("/") else os.path.expanduser("~/.config")  # noqa: PTH111
    if not (name or os.path.exists(f"{folder}/{CONTEXTS_FILE}")):  # noqa: PTH110
        return "", None
    module = import_module("cometmq.runtime.contexts")  # most users have no file
    found = module.read_contexts(module.contexts_path())
    name = name or found.current
    return (name, found.named(name)) if name else ("", None)


def with_context(access: Access, name: str, context: Any) -> Access:
    """Return `access` with the values of a context that no source with precedence gives."""
    is_named = bool(access.context)
    changes: dict[str, Any] = {
        "context_namesrv": context.namesrv, "namespace": context.namespace,
    }  # fmt: skip
    has_account = any(getattr(access, field) for field in ACCOUNT_DEFAULTS)
    if not access.is_account_said and (is_named or not has_account):
        changes |= {field: getattr(context, field) for field in ACCOUNT_DEFAULTS}
        changes["credentials"] = _path(context.credentials)
        changes["account_from"] = name
    has_tls = access.is_tls or access.tls_config is not None
    if not access.is_tls_said and (is_named or not has_tls):
        changes |= {
            "is_tls": context.tls, "tls_config": _path(context.tls_config), "tls_from": name,
        }  # fmt: skip
    return access._replace(**changes)


def _path(text: str) -> Path | None:
    return Path(text) if text else None


def tls_config_name(path: Path) -> str:
    """Return the option, variable or context that names the file with the TLS settings."""
    if context := ACCESS.get().tls_from:
        return f"tls_config of the context {context}"
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
        say(f"cometmq: {module.unread_line(name, [guess])}", err=True)


def json_or_global(as_json: bool) -> bool:
    """Return whether `--json` is given before or after the command, and store this in ACCESS."""
    access = ACCESS.get()
    ACCESS.set(access._replace(as_json=as_json or access.as_json))
    return as_json or access.as_json


def note_dry_run(is_dry_run: bool) -> bool:
    """Store in ACCESS whether `--dry-run` is given."""
    ACCESS.set(ACCESS.get()._replace(is_dry_run=is_dry_run))
    return is_dry_run


def after_command(options: list[Any], taken: Collection[str], *, is_group: bool) -> list[Any]:
    """Return the access options of `cometmq` as a command, or a group of commands, accepts them."""
    accepted = _FIELDS.keys() if is_group else _FIELDS.keys() - _OF_GROUPS
    return [
        _after_command(it) for it in options if it.name in accepted and not {*taken} & {*it.opts}
    ]


def _after_command(option: Any) -> Any:
    after = copy(option)
    after.hidden, after.expose_value, after.envvar = True, False, None
    after.name = _PREFIX + option.name  # commands have parameters of the same names
    after.is_eager = option.name == "context"  # -n depends on it
    after.callback = _take_after_command
    return after


def _take_after_command(ctx: typer.Context, param: Any, value: Any) -> None:
    if is_said(ctx, param.name):
        field, convert = _FIELDS[param.name.removeprefix(_PREFIX)]
        access, change = ACCESS.get(), {field: convert(value)}
        if field in _TLS_FIELDS:
            change |= {"is_tls_said": True, "tls_from": ""}
        is_account = field in ACCOUNT_DEFAULTS
        ACCESS.set(access.with_account(change) if is_account else access._replace(**change))


def resolve_timeout(ctx: Any, params: list[Any]) -> None:
    """Set the command's own time limit to that given before it, unless it has one itself.

    The command's own option limits the whole command, so it does not limit each answer as well.
    """
    limit_s = ACCESS.get().timeout_s
    for param in params:
        if "--timeout" in param.opts and not is_said(ctx, param.name) and limit_s is not None:
            ACCESS.set(ACCESS.get()._replace(timeout_s=None))
            ctx.params[param.name] = param.type_cast_value(ctx, limit_s)


def in_namespace(ctx: Any) -> None:
    """Make the names of topics and groups that a command has got relative to the namespace of the
    context; a command without name servers is left as it is.
    """
    if "namesrv" not in ctx.params or not (name := resolved_access().namespace):
        return
    wrap = import_module("cometmq.client.namespace").Namespace(name).wrap
    for it in _NAMESPACED & ctx.params.keys():
        value = ctx.params[it]
        if value:
            ctx.params[it] = wrap(value) if isinstance(value, str) else [*map(wrap, value)]


def check_namespace(topic: str, named: str) -> None:
    """Raise ClientError if `topic` is not in the context's namespace.

    `named` describes the message that has this topic; the user has named it by a position or an id.
    """
    name = resolved_access().namespace
    if name and import_module("cometmq.client.namespace").Namespace(name).wrap(topic) != topic:
        raise import_module("cometmq.client.errors").ClientError(
            f"nothing was changed: {named} belongs to {topic}, which is not in the namespace {name}"
            " of the context"
        )


_NAMESPACED: Final = frozenset({"topic", "target", "group", "source", "destination"})
_PREFIX: Final = "global_"
_TLS_FIELDS: Final = frozenset({"is_tls", "tls_config"})
_FIELDS: Final[dict[str, tuple[str, type[Any]]]] = {
    "context": ("context", str),
    "access_key": ("access_key", str),
    "secret_key": ("secret_key", str),
    "security_token": ("security_token", str),
    "credentials": ("credentials", Path),
    "tls": ("is_tls", bool),
    "tls_config": ("tls_config", Path),
    "timeout": ("timeout_s", float),
    "namesrv": ("namesrv", str),
    "as_json": ("as_json", bool),
}
"""Maps each parameter of `cometmq` that commands also accept to its field of `Access` and that
field's type.
"""
_OF_GROUPS: Final = frozenset({"namesrv", "as_json"})
"""The parameters that only groups of commands accept; each command declares its own."""
