# SPDX-License-Identifier: Apache-2.0
"""The framework shared by the mqadmin commands: syntax, options, tables.

A family is a module with `app = Family()` and an async function per command, which gets an admin
client and the command's options, and returns what to print:

    @app.asks("deleteTopic")
    async def _delete_topic(admin: AdminClient, topic: Topic, cluster: ...) -> Reply:
"""

import asyncio
import inspect
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeAlias, TypeVar, cast

import typer

from cometmq.cli.access import NAMESRV_HELP, namesrv_in_use
from cometmq.cli.connecting import DEFAULT_NAMESRV, ask, wrong_usage
from cometmq.cli.lazy import App, Verb
from cometmq.cli.mqadmin import COMMANDS
from cometmq.cli.option_sets import OptionSet, opt, with_parameters
from cometmq.cli.output import AsJson, print_json, print_notes
from cometmq.cli.say import say
from cometmq.client.admin import AdminClient
from cometmq.client.admin.broker import BrokerAdmin
from cometmq.client.admin.namesrv import NamesrvAdmin
from cometmq.client.errors import BrokerMissing, InvalidArgument
from cometmq.insight.times import is_known, shown
from cometmq.remoting.errors import CometError
from cometmq.remoting.transport.addresses import is_same_address

T = TypeVar("T")
S = TypeVar("S", BrokerAdmin, NamesrvAdmin)
C = TypeVar("C", bound=Callable[..., Awaitable["Reply | None"]])

Answers: TypeAlias = tuple[dict[str, T], list[str]]
"""Results by the server's address, and a line for each server that failed."""

TrueFalse = Literal["true", "false"]
"""A switch that mqadmin reads from a word, such as `true`."""


Namesrv = Annotated[
    str,
    opt(
        *("-n", "--namesrvAddr", "--namesrv", NAMESRV_HELP),
        envvar="NAMESRV_ADDR",
        callback=namesrv_in_use,
    ),
]
Topic = Annotated[str, opt("-t", "--topic", "Name of the topic.")]
Force = Annotated[bool, opt("--force", "Send the setting even if the server does not know it.")]


class Reply(NamedTuple):
    """What a command prints: a text or, with --json, the facts; nothing if they are empty or None.

    A document in RocketMQ's own JSON is bytes; a text that writes files is a function.
    """

    text: str | bytes | Callable[[], str] = ""
    facts: Any = None
    failed: Sequence[str] = ()
    """Lines about servers that failed; they make the exit status 1."""

    def print(self, *, as_json: bool) -> None:
        """Print the reply, and exit with status 1 if a server failed."""
        if as_json and isinstance(self.facts, bytes):
            say(self.facts)
        elif as_json and self.facts is not None:
            print_json(self.facts)
        elif not as_json and (text := self.text() if callable(self.text) else self.text):
            say(text)
        print_notes(self.failed)
        if self.failed:
            raise typer.Exit(1)


class MqadminCommand(Verb):
    """A command that also accepts long options after a single dash, like Java's parser: `-topic
    T`.
    """

    may_repeat = True

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Add the second dash to long options that have only one, then parse."""
        names = {name for param in self.params for name in param.opts if name.startswith("--")}
        dashed = [f"-{arg}" if f"-{arg.partition('=')[0]}" in names else arg for arg in args]
        return super().parse_args(ctx, dashed)


class Family(App):
    """Commands of mqadmin that share a module."""

    def named(self, name: str, text: str | None = None) -> Callable[..., Any]:
        """Register a command; its help is `text`, or its line in the table, and -h shows it."""
        return self.command(
            name,
            cls=MqadminCommand,
            context_settings={"help_option_names": ["-h", "--help"]},
            help=text or COMMANDS[name].help,
        )

    def asks(self, name: str) -> Callable[[C], C]:
        """Register an async function whose reply is printed; a docstring replaces its help line.

        The options `--namesrvAddr` and `--json` are added; the function may have parameters
        `namesrv` and `as_json` for them.
        """

        def add(command: C) -> C:
            _, *own = inspect.signature(command).parameters.values()
            common = [
                inspect.Parameter(word, KEYWORD, default=default, annotation=hint)
                for word, hint, default in COMMON
            ]
            known = {it.name for it in own}
            options = [it for it in own if it.name not in {"namesrv", "as_json"}]

            def run(**values: Any) -> None:
                given = {word: values[word] for word in known}
                reply = ask(values["namesrv"], lambda admin: command(admin, **given))
                (reply or Reply()).print(as_json=values["as_json"])

            parameters = [it.replace(kind=KEYWORD) for it in options] + common
            self.named(name, command.__doc__)(with_parameters(run, parameters))
            return command

        return add


KEYWORD: Final = inspect.Parameter.KEYWORD_ONLY
COMMON: Final[Sequence[tuple[str, Any, Any]]] = (
    ("namesrv", Namesrv, DEFAULT_NAMESRV),
    ("as_json", AsJson, False),
)
"""The options of every command, with their types and defaults."""


# -- queries ----------------------------------------------------------------------------------


async def ask_each(servers: Iterable[S], question: Callable[[S], Awaitable[T]]) -> Answers[T]:
    """Query all servers concurrently."""

    async def asked(server: S) -> T | CometError:
        try:
            return await question(server)
        except InvalidArgument:
            raise  # a caller's error, not a server's
        except CometError as error:
            return error

    async with asyncio.TaskGroup() as group:
        tasks = {server.address: group.create_task(asked(server)) for server in servers}
    results = {address: task.result() for address, task in tasks.items()}
    failed = {at: it for at, it in results.items() if isinstance(it, CometError)}
    return {at: cast("T", it) for at, it in results.items() if at not in failed}, failures(failed)


def failures(errors: Mapping[str, CometError]) -> list[str]:
    """Return a line for each server that failed; most errors begin with its address."""
    texts = ((address, str(error)) for address, error in errors.items())
    return [text if text.startswith(address) else f"{address}: {text}" for address, text in texts]


class AnyBrokers(OptionSet, frozen=True, kw_only=True):
    """The broker at an address, or the brokers of a cluster; by default, of all clusters."""

    broker: Annotated[str | None, opt("-b", "--brokerAddr", "Only the broker at this address.")] = (
        None
    )
    cluster: Annotated[str | None, opt("-c", "--cluster", "All brokers of this cluster.")] = None

    async def masters(self, admin: AdminClient) -> list[BrokerAdmin]:
        """Return the broker, or the masters of the cluster."""
        if self.broker is not None:
            return [admin.broker(self.broker)]
        return list((await admin.masters(self.cluster)).values())

    async def ask(
        self,
        admin: AdminClient,
        question: Callable[[BrokerAdmin], Awaitable[T]],
        *,
        with_slaves: bool = False,
    ) -> Answers[T]:
        """Query each of the brokers, by default only masters."""
        if self.broker is not None or not with_slaves:
            return await ask_each(await self.masters(admin), question)
        groups = await admin.broker_groups(self.cluster)
        return await ask_each([it for group in groups.values() for it in group.values()], question)


class Target(AnyBrokers, frozen=True, kw_only=True):
    """One broker, or one cluster; a command that has both options or neither is refused."""

    cluster: Annotated[str | None, opt("-c", "--clusterName", "All masters of this cluster.")] = (
        None
    )

    def __post_init__(self) -> None:
        if self.broker is None and self.cluster is None:
            raise wrong_usage(
                "the target is missing: give -c with the name of a cluster, for all its masters, or"
                " -b with the address of one broker; cometmq cluster shows both"
            )
        if self.broker is not None and self.cluster is not None:
            raise wrong_usage(
                "there are two targets: give either -b (one broker) or -c (all masters of a"
                " cluster)"
            )


async def broker_name_of(admin: AdminClient, address: str) -> str:
    """Return the registered name of the broker at an address."""
    for name, group in (await admin.broker_groups()).items():
        if any(is_same_address(member.address, address) for member in group.values()):
            return name
    raise BrokerMissing(f"no broker is registered with the address {address}")


# -- output -----------------------------------------------------------------------------------


class Column(NamedTuple):
    """A column of mqadmin's tables; scripts rely on its heading, position and width."""

    key: str
    """Name in JSON."""
    title: str
    form: str
    """`%` format including the trailing spaces: `%-32.32s  `."""
    text: Callable[[Any], Any] = lambda cell: cell
    """Converts the value to readable text."""
    data: Callable[[Any], Any] = lambda cell: cell
    """Converts the value to JSON data."""


def time_column(key: str, title: str, form: str = "%s", *, with_ms: bool = False) -> Column:
    """Return a time column: local time in tables, UTC in JSON."""
    return Column(key, title, form, lambda moment: local_time(moment, with_ms=with_ms), shown)


def local_time(timestamp_ms: int, *, with_ms: bool = False) -> str:
    """Return a time as mqadmin writes it; empty if it is unknown."""
    if not is_known(timestamp_ms):
        return ""
    moment = datetime.fromtimestamp(timestamp_ms // 1000, tz=UTC).astimezone()
    text = moment.strftime("%Y-%m-%d %H:%M:%S")
    return f"{text},{timestamp_ms % 1000:03}" if with_ms else text


Rows = Sequence[Sequence[Any]]


def table(columns: Sequence[Column], rows: Rows, *, has_heading: bool = True) -> Reply:
    """Return rows with mqadmin's heading and columns, or as a JSON list of objects."""
    return Reply(text_of(columns, rows, has_heading=has_heading), objects(columns, rows))


def text_of(columns: Sequence[Column], rows: Rows, *, has_heading: bool = True) -> str:
    """Return rows as text; unknown values are left blank."""
    lines = []
    if has_heading:
        lines.append("".join(_blank(column) % column.title for column in columns))
    for row in rows:
        cells = (
            _blank(column) % "" if cell is None else column.form % column.text(cell)
            for column, cell in zip(columns, row, strict=True)
        )
        lines.append("".join(cells).replace("\n", "\\n"))
    return "\n".join(line.rstrip() for line in lines)


def _blank(column: Column) -> str:
    """Return the form of a cell without a value, which has the same width."""
    return re.sub(r"%(-?\d*)(?:\.\d+)?[dfs]", r"%\1s", column.form)


def objects(columns: Sequence[Column], rows: Rows) -> list[dict[str, Any]]:
    """Return rows as JSON data."""
    return [
        {
            column.key: None if cell is None else column.data(cell)
            for column, cell in zip(columns, row, strict=True)
        }
        for row in rows
    ]


def sections(tables: Mapping[str, Mapping[str, Any]], *, below: str = "") -> str:
    """Return settings, each table under its title."""
    return "\n".join(
        "\n".join([f"============{title}============", *(f"{k:<50}=  {v}" for k, v in it.items())])
        + below
        for title, it in tables.items()
    )
