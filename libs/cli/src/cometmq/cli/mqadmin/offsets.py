# SPDX-License-Identifier: Apache-2.0
"""mqadmin's commands that read or move the offsets of groups."""

from typing import Annotated, Final

import typer

from cometmq.cli.connecting import DEFAULT_NAMESRV, ask
from cometmq.cli.mqadmin.frame import Column, Family, Namesrv, Topic, TrueFalse, print_table
from cometmq.cli.mqadmin.text.moments import FORMS, moment
from cometmq.cli.output import AsJson
from cometmq.cli.say import say
from cometmq.client.admin import AdminClient, Rollback
from cometmq.client.admin.broker_consumers import END
from cometmq.remoting.bodies.queues import MessageQueue

app = Family()

Group = Annotated[str, typer.Option("-g", "--group", help="Name of the consumer group.")]
Force = Annotated[
    TrueFalse, typer.Option("-f", "--force", help="If false, never move a queue forward.")
]
Timestamp = Annotated[
    str, typer.Option("-s", "--timestamp", help=f"Time to move to: now (the end), {FORMS}.")
]

_ROLLBACK_COLUMNS: Final = (
    Column("broker", "#brokerName", "%-20.32s  "),
    Column("queue", "#queueId", "%-20d  "),
    Column("broker_offset", "#brokerOffset", "%-20d  "),
    Column("consumer_offset", "#consumerOffset", "%-20d  "),
    Column("timestamp_offset", "#timestampOffset", "%-20d  "),
    Column("rollback_offset", "#rollbackOffset", "%-20d"),
)
_MOVED_COLUMNS: Final = (
    Column("broker", "#brokerName", "%-40.32s  "),
    Column("queue", "#queueId", "%-40d  "),
    Column("offset", "#offset", "%-40d"),
)
_STATUS_COLUMNS: Final = (
    Column("client_id", "#clientId", "%-50.50s  "),
    Column("broker", "#brokerName", "%-15s  "),
    Column("queue", "#queueId", "%-15d  "),
    Column("offset", "#offset", "%-20d"),
)


@app.named("resetOffsetByTime")
def reset_offset_by_time(
    group: Group,
    topic: Topic,
    timestamp: Timestamp,
    force: Force = "true",
    namesrv: Namesrv = DEFAULT_NAMESRV,
    *,
    _cplus: Annotated[
        bool,
        typer.Option("-c", "--cplus", help="Ignored: every client is notified in its own format."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Move a group to a point in time; its members do not need to restart."""
    at_ms = moment(timestamp)

    async def question(admin: AdminClient) -> dict[MessageQueue, int]:
        return await admin.reset_offsets(
            group, topic, at_ms, is_forced=force == "true", is_new_group=True
        )

    moved = ask(namesrv, question)
    if not as_json:
        say(
            f"rollback consumer offset by specified group[{group}], topic[{topic}], "
            f"force[{force}], timestamp(string)[{timestamp}], timestamp(long)[{at_ms}]"
        )
    _print_moved(moved, as_json=as_json)


@app.named("skipAccumulatedMessage")
def skip_accumulated_message(
    group: Group,
    topic: Topic,
    force: Force = "true",
    namesrv: Namesrv = DEFAULT_NAMESRV,
    *,
    as_json: AsJson = False,
) -> None:
    """Move a group to the end of every queue."""

    async def question(admin: AdminClient) -> dict[MessageQueue, int]:
        return await admin.reset_offsets(
            group, topic, END, is_forced=force == "true", is_new_group=True
        )

    _print_moved(ask(namesrv, question), as_json=as_json)


@app.named("resetOffsetByTimeOld")
def reset_offset_by_time_old(
    group: Group,
    topic: Topic,
    timestamp: Timestamp,
    force: Force = "true",
    namesrv: Namesrv = DEFAULT_NAMESRV,
    *,
    as_json: AsJson = False,
) -> None:
    """Move the committed offsets of a group to a point in time; its members must restart."""
    at_ms = moment(timestamp)

    async def question(admin: AdminClient) -> list[Rollback]:
        return await admin.roll_back(
            group, topic, at_ms, is_forced=force == "true", is_new_group=True
        )

    found = ask(namesrv, question)
    if not as_json:
        say(
            f"rollback consumer offset by specified consumerGroup[{group}], topic[{topic}], "
            f"force[{force}], timestamp(string)[{timestamp}], timestamp(long)[{at_ms}]"
        )
    rows = [
        (
            row.queue.broker_name,
            row.queue.queue_id,
            row.broker_offset,
            row.consumer_offset,
            row.timestamp_offset,
            row.rollback_offset,
        )
        for row in found
    ]
    print_table(_ROLLBACK_COLUMNS, rows, as_json=as_json)


@app.named("cloneGroupOffset")
def clone_group_offset(
    source: Annotated[str, typer.Option("-s", "--srcGroup", help="Group to copy from.")],
    destination: Annotated[str, typer.Option("-d", "--destGroup", help="Group to copy to.")],
    topic: Topic,
    _offline: Annotated[
        str | None,
        typer.Option("-o", "--offline", help="Ignored; accepted for compatibility with mqadmin."),
    ] = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    *,
    as_json: AsJson = False,
) -> None:
    """Copy the offsets of a group in a topic to another group."""
    moved = ask(
        namesrv,
        lambda admin: admin.clone_offsets(source, destination, topic, is_new_group=True),
    )
    if as_json:
        _print_moved(moved, as_json=True)
    else:
        say(
            f"clone group offset success. srcGroup[{source}], destGroup=[{destination}], "
            f"topic[{topic}]"
        )


@app.named("getConsumerStatus")
def get_consumer_status(
    group: Group,
    topic: Topic,
    client_id: Annotated[
        str | None, typer.Option("-i", "--originClientId", help="Only this member.")
    ] = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    *,
    as_json: AsJson = False,
) -> None:
    """Show the current offsets of the connected members of a group."""
    found = ask(namesrv, lambda admin: admin.member_offsets(topic, group, client_id=client_id))
    rows = [
        (member, queue.broker_name, queue.queue_id, offset)
        for member, offsets in sorted(found.items())
        for queue, offset in sorted(offsets.items())
    ]
    if not as_json:
        say(
            f"get consumer status from client. group={group}, topic={topic}, "
            f"originClientId={client_id or ''}"
        )
    print_table(_STATUS_COLUMNS, rows, as_json=as_json)


def _print_moved(moved: dict[MessageQueue, int], *, as_json: bool) -> None:
    rows = [(queue.broker_name, queue.queue_id, offset) for queue, offset in moved.items()]
    print_table(_MOVED_COLUMNS, rows, as_json=as_json)
