# SPDX-License-Identifier: Apache-2.0
"""`cometmq context`: name clusters and accounts, and choose one of them."""

import os
import sys
from getpass import getpass
from typing import Annotated, Final

import typer

from cometmq.cli.access import ACCESS, NAMESRV_VARIABLE, Access, with_context
from cometmq.cli.admin import note_missing
from cometmq.cli.connecting import DEFAULT_NAMESRV, Yes, ask, confirm, run, with_access, wrong_usage
from cometmq.cli.lazy import App
from cometmq.cli.output import AsJson, Cell, print_facts, print_notes, print_rows
from cometmq.cli.say import say
from cometmq.cli.streams import is_terminal
from cometmq.client.admin import AdminClient
from cometmq.client.option_checks import parse_addresses
from cometmq.client.settings import ClientOptions
from cometmq.remoting.errors import SettingsError
from cometmq.runtime.contexts import (
    VARIABLE,
    Context,
    changed_contexts,
    check_name,
    contexts_path,
    read_contexts,
)

HIDDEN: Final = "******"
SECRETS: Final = ("secret_key", "security_token")

app = App("Name clusters and accounts, and choose one of them.")


def _names(incomplete: str) -> list[str]:
    """Complete the names of contexts; an unreadable file completes nothing."""
    try:
        return [it for it in read_contexts(contexts_path()).contexts if it.startswith(incomplete)]
    except SettingsError:
        return []


Name = Annotated[str, typer.Argument(help="Name of the context.", autocompletion=_names)]


@app.command()
def add(  # noqa: PLR0913  # one parameter per option
    name: Annotated[str, typer.Argument(help="Name of the new context.")],
    namesrv: Annotated[
        str, typer.Option("-n", "--namesrv", help="Name servers, HOST:PORT;HOST:PORT.")
    ] = "",
    *,
    access_key: Annotated[
        str, typer.Option(help="Access key; its secret key is asked for, or read from a pipe.")
    ] = "",
    secret_key: Annotated[
        str, typer.Option(help="Secret key; other users can see it while the command runs.")
    ] = "",
    security_token: Annotated[str, typer.Option(help="Token of a temporary account.")] = "",
    credentials: Annotated[
        str, typer.Option(help="File with accessKey and secretKey, instead of both keys.")
    ] = "",
    tls: Annotated[bool, typer.Option("--tls", help="Connect over TLS.")] = False,
    tls_config: Annotated[str, typer.Option(help="File with tls.client keys; implies --tls.")] = "",
    namespace: Annotated[
        str, typer.Option(help="Namespace of the topics and groups that commands name.")
    ] = "",
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace an existing context.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Add a context; the first one is used at once.

    \b
    EXAMPLES
      cometmq context add prod -n 'mq1:9876;mq2:9876' --credentials tools.yml
      cometmq context add dev -n 127.0.0.1:9876 --access-key dev < secret.txt
    """
    check_name(name)
    if (secret_key or security_token) and not access_key:
        raise wrong_usage("--secret-key and --security-token belong to --access-key: give it, too")
    if access_key and credentials:
        raise wrong_usage("--access-key and --credentials are two accounts: give only one of them")
    if access_key and not secret_key:
        secret_key = _asked_secret(access_key)
    context = Context(
        namesrv=namesrv,
        access_key=access_key,
        secret_key=secret_key,
        security_token=security_token,
        credentials=_absolute(credentials),
        tls=tls or bool(tls_config),
        tls_config=_absolute(tls_config),
        namespace=namespace,
    )
    _check(name, context)
    path = contexts_path()
    with changed_contexts(path) as found:
        if name in found.contexts and not replace:
            raise SettingsError(
                f"the context {name} exists; to replace it, give --replace; to see it: cometmq"
                f" context show {name}"
            )
        found.contexts[name] = context
        if not found.current:
            found.select(name)
        is_current = found.current == name
    print_facts({"context": name, "file": str(path), "current": is_current}, as_json=as_json)


def _asked_secret(access_key: str) -> str:
    """Return the secret key, typed on a terminal without echo, or the first line of a pipe."""
    if is_terminal(sys.stdin):
        try:
            secret = getpass(f"Secret key of {access_key}: ")
        except EOFError:  # Ctrl-D
            secret = ""
            say(err=True)
    else:
        secret = sys.stdin.readline()
    if not secret.strip():
        raise wrong_usage("the secret key is empty: give it with --secret-key or standard input")
    return secret.strip()


def _absolute(file: str) -> str:
    return os.path.abspath(os.path.expanduser(file)) if file else ""  # noqa: PTH100, PTH111


@app.command()
def use(
    name: Annotated[str, typer.Argument(help="Name; - is the one before.", autocompletion=_names)],
    *,
    as_json: AsJson = False,
) -> None:
    """Use a context in all later commands; - goes back to the one before.

    \b
    EXAMPLES
      cometmq context use prod && cometmq lag
      cometmq context use -
    """
    with changed_contexts(contexts_path()) as found:
        chosen = found.select(name)
        before = found.previous
    print_facts({"context": chosen, "before": before or None}, as_json=as_json)
    for variable in (VARIABLE, NAMESRV_VARIABLE):
        if os.getenv(variable):
            print_notes([f"the variable {variable} is set, and wins over this context: unset it"])


@app.command("list")
def list_contexts(*, as_json: AsJson = False) -> None:
    """List the contexts; * marks the current one.

    \b
    EXAMPLE
      cometmq context list
    """
    found = read_contexts(contexts_path())
    current = os.getenv(VARIABLE) or found.current
    rows: list[list[Cell]] = [
        [
            name == current if as_json else "*" if name == current else "",
            name,
            it.namesrv or None,
            it.access_key or it.credentials or None,
            it.tls,
            it.namespace or None,
        ]
        for name, it in sorted(found.contexts.items())
    ]
    columns = ("Current", "Name", "Name servers", "Account", "TLS", "Namespace")
    empty = "there is no context; to make one: cometmq context add NAME -n HOST:PORT"
    print_rows(columns, rows, as_json=as_json, empty=empty)


@app.command()
def show(
    name: Annotated[
        str, typer.Argument(help="Name; the current one by default.", autocompletion=_names)
    ] = "",
    *,
    as_json: AsJson = False,
) -> None:
    """Show a context, without its secrets.

    \b
    EXAMPLE
      cometmq context show prod
    """
    name, context = _chosen(name)
    facts: dict[str, Cell] = {"context": name}
    for field in Context.__struct_fields__:
        value = getattr(context, field)
        facts[field] = HIDDEN if field in SECRETS and value else value
    print_facts({**facts, "file": str(contexts_path())}, as_json=as_json)


@app.command()
def prompt() -> None:
    """Print the name of the context in use for a shell's prompt; nothing if there is none.

    \b
    EXAMPLE
      cometmq context prompt
    """
    name = os.getenv(VARIABLE) or read_contexts(contexts_path()).current
    if name:
        say(name)


@app.command()
def rm(name: Name, *, yes: Yes = False, as_json: AsJson = False) -> None:
    """Remove a context with its keys; asks for confirmation.

    \b
    EXAMPLE
      cometmq context rm old --yes
    """
    path = contexts_path()
    read_contexts(path).named(name)
    run(confirm(f"Remove the context {name}?", is_confirmed=yes))
    with changed_contexts(path) as found:
        found.remove(name)
    print_facts({"removed": name}, as_json=as_json)


@app.command()
def validate(
    name: Annotated[
        str, typer.Argument(help="Name; the current one by default.", autocompletion=_names)
    ] = "",
    *,
    connect: Annotated[
        bool, typer.Option("--connect", help="Also connect, and ask for the brokers.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check the files that a context names, and with --connect the cluster; exit status 1 if wrong.

    \b
    EXAMPLE
      cometmq context validate prod --connect
    """
    name, context = _chosen(name)
    facts: dict[str, Cell] = {"context": name}
    _check(name, context)
    facts["files"] = "ok"
    if connect:
        facts["brokers"] = ask(context.namesrv or DEFAULT_NAMESRV, _brokers)
    print_facts(facts, as_json=as_json)


def _chosen(name: str) -> tuple[str, Context]:
    found = read_contexts(contexts_path())
    name = name or os.getenv(VARIABLE) or found.current
    if not name:
        raise SettingsError("no context is in use: name one, as in cometmq context list")
    return name, found.named(name)


def _check(name: str, context: Context) -> None:
    """Raise CometError if an address or a file of a context cannot be used."""
    if context.namesrv:
        parse_addresses(context.namesrv)
    ACCESS.set(with_context(Access(context=name), name, context)._replace(is_resolved=True))
    with_access(ClientOptions())


async def _brokers(admin: AdminClient) -> list[str]:
    members = await admin.members()
    for member in members:
        if member.failure is not None:
            note_missing(member.broker_name, member.address, member.failure)
    return [f"{it.broker_name}:{it.broker_id}" for it in members if it.failure is None]
