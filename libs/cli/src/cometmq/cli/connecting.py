# SPDX-License-Identifier: Apache-2.0
"""Options, event loop and error handling of all commands that connect to servers."""

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from types import MappingProxyType
from typing import Annotated, Any, Final, TypeVar

import msgspec
import typer

from cometmq.cli.access import (
    ACCESS,
    ACCOUNT_DEFAULTS,
    NAMESRV_HELP,
    NAMESRV_VARIABLE,
    Access,
    namesrv_in_use,
    note_dry_run,
    resolved_access,
    tls_config_name,
)
from cometmq.cli.admin import CommandAdmin, DryRun
from cometmq.cli.limits import with_limit
from cometmq.cli.option_sets import opt
from cometmq.cli.output import Cell, print_facts
from cometmq.cli.say import say
from cometmq.client.errors import InvalidArgument, NoRoute
from cometmq.client.settings import ClientOptions, OptionsT
from cometmq.remoting.errors import CometError, SettingsError
from cometmq.remoting.signature import SessionCredentials
from cometmq.remoting.transport.settings import TlsSettings
from cometmq.runtime.hangup import cancelled_by_signals

T = TypeVar("T")

DEFAULT_NAMESRV: Final = "127.0.0.1:9876"
EXIT_USAGE: Final = 2
EXIT_INTERRUPTED: Final = 130

Namesrv = Annotated[
    str, opt("-n", "--namesrv", NAMESRV_HELP, envvar=NAMESRV_VARIABLE, callback=namesrv_in_use)
]
Cluster = Annotated[str | None, opt("-c", "--cluster", "Only the brokers of this cluster.")]


Yes = Annotated[bool, opt("-y", "--yes", "Do not ask for confirmation.")]
DryRunOption = Annotated[
    bool,
    opt("--dry-run", "Check everything, say what would change, and stop.", callback=note_dry_run),
]
"""The option of each command that changes something; `ask` ends the command before the change."""


def ask(
    namesrv: str, question: Callable[[CommandAdmin], Awaitable[T]], *, limit_s: float | None = None
) -> T:
    """Run a query against the cluster and return its result.

    Brokers that do not answer are recorded in `outcome.MISSING`; if none answers, the command
    exits. `limit_s` is the user's time limit for the command: each request may take a part of it.
    """

    async def asked() -> T:
        options = with_limit(with_access(ClientOptions()), limit_s)
        async with CommandAdmin(namesrv, options=options) as admin:
            try:
                answer = await question(admin)
            except DryRun as end:
                end_dry_run(end.what, end.places, admin.preview)
                raise
            admin.check_answers()
            return answer

    with similar_topics_named(namesrv):
        return run(asked())


@contextmanager
def similar_topics_named(namesrv: str) -> Iterator[None]:
    """Add the name of a similar topic to the error about an unknown one."""
    try:
        yield
    except NoRoute as error:
        if hint := run(_similar_topic(namesrv, str(error))):
            raise NoRoute(f"{error}{hint}") from error
        raise


async def _similar_topic(namesrv: str, text: str) -> str:
    with suppress(CometError):
        async with CommandAdmin(namesrv, options=with_access(ClientOptions())) as admin:
            return await admin.similar_topic(text)
    return ""


def end_dry_run(
    what: str, places: Sequence[str], preview: Mapping[str, Cell] = MappingProxyType({})
) -> None:
    """End a command before its first change if it is a dry run, saying what it would do."""
    access = ACCESS.get()
    if access.is_dry_run:
        facts: dict[str, Cell] = {"would": what, "at": list(places), **preview, "changed": False}
        print_facts(facts, as_json=access.as_json)
        raise typer.Exit(0)


def with_access(options: OptionsT) -> OptionsT:
    """Add the account, TLS and timeout options of `cometmq` to a client's options.

    Every command passes its client options through this function.
    """
    access = resolved_access()
    changes: dict[str, Any] = {}
    credentials = _credentials(access)
    if credentials is not None:
        changes["credentials"] = credentials
    if access.is_tls or access.tls_config is not None:
        changes["tls"] = _tls(access)
    if access.timeout_s is not None:
        changes["api_timeout_ms"] = max(1, round(access.timeout_s * 1_000))
    return msgspec.structs.replace(options, **changes)


def _credentials(access: Access) -> SessionCredentials | None:
    """Return the credentials from the options, or from the environment.

    Refuse an access key without a secret key or vice versa, and keys together with a file, because
    an unused account is usually a mistake.
    """
    key, secret, token, file = "--access-key", "--secret-key", "--security-token", "--credentials"
    if not access.is_account_said:
        key, secret, token, file = (
            f"COMETMQ_{name[2:].upper().replace('-', '_')}" for name in (key, secret, token, file)
        )
    if access.account_from:
        place = f"of the context {access.account_from}"
        key, secret, token, file = (f"{name} {place}" for name in ACCOUNT_DEFAULTS)
    has_pair = bool(access.access_key and access.secret_key)
    if not has_pair and (access.access_key or access.secret_key):
        raise InvalidArgument(f"{key} and {secret} belong together: give both")
    if access.security_token and not has_pair:
        raise InvalidArgument(f"{token} belongs to {key} and {secret}: give them, too")
    if access.credentials is None:
        pair = access.access_key, access.secret_key, access.security_token
        return SessionCredentials(*pair) if has_pair else None
    if has_pair:
        raise InvalidArgument(f"{file} and {key} are two accounts: give only one of them")
    module = import_module("cometmq.client.credentials")  # YAML: 15 ms that most commands save
    read: SessionCredentials = module.credentials_from_file(access.credentials)
    return read


def _tls(access: Access) -> TlsSettings:
    if access.tls_config is None:
        return TlsSettings(enable=True)
    module = import_module("cometmq.runtime.tls_keys")
    try:
        tls: TlsSettings = module.client_tls_of_file(
            access.tls_config, tls_config_name(access.tls_config)
        )
    except SettingsError as error:
        raise InvalidArgument(str(error)) from error
    return tls


def run(
    main: Coroutine[Any, Any, T],
    *,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
) -> T:
    """Run a command on an event loop; a terminating signal cancels it, so that it can clean up.

    SIGINT is blocked before and after that: it may come when a loop or a task is half made, or when
    the task has ended and cannot be cancelled.
    """
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})

    async def guarded() -> T:
        with cancelled_by_signals():
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            try:
                await asyncio.sleep(0)  # ends here if a signal has come
                return await main
            finally:
                signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})

    guard = guarded()
    try:
        try:
            with asyncio.Runner(loop_factory=loop_factory) as runner:
                try:
                    return runner.run(guard)
                finally:  # closing may take long
                    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        finally:
            guard.close()  # neither has begun if a signal came first
            main.close()
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    except (KeyboardInterrupt, asyncio.CancelledError) as error:
        raise typer.Exit(EXIT_INTERRUPTED) from error
    except BaseExceptionGroup as errors:
        raise _first(errors) from errors
    except InvalidArgument as error:
        raise wrong_usage(str(error)) from error


async def confirm(question: str, *, is_confirmed: bool) -> None:
    """Ask for confirmation before something is destroyed; without a terminal, require `--yes`.

    Each of our own commands that destroys or moves something calls this, after checking that the
    given names exist. mqadmin's commands do not ask, because scripts run them.
    """
    if is_confirmed or ACCESS.get().is_dry_run:
        return
    if not sys.stdin.isatty():
        raise wrong_usage(f"{question} Standard input is not a terminal: give --yes")
    say(f"{question} [y/N]: ", nl=False)
    sys.stdout.flush()
    answer: bytes | None = None
    try:
        lines = import_module("cometmq.cli.input")  # only questions read a keyboard
        answer = await anext(lines.read_lines(sys.stdin.fileno()), None)
    finally:
        if answer is None:  # Ctrl-C or Ctrl-D
            say(err=True)  # behind the ^C
            say("cometmq: interrupted: nothing was changed", err=True)
    if answer is None:
        raise typer.Exit(EXIT_INTERRUPTED)
    if answer.strip().lower() not in {b"y", b"yes"}:
        say("cometmq: not confirmed: nothing was changed", err=True)
        raise typer.Exit(1)


def wrong_usage(line: str) -> typer.Exit:
    """Print one line; return the `Exit` for a command that was called incorrectly."""
    say(f"cometmq: {line}", err=True)
    return typer.Exit(EXIT_USAGE)


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first error that the user can fix, or else the first error."""

    fixable, others = errors.split(CometError)
    group = fixable or others
    assert group is not None
    error = group.exceptions[0]
    if isinstance(error, BaseExceptionGroup):
        return _first(error)
    return wrong_usage(str(error)) if isinstance(error, InvalidArgument) else error
