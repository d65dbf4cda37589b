# SPDX-License-Identifier: Apache-2.0
"""What the commands of mqadmin have in common: their syntax, their options, their tables.

A family is a module with `app = Family()` and a function per command:

    @app.named("deleteTopic")
    def delete_topic(topic: Topic, cluster: ..., namesrv: Namesrv = DEFAULT_NAMESRV, *, ...)
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import typer
from typer.core import TyperCommand

from cometmq.cli.connecting import wrong_usage
from cometmq.cli.output import Cell, as_objects, print_json
from cometmq.client.admin import AdminClient
from cometmq.client.admin_broker import BrokerAdmin

F = TypeVar("F", bound=Callable[..., Any])

TrueFalse = Literal["true", "false"]
"""A switch that mqadmin takes as a word."""

Namesrv = Annotated[
    str,
    typer.Option(
        "-n",
        "--namesrvAddr",
        "--namesrv",
        envvar="NAMESRV_ADDR",
        help="Name servers, host:port;host:port.",
    ),
]
BrokerAddr = Annotated[
    str | None, typer.Option("-b", "--brokerAddr", help="Only the broker at this address.")
]
ClusterName = Annotated[
    str | None, typer.Option("-c", "--clusterName", help="All masters of this cluster.")
]
Topic = Annotated[str, typer.Option("-t", "--topic", help="Name of the topic.")]


class MqadminCommand(TyperCommand):
    """Also takes long options after one dash, as Java's parser does: `-topic T`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Write long options with two dashes, then parse."""
        names = {name for param in self.params for name in param.opts if name.startswith("--")}
        dashed = [f"-{arg}" if f"-{arg.partition('=')[0]}" in names else arg for arg in args]
        return super().parse_args(ctx, dashed)


class Family(typer.Typer):
    """Commands of mqadmin that share a module."""

    def __init__(self) -> None:
        """No commands yet."""
        super().__init__(add_completion=False, rich_markup_mode=None)

    def named(self, name: str) -> Callable[[F], F]:
        """Make a function the command of this name; -h helps, as in mqadmin."""
        return self.command(
            name, cls=MqadminCommand, context_settings={"help_option_names": ["-h", "--help"]}
        )


# -- whom to ask ------------------------------------------------------------------------------


def check_target(broker: str | None, cluster: str | None) -> None:
    """Refuse both or neither of -b and -c."""
    if (broker is None) == (cluster is None):
        raise wrong_usage("give either -b or -c")


async def targets(admin: AdminClient, broker: str | None, cluster: str | None) -> list[BrokerAdmin]:
    """Return the broker at an address, or the masters of a cluster."""
    if broker is not None:
        return [admin.broker(broker)]
    return list((await admin.masters(cluster)).values())


# -- what to print ----------------------------------------------------------------------------


class Column(NamedTuple):
    """A column of mqadmin's tables: scripts count on its heading and place."""

    title: str
    width: int
    decimals: int | None = None
    """Digits after the point."""


def print_table(
    columns: Sequence[Column],
    rows: Sequence[Sequence[Cell]],
    *,
    as_json: bool,
    has_heading: bool = True,
) -> None:
    """Print rows as mqadmin does: a heading that begins with #, two spaces between columns."""
    if as_json:
        print_json(as_objects([column.title.removeprefix("#") for column in columns], rows))
        return
    if has_heading:
        typer.echo("  ".join(column.title.ljust(column.width) for column in columns).rstrip())
    for row in rows:
        cells = zip(columns, row, strict=True)
        typer.echo("  ".join(_shown(column, cell).ljust(column.width) for column, cell in cells))


def print_done(text: str, facts: Mapping[str, Any], *, as_json: bool) -> None:
    """Say what was done in mqadmin's words; scripts get the facts."""
    if as_json:
        print_json(facts)
    else:
        typer.echo(text)


def _shown(column: Column, cell: Cell) -> str:
    if cell is None:
        return ""
    if isinstance(cell, bool):
        return str(cell).lower()
    if isinstance(cell, float) and column.decimals is not None:
        return f"{cell:.{column.decimals}f}"
    return str(cell)
