# SPDX-License-Identifier: Apache-2.0
"""mqadmin's commands for connected clients."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import quote

from cometmq.cli.mqadmin import java_text
from cometmq.cli.mqadmin.frame import Column, Family, Reply, Topic, objects, table, text_of
from cometmq.cli.option_sets import opt
from cometmq.cli.output import print_notes
from cometmq.client.admin import AdminClient
from cometmq.client.clock import wall_ms
from cometmq.client.errors import ClientError
from cometmq.insight.reading import each_or_why
from cometmq.remoting.bodies.connections import Connection, ConsumerConnections
from cometmq.remoting.bodies.running_info import ConsumerRunningInfo
from cometmq.remoting.errors import CometError
from cometmq.remoting.versions import version_name

FILE_CHARS_MAX: Final = 200
"""The longest name of a file about a member; file systems allow 255 bytes."""

app = Family()

Group = Annotated[str, opt("-g", "--consumerGroup", "Name of the consumer group.")]
Stacks = Annotated[bool, opt("-s", "--jstack", "Include the stack of each consumer thread.")]
MemberOf = Annotated[str | None, opt("-b", "--brokerAddr", "Ask the broker at this address.")]

_MEMBER_COLUMNS: Final = (
    Column("client_id", "#ClientId", "%-36s "),
    Column("client_addr", "#ClientAddr", "%-22s "),
    Column("language", "#Language", "%-10s "),
    Column("version", "#Version", "%s", version_name, version_name),
)


# -- members ----------------------------------------------------------------------------------


@app.asks("consumerConnection")
async def _consumer_connection(admin: AdminClient, group: Group, broker: MemberOf = None) -> Reply:
    found = await _members(admin, group, broker)
    rows = _rows(found.connection_set)
    wanted = [(it.topic, it.sub_string) for _, it in sorted(found.subscription_table.items())]
    lines = [
        text_of(_MEMBER_COLUMNS, rows),
        f"\nBelow is subscription:\n{'#Topic':<20} #SubExpression",
        *(f"{topic:<20} {text}" for topic, text in wanted),
        f"\nConsumeType: {found.consume_type}\nMessageModel: {found.message_model}",
        f"ConsumeFromWhere: {found.consume_from_where}",
    ]
    facts = {
        "members": objects(_MEMBER_COLUMNS, rows),
        "subscriptions": [{"topic": topic, "expression": text} for topic, text in wanted],
        "consume_type": found.consume_type,
        "message_model": found.message_model,
        "consume_from_where": found.consume_from_where,
    }
    return Reply("\n".join(lines), facts)


@app.asks("producerConnection")
async def _producer_connection(
    admin: AdminClient,
    group: Annotated[str, opt("-g", "--producerGroup", "Name of the group.")],
    topic: Topic,
) -> Reply:
    found = await admin.producer_connections(group, topic)
    columns = (Column("number", "", "%04d  "), *_MEMBER_COLUMNS)
    rows = [(number, *row) for number, row in enumerate(_rows(found.connection_set), 1)]
    return table(columns, rows, has_heading=False)


async def _members(admin: AdminClient, group: str, broker: str | None) -> ConsumerConnections:
    if broker is not None:
        return await admin.broker(broker).consumer_connections(group)
    return await admin.consumer_connections(group)


def _rows(members: Iterable[Connection]) -> list[tuple[str, str, str, int]]:
    return [(m.client_id, m.client_addr, m.language, m.version) for m in members]


# -- running state ----------------------------------------------------------------------------


@app.asks("consumerStatus")
async def _consumer_status(
    admin: AdminClient,
    group: Group,
    client_id: Annotated[str | None, opt("-i", "--clientId", "Only this member.")] = None,
    broker: MemberOf = None,
    *,
    jstack: Stacks = False,
) -> Reply:
    """Show the running state of a group's members, and problems in the group.

    Each member's state is written to a file, unless a single member is selected.
    """
    if client_id is None:
        return await _all_members(admin, group, broker, jstack=jstack)
    found = await admin.running_info(group, client_id, with_stacks=jstack)
    return Reply(java_text.described(found), _as_object(client_id, found))


@app.asks("consumer")
async def _consumer(admin: AdminClient, group: Group, *, jstack: Stacks = False) -> Reply:
    """Show the running state of all members of a group, and problems in the group."""
    return await _all_members(admin, group, None, jstack=jstack)


Said = dict[str, tuple[int, ConsumerRunningInfo]]
"""Version and running state by client id."""


async def _all_members(
    admin: AdminClient, group: str, broker: str | None, *, jstack: bool
) -> Reply:
    said, now_ms = await members_say(admin, group, broker, jstack=jstack), wall_ms()
    infos = {client_id: info for client_id, (_, info) in said.items()}
    is_same = java_text.is_same_subscription(infos, now_ms=now_ms)
    wrong = [
        line
        for client_id, info in infos.items()
        for line in java_text.troubles(client_id, info, now_ms=now_ms)
    ]
    lines = [f"{'#Index':<10} {'#ClientId':<40} {'#Version':<20} #ConsumerRunningInfoFile"]

    def text() -> str:
        for number, (client_id, (version, info)) in enumerate(said.items(), 1):
            path = _write(info, str(now_ms), number, client_id)
            lines.append(f"{number:<10} {client_id:<40} {version_name(version):<20} {path}")
        same = "\n\nSame subscription in the same group of consumer\n\n\nRebalance OK"
        other = "\n\nWARN: Different subscription in the same group of consumer!!!"
        return "\n".join([*lines, *([same, *wrong] if is_same else [other])])

    members = [_as_object(client_id, info) for client_id, info in infos.items()]
    return Reply(text, {"members": members, "same_subscription": is_same, "troubles": wrong})


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
    print_notes(f"{name}: {failure}" for name, failure in failures.items())
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
