# SPDX-License-Identifier: Apache-2.0
"""mqadmin's consumerProgress."""

from typing import Annotated, Final

import typer

from cometmq.cli.connecting import DEFAULT_NAMESRV, ask
from cometmq.cli.lookup import known_group
from cometmq.cli.mqadmin.consumers import members_say
from cometmq.cli.mqadmin.frame import (
    Column,
    Family,
    Namesrv,
    Topic,
    TrueFalse,
    local_time,
    print_table,
    to_object,
)
from cometmq.cli.mqadmin.java_text import FORMS
from cometmq.cli.mqadmin.java_text import parsed_moment as moment
from cometmq.cli.output import AsJson, print_json
from cometmq.cli.say import say
from cometmq.client.admin import AdminClient, Rollback
from cometmq.client.admin.broker_consumers import END
from cometmq.client.errors import ClientError
from cometmq.insight.changes.groups import broadcasting_text
from cometmq.insight.times import shown
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.bodies.stats import ConsumeStats
from cometmq.remoting.errors import CometError, CommandError
from cometmq.remoting.names import RETRY_PREFIX, groups_with
from cometmq.remoting.progress import difference
from cometmq.remoting.versions import version_name

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


_PROGRESS_COLUMNS: Final = (
    Column("topic", "#Topic", "%-64.64s  "),
    Column("broker", "#Broker Name", "%-32.32s  "),
    Column("queue", "#QID", "%-4d  "),
    Column("broker_offset", "#Broker Offset", "%-20d  "),
    Column("consumer_offset", "#Consumer Offset", "%-20d  "),
    Column("diff", "#Diff", "%-20d  "),
    Column("last_time", "#LastTime", "%s", lambda moment: local_time(moment) or "N/A", shown),
)
_CLIENT_IP_COLUMN: Final = Column("client_ip", "#Client IP", "%-20s ", lambda ip: ip or "N/A")
_GROUP_COLUMNS: Final = (
    Column("group", "#Group", "%-64.64s  "),
    Column("count", "#Count", "%-6d  "),
    Column("version", "#Version", "%-24s "),
    Column("type", "#Type", "%-5s  "),
    Column("model", "#Model", "%-14s  "),
    Column("tps", "#TPS", "%-7d  "),
    Column("diff_total", "#Diff Total", "%d"),
)


@app.named("consumerProgress")
def consumer_progress(
    group: Annotated[
        str | None, typer.Option("-g", "--groupName", help="Consumer group; all by default.")
    ] = None,
    show_client_ip: Annotated[
        str, typer.Option("-s", "--showClientIP", help="If true, show the owner of each queue.")
    ] = "false",
    namesrv: Namesrv = DEFAULT_NAMESRV,
    *,
    as_json: AsJson = False,
) -> None:
    """Show the progress of a group by queue, or of all groups."""
    if group is None:
        rows = ask(namesrv, _all_progress)
        print_table(_GROUP_COLUMNS, rows, as_json=as_json)
        return
    with_ip = show_client_ip.lower() == "true"

    async def question(admin: AdminClient) -> tuple[ConsumeStats, dict[MessageQueue, str]]:
        stats = await admin.consume_stats(group, is_missing_ok=True)
        if not stats.offset_table:
            await known_group(admin, group)
            if await admin.is_broadcasting(group):
                raise ClientError(broadcasting_text(group))
            raise ClientError(f"the group {group} has consumed nothing yet")
        return stats, await _owners(admin, group) if with_ip else {}

    _print_progress(*ask(namesrv, question), with_ip=with_ip, as_json=as_json)


def _print_progress(
    stats: ConsumeStats, owners: dict[MessageQueue, str], *, with_ip: bool, as_json: bool
) -> None:
    owner_columns = (_CLIENT_IP_COLUMN,) if with_ip else ()
    columns = (*_PROGRESS_COLUMNS[:5], *owner_columns, *_PROGRESS_COLUMNS[5:])
    rows: list[list[object]] = []
    for queue, pair in sorted(stats.offset_table.items()):
        offsets = [pair.broker_offset, pair.consumer_offset]
        owner = [owners.get(queue, "")] if with_ip else []
        behind = difference(pair.consumer_offset, pair.broker_offset)
        place = [queue.topic, queue.broker_name, queue.queue_id]
        rows.append([*place, *offsets, *owner, behind, pair.last_timestamp])
    total = _behind(stats)
    if as_json:
        queues = [to_object(columns, row) for row in rows]
        print_json({"queues": queues, "consume_tps": stats.consume_tps, "diff_total": total})
        return
    print_table(columns, rows, as_json=False)
    say(f"\nConsume TPS: {stats.consume_tps:.2f}\nDiff Total: {total}")


def _behind(stats: ConsumeStats) -> int:
    pairs = stats.offset_table.values()
    return sum(difference(pair.consumer_offset, pair.broker_offset) for pair in pairs)


async def _owners(admin: AdminClient, group: str) -> dict[MessageQueue, str]:
    """Return the address of the member that owns each queue."""
    owners: dict[MessageQueue, str] = {}
    try:
        said = await members_say(admin, group, None, jstack=False)
    except CometError:
        return owners  # no member is connected, or none reports it
    for client_id, (_, info) in said.items():
        owners.update(dict.fromkeys(info.mq_table, client_id.partition("@")[0]))
    return owners


async def _all_progress(admin: AdminClient) -> list[list[object]]:
    """Return a row for each group with a retry topic: mqadmin finds groups by that topic."""
    rows: list[list[object]] = []
    for group in groups_with(RETRY_PREFIX, await admin.topics()):
        stats = await admin.consume_stats(group, is_missing_ok=True)
        facts = await _group_facts(admin, group)
        rows.append([group, *facts, int(stats.consume_tps), _behind(stats)])
    return rows


async def _group_facts(admin: AdminClient, group: str) -> list[object]:
    """Return the number of members, their lowest version, and how they consume."""
    try:
        found = await admin.consumer_connections(group)
    except CommandError:
        return [0, "OFFLINE", "", ""]
    is_push = found.consume_type == "CONSUME_PASSIVELY"
    version = min(member.version for member in found.connection_set)
    model = found.message_model if is_push else ""
    return [len(found.connection_set), version_name(version), "PUSH" if is_push else "PULL", model]
