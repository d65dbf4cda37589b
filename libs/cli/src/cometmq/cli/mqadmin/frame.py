# SPDX-License-Identifier: Apache-2.0
"""The framework shared by the mqadmin commands: syntax, options, tables.

A family is a module with `app = Family()` and a function per command:

    @app.named("deleteTopic")
    def delete_topic(topic: Topic, cluster: ..., namesrv: Namesrv = DEFAULT_NAMESRV, *, ...)
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeAlias, TypeVar, cast

import typer

from cometmq.cli.access import NAMESRV_HELP, namesrv_in_use
from cometmq.cli.connecting import ask, wrong_usage
from cometmq.cli.lazy import App, Verb
from cometmq.cli.option_sets import OptionSet, with_option_sets
from cometmq.cli.output import print_json
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
F = TypeVar("F", bound=Callable[..., Any])

Answers: TypeAlias = tuple[dict[str, T], dict[str, CometError]]
"""Results and failures, each by the server's address."""

TrueFalse = Literal["true", "false"]
"""A switch that mqadmin reads from a word, such as `true`."""

Namesrv = Annotated[
    str,
    typer.Option(
        "-n",
        "--namesrvAddr",
        "--namesrv",
        envvar="NAMESRV_ADDR",
        help=NAMESRV_HELP,
        callback=namesrv_in_use,
    ),
]
BrokerAddr = Annotated[
    str | None, typer.Option("-b", "--brokerAddr", help="Only the broker at this address.")
]
Topic = Annotated[str, typer.Option("-t", "--topic", help="Name of the topic.")]
Force = Annotated[
    bool, typer.Option("--force", help="Send the setting even if the server does not recognize it.")
]


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

    def named(self, name: str, help_line: str | None = None) -> Callable[[F], F]:
        """Register a command; its help defaults to the docstring, and -h shows it."""
        settings = {"help_option_names": ["-h", "--help"]}
        add = self.command(name, cls=MqadminCommand, context_settings=settings, help=help_line)
        return lambda command: add(with_option_sets(command))


# -- queries ----------------------------------------------------------------------------------


async def ask_each(servers: Sequence[S], question: Callable[[S], Awaitable[T]]) -> Answers[T]:
    """Query all servers concurrently; return results and failures by address."""

    async def asked(server: S) -> tuple[T | None, CometError | None]:
        try:
            return await question(server), None
        except InvalidArgument:
            raise  # a caller's error, not a server's
        except CometError as error:
            return None, error

    async with asyncio.TaskGroup() as group:
        tasks = {server.address: group.create_task(asked(server)) for server in servers}
    results = {address: task.result() for address, task in tasks.items()}
    failures = {address: error for address, (_, error) in results.items() if error is not None}
    answers = {at: cast("T", answer) for at, (answer, _) in results.items() if at not in failures}
    return answers, failures


class AnyBrokers(OptionSet, frozen=True, kw_only=True):
    """The broker at an address, or the brokers of a cluster; by default, of all clusters."""

    broker: BrokerAddr = None
    cluster: Annotated[
        str | None, typer.Option("-c", "--cluster", help="All brokers of this cluster.")
    ] = None

    async def masters(self, admin: AdminClient) -> list[BrokerAdmin]:
        """Return the broker, or the masters of the cluster."""
        if self.broker is not None:
            return [admin.broker(self.broker)]
        return list((await admin.masters(self.cluster)).values())

    async def members(self, admin: AdminClient) -> list[BrokerAdmin]:
        """Return the broker, or the masters and slaves of the cluster."""
        if self.broker is not None:
            return [admin.broker(self.broker)]
        groups = await admin.broker_groups(self.cluster)
        return [member for group in groups.values() for member in group.values()]

    def ask(
        self,
        namesrv: str,
        question: Callable[[BrokerAdmin], Awaitable[T]],
        *,
        with_slaves: bool = False,
    ) -> Answers[T]:
        """Query each of the brokers, by default only masters."""
        find = self.members if with_slaves else self.masters

        async def asked(admin: AdminClient) -> Answers[T]:
            return await ask_each(await find(admin), question)

        return ask(namesrv, asked)


class Target(AnyBrokers, frozen=True, kw_only=True):
    """One broker, or one cluster; a command that has both options or neither is refused."""

    cluster: Annotated[
        str | None, typer.Option("-c", "--clusterName", help="All masters of this cluster.")
    ] = None

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


def ask_namesrvs(namesrv: str, question: Callable[[NamesrvAdmin], Awaitable[T]]) -> Answers[T]:
    """Query all name servers."""

    async def asked(admin: AdminClient) -> Answers[T]:
        return await ask_each(admin.namesrv.each(), question)

    return ask(namesrv, asked)


def exit_if_any(failures: Mapping[str, CometError]) -> None:
    """Print failed servers, one per line, and exit with status 1; do nothing if none failed."""
    for address, error in failures.items():
        text = str(error)
        line = text if text.startswith(address) else f"{address}: {text}"
        say(f"cometmq: {line}", err=True)
    if failures:
        raise typer.Exit(1)


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


def print_table(
    columns: Sequence[Column],
    rows: Iterable[Sequence[Any]],
    *,
    as_json: bool,
    has_heading: bool = True,
) -> None:
    """Print rows with mqadmin's heading and columns, or as a JSON list of objects."""
    if as_json:
        print_json([to_object(columns, row) for row in rows])
        return
    if has_heading:
        cells = (_TITLE.sub(r"%\1s", column.form) % column.title for column in columns)
        say("".join(cells).rstrip())
    for row in rows:
        say(to_line(columns, row))


def to_object(columns: Sequence[Column], row: Sequence[Any]) -> dict[str, Any]:
    """Return a row as JSON data."""
    return {column.key: column.data(cell) for column, cell in zip(columns, row, strict=True)}


def to_line(columns: Sequence[Column], row: Sequence[Any]) -> str:
    """Return a row as text; unknown values are left blank."""
    cells = (
        _TITLE.sub(r"%\1s", column.form) % "" if cell is None else column.form % column.text(cell)
        for column, cell in zip(columns, row, strict=True)
    )
    return "".join(cells).rstrip().replace("\n", "\\n")


def print_done(text: str, facts: Any, *, as_json: bool) -> None:
    """Print the text in mqadmin's wording or, in JSON, the facts."""
    if as_json:
        print_json(facts)
    elif text:
        say(text)


_TITLE: Final = re.compile(r"%(-?\d*)(?:\.\d+)?[dfs]")
"""Matches the conversion of a cell; the heading gets its width."""
