# SPDX-License-Identifier: Apache-2.0
"""mqadmin's commands for connected clients."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import quote

import typer

from cometmq.cli.connecting import DEFAULT_NAMESRV, ask
from cometmq.cli.mqadmin import java_text
from cometmq.cli.mqadmin.frame import Column, Family, Namesrv, Topic, print_table, to_object
from cometmq.cli.output import AsJson, print_json
from cometmq.cli.say import say
from cometmq.client.admin import AdminClient
from cometmq.client.clock import wall_ms
from cometmq.client.errors import ClientError
from cometmq.insight.reading import each_or_why
from cometmq.remoting.bodies.connections import Connection, ConsumerConnections
from cometmq.remoting.bodies.heartbeat import SubscriptionData
from cometmq.remoting.bodies.running_info import ConsumerRunningInfo
from cometmq.remoting.errors import CometError
from cometmq.remoting.versions import version_name

FILE_CHARS_MAX: Final = 200
"""The longest name of a file about a member; file systems allow 255 bytes."""

app = Family()

Group = Annotated[str, typer.Option("-g", "--consumerGroup", help="Name of the consumer group.")]
Stacks = Annotated[
    bool, typer.Option("-s", "--jstack", help="Include the stack of each consumer thread.")
]
MemberOf = Annotated[
    str | None, typer.Option("-b", "--brokerAddr", help="Ask the broker at this address.")
]

_MEMBER_COLUMNS: Final = (
    Column("client_id", "#ClientId", "%-36s "),
    Column("client_addr", "#ClientAddr", "%-22s "),
    Column("language", "#Language", "%-10s "),
    Column("version", "#Version", "%s", version_name, version_name),
)


# -- members ----------------------------------------------------------------------------------


@app.named("consumerConnection")
def consumer_connection(
    group: Group,
    broker: MemberOf = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    *,
    as_json: AsJson = False,
) -> None:
    """Show the connected members of a consumer group and their subscriptions."""
    found = ask(namesrv, lambda admin: _members(admin, group, broker))
    subscriptions = [(wanted.topic, wanted.sub_string) for wanted in _wanted(found)]
    if as_json:
        members = [to_object(_MEMBER_COLUMNS, row) for row in _rows(found.connection_set)]
        wanted = [{"topic": topic, "expression": text} for topic, text in subscriptions]
        facts = {
            "consume_type": found.consume_type,
            "message_model": found.message_model,
            "consume_from_where": found.consume_from_where,
        }
        print_json({"members": members, "subscriptions": wanted, **facts})
        return
    print_table(_MEMBER_COLUMNS, _rows(found.connection_set), as_json=False)
    say(f"\nBelow is subscription:\n{'#Topic':<20} #SubExpression")
    for topic, text in subscriptions:
        say(f"{topic:<20} {text}")
    say(f"\nConsumeType: {found.consume_type}\nMessageModel: {found.message_model}")
    say(f"ConsumeFromWhere: {found.consume_from_where}")


@app.named("producerConnection")
def producer_connection(
    group: Annotated[str, typer.Option("-g", "--producerGroup", help="Name of the group.")],
    topic: Topic,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    *,
    as_json: AsJson = False,
) -> None:
    """Show the connected members of a producer group."""
    found = ask(namesrv, lambda admin: admin.producer_connections(group, topic))
    columns = (Column("number", "", "%04d  "), *_MEMBER_COLUMNS)
    rows = [(number, *row) for number, row in enumerate(_rows(found.connection_set), 1)]
    print_table(columns, rows, as_json=as_json, has_heading=False)


async def _members(admin: AdminClient, group: str, broker: str | None) -> ConsumerConnections:
    if broker is not None:
        return await admin.broker(broker).consumer_connections(group)
    return await admin.consumer_connections(group)


def _wanted(found: ConsumerConnections) -> list[SubscriptionData]:
    return [wanted for _, wanted in sorted(found.subscription_table.items())]


def _rows(members: Iterable[Connection]) -> list[tuple[str, str, str, int]]:
    return [(m.client_id, m.client_addr, m.language, m.version) for m in members]


# -- running state ----------------------------------------------------------------------------


@app.named("consumerStatus")
def consumer_status(
    group: Group,
    client_id: Annotated[
        str | None, typer.Option("-i", "--clientId", help="Only this member.")
    ] = None,
    broker: MemberOf = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    *,
    jstack: Stacks = False,
    as_json: AsJson = False,
) -> None:
    """Show the running state of a group's members, and problems in the group.

    Each member's state is written to a file, unless a single member is selected.
    """
    if client_id is None:
        _show_members(namesrv, group, broker, jstack=jstack, as_json=as_json)
        return
    found = ask(namesrv, lambda admin: admin.running_info(group, client_id, with_stacks=jstack))
    if as_json:
        print_json(_as_object(client_id, found))
    else:
        say(java_text.described(found))


@app.named("consumer")
def consumer(
    group: Group,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    *,
    jstack: Stacks = False,
    as_json: AsJson = False,
) -> None:
    """Show the running state of all members of a group, and problems in the group."""
    _show_members(namesrv, group, None, jstack=jstack, as_json=as_json)


Said = dict[str, tuple[int, ConsumerRunningInfo]]
"""Version and running state by client id."""


def _show_members(
    namesrv: str, group: str, broker: str | None, *, jstack: bool, as_json: bool
) -> None:
    async def question(admin: AdminClient) -> Said:
        return await members_say(admin, group, broker, jstack=jstack)

    said, now_ms = ask(namesrv, question), wall_ms()
    infos = {client_id: info for client_id, (_, info) in said.items()}
    is_same = java_text.is_same_subscription(infos, now_ms=now_ms)
    wrong = [
        line
        for client_id, info in infos.items()
        for line in java_text.troubles(client_id, info, now_ms=now_ms)
    ]
    if as_json:
        members = [_as_object(client_id, info) for client_id, info in infos.items()]
        print_json({"members": members, "same_subscription": is_same, "troubles": wrong})
        return
    say(f"{'#Index':<10} {'#ClientId':<40} {'#Version':<20} #ConsumerRunningInfoFile")
    for number, (client_id, (version, info)) in enumerate(said.items(), 1):
        path = _write(info, str(now_ms), number, client_id)
        say(f"{number:<10} {client_id:<40} {version_name(version):<20} {path}")
    if is_same:
        say("\n\nSame subscription in the same group of consumer\n\n\nRebalance OK")
        say("\n".join(wrong), nl=bool(wrong))
    else:
        say("\n\nWARN: Different subscription in the same group of consumer!!!")


async def members_say(admin: AdminClient, group: str, broker: str | None, *, jstack: bool) -> Said:
    """Query the running state of each connected member of a group.

    Name the members that do not tell it; if none does, raise the last error.
    """
    members = {it.client_id: it for it in (await _members(admin, group, broker)).connection_set}
    answers = await each_or_why(
        sorted(members), lambda it: admin.running_info(group, it, with_stacks=jstack)
    )
    said: Said = {}
    failures: dict[str, CometError] = {}
    for name, info in answers.items():
        if isinstance(info, CometError):
            failures[name] = info
        else:
            said[name] = members[name].version, info
    if failures and not said:
        raise failures.popitem()[1]
    for name, failure in failures.items():
        say(f"cometmq: {name}: {failure}", err=True)
    return said


def _write(info: ConsumerRunningInfo, folder: str, number: int, client_id: str) -> Path:
    """Write a member's state to a file, which has the id as its name if a file can have it."""
    name = quote(client_id, safe="@#:")
    if name != client_id or name.startswith(".") or len(name) > FILE_CHARS_MAX:
        name = f"{number}_{name[:FILE_CHARS_MAX]}"
    path = Path(folder) / name
    try:
        path.parent.mkdir(exist_ok=True)
        path.write_text(java_text.described(info), encoding="utf-8")
    except OSError as error:
        raise ClientError(f"{path} cannot be written: {error}") from error
    return path


def _as_object(client_id: str, info: ConsumerRunningInfo) -> dict[str, object]:
    queues = [
        {"topic": queue.topic, "broker": queue.broker_name, "queue": queue.queue_id, "state": state}
        for queue, state in sorted(info.mq_table.items())
    ]
    return {
        "client_id": client_id,
        "properties": info.properties,
        "subscriptions": info.subscription_set,
        "queues": queues,
        "rates": info.status_table,
        "jstack": info.jstack,
    }
