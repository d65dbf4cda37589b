# SPDX-License-Identifier: Apache-2.0
"""What all commands that speak to servers have in common: whom to ask, how to run, how to fail."""

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine
from importlib import import_module
from typing import Annotated, Any, Final, TypeVar

import msgspec
import typer

from cometmq.cli.access import ACCESS, Access, namesrv_or_global
from cometmq.cli.admin import CommandAdmin
from cometmq.client.admin import AdminClient
from cometmq.client.errors import InvalidArgument
from cometmq.client.settings import ClientOptions, OptionsT
from cometmq.remoting.errors import CometError, SettingsError
from cometmq.remoting.signature import SessionCredentials
from cometmq.remoting.transport.settings import TlsSettings

T = TypeVar("T")

DEFAULT_NAMESRV: Final = "127.0.0.1:9876"
EXIT_USAGE: Final = 2
EXIT_INTERRUPTED: Final = 130
COMPLAINTS_MAX: Final = 100

Namesrv = Annotated[
    str,
    typer.Option(
        "-n",
        "--namesrv",
        envvar="NAMESRV_ADDR",
        help="Name servers, host:port;host:port.",
        callback=namesrv_or_global,
    ),
]
Cluster = Annotated[
    str | None, typer.Option("-c", "--cluster", help="Only the brokers of this cluster.")
]


Yes = Annotated[bool, typer.Option("-y", "--yes", help="Do not ask.")]


def ask(namesrv: str, question: Callable[[AdminClient], Awaitable[T]]) -> T:
    """Put a question to the cluster and return its answer.

    Brokers that do not answer are in `outcome.MISSING`; without an answer of any the command ends.
    """

    async def asked() -> T:
        async with CommandAdmin(namesrv, options=with_access(ClientOptions())) as admin:
            answer = await question(admin)
            admin.check_answers()
            return answer

    return run(asked())


def with_access(options: OptionsT) -> OptionsT:
    """Return options of a client with what was said before the command: who asks, and TLS.

    Every command makes its clients with options from here.
    """
    access = ACCESS.get()
    changes: dict[str, Any] = {}
    credentials = _credentials(access)
    if credentials is not None:
        changes["credentials"] = credentials
    if access.is_tls or access.tls_config is not None:
        changes["tls"] = _tls(access)
    return msgspec.structs.replace(options, **changes)


def _credentials(access: Access) -> SessionCredentials | None:
    """Return who asks: the options, else the file."""
    if access.access_key and access.secret_key:
        return SessionCredentials(access.access_key, access.secret_key, access.security_token)
    if access.access_key or access.secret_key:
        raise InvalidArgument("--access-key and --secret-key need each other")
    if access.credentials is None:
        return None
    module = import_module("cometmq.client.credentials")  # 15 ms for YAML that few commands pay
    read: SessionCredentials = module.credentials_from_file(access.credentials)
    return read


def _tls(access: Access) -> TlsSettings:
    if access.tls_config is None:
        return TlsSettings(enable=True)
    module = import_module("cometmq.runtime.tls_keys")
    try:
        tls: TlsSettings = module.client_tls_of_file(access.tls_config)
    except SettingsError as error:
        raise InvalidArgument(str(error)) from error
    return tls


def run(
    main: Coroutine[Any, Any, T],
    *,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
) -> T:
    """Run a command on a loop; Ctrl-C and SIGTERM let it leave in order."""

    async def guarded() -> T:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await main

    try:
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            return runner.run(guarded())
    except (KeyboardInterrupt, asyncio.CancelledError) as error:
        raise typer.Exit(EXIT_INTERRUPTED) from error
    except BaseExceptionGroup as errors:
        raise _first(errors) from errors
    except InvalidArgument as error:
        raise wrong_usage(str(error)) from error


class Complaints:
    """The log of a client that runs for long: each trouble once, as a line for the person.

    A consumer whose broker is gone tries again and again; without this it would seem idle.
    """

    def __init__(self) -> None:
        """Nothing was said yet."""
        self._said: set[str] = set()

    def debug(self, event: str, /, **facts: object) -> None:
        """Keep details to ourselves."""

    def info(self, event: str, /, **facts: object) -> None:
        """Keep what goes well to ourselves."""

    def warning(self, event: str, /, **facts: object) -> None:
        """Say it, once."""
        trouble = str(facts.get("error", event))  # one cause shows at many queues and requests
        if trouble not in self._said and len(self._said) < COMPLAINTS_MAX:
            self._said.add(trouble)
            facts.pop("exc_info", None)
            details = " ".join(f"{name}={fact}" for name, fact in facts.items())
            typer.echo(f"cometmq: {event} {details}", err=True)

    def error(self, event: str, /, **facts: object) -> None:
        """Say it, once."""
        self.warning(event, **facts)


def confirm(question: str, *, is_confirmed: bool) -> None:
    """Ask before something is destroyed; without a terminal `--yes` is needed.

    Every command of ours that destroys or moves something calls this. mqadmin's commands do not:
    scripts run them.
    """
    if is_confirmed:
        return
    if not sys.stdin.isatty():
        raise wrong_usage(f"{question} Standard input is no terminal: give --yes")
    typer.confirm(question, abort=True)


def wrong_usage(line: str) -> typer.Exit:
    """Print one line; return the exit of a command that was called wrongly."""
    typer.echo(f"cometmq: {line}", err=True)
    return typer.Exit(EXIT_USAGE)


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first error that a person can mend, else the first of all."""
    mendable, others = errors.split(CometError)
    group = mendable or others
    assert group is not None
    error = group.exceptions[0]
    if isinstance(error, BaseExceptionGroup):
        return _first(error)
    return wrong_usage(str(error)) if isinstance(error, InvalidArgument) else error
