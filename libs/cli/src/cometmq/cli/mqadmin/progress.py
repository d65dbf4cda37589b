# SPDX-License-Identifier: Apache-2.0
"""mqadmin's commands for the progress of groups."""

from typing import Annotated, Final

from cometmq.cli.lookup import known_group
from cometmq.cli.mqadmin.consumers import members_say
from cometmq.cli.mqadmin.frame import (
    Column,
    Family,
    Reply,
    Topic,
    TrueFalse,
    local_time,
    objects,
    table,
    text_of,
)
from cometmq.cli.mqadmin.java_text import FORMS
from cometmq.cli.mqadmin.java_text import parsed_moment as moment
from cometmq.cli.option_sets import opt
from cometmq.client.admin import AdminClient
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

Group = Annotated[str, opt("-g", "--group", "Name of the consumer group.")]
Force = Annotated[TrueFalse, opt("-f", "--force", "If false, never move a queue forward.")]
Timestamp = Annotated[str, opt("-s", "--timestamp", f"Time to move to: now (the end), {FORMS}.")]

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


@app.asks("resetOffsetByTime")
async def _reset_offset_by_time(
    admin: AdminClient,
    group: Group,
    topic: Topic,
    timestamp: Timestamp,
    force: Force = "true",
    *,
    _cplus: Annotated[
        bool, opt("-c", "--cplus", "Ignored: every client is notified in its own format.")
    ] = False,
) -> Reply:
    """Move a group to a point in time; its members do not need to restart."""
    at_ms = moment(timestamp)
    moved = await admin.reset_offsets(
        group, topic, at_ms, is_forced=force == "true", is_new_group=True
    )
    reply = _moved(moved)
    title = (
        f"rollback consumer offset by specified group[{group}], topic[{topic}], "
        f"force[{force}], timestamp(string)[{timestamp}], timestamp(long)[{at_ms}]"
    )
    return reply._replace(text=f"{title}\n{reply.text!s}")


@app.asks("skipAccumulatedMessage")
async def _skip_accumulated_message(
    admin: AdminClient, group: Group, topic: Topic, force: Force = "true"
) -> Reply:
    return _moved(
        await admin.reset_offsets(group, topic, END, is_forced=force == "true", is_new_group=True)
    )


@app.asks("resetOffsetByTimeOld")
async def _reset_offset_by_time_old(
    admin: AdminClient, group: Group, topic: Topic, timestamp: Timestamp, force: Force = "true"
) -> Reply:
    """Move the committed offsets of a group to a point in time; its members must restart."""
    at_ms = moment(timestamp)
    found = await admin.roll_back(group, topic, at_ms, is_forced=force == "true", is_new_group=True)
    rows = [
        (
            *(row.queue.broker_name, row.queue.queue_id, row.broker_offset),
            *(row.consumer_offset, row.timestamp_offset, row.rollback_offset),
        )
        for row in found
    ]
    title = (
        f"rollback consumer offset by specified consumerGroup[{group}], topic[{topic}], "
        f"force[{force}], timestamp(string)[{timestamp}], timestamp(long)[{at_ms}]"
    )
    return Reply(f"{title}\n{text_of(_ROLLBACK_COLUMNS, rows)}", objects(_ROLLBACK_COLUMNS, rows))


@app.asks("cloneGroupOffset")
async def _clone_group_offset(
    admin: AdminClient,
    source: Annotated[str, opt("-s", "--srcGroup", "Group to copy from.")],
    destination: Annotated[str, opt("-d", "--destGroup", "Group to copy to.")],
    topic: Topic,
    _offline: Annotated[
        str | None, opt("-o", "--offline", "Ignored; accepted for compatibility with mqadmin.")
    ] = None,
) -> Reply:
    moved = await admin.clone_offsets(source, destination, topic, is_new_group=True)
    return _moved(moved)._replace(
        text=f"clone group offset success. srcGroup[{source}], destGroup=[{destination}], "
        f"topic[{topic}]"
    )


@app.asks("getConsumerStatus")
async def _get_consumer_status(
    admin: AdminClient,
    group: Group,
    topic: Topic,
    client_id: Annotated[str | None, opt("-i", "--originClientId", "Only this member.")] = None,
) -> Reply:
    found = await admin.member_offsets(topic, group, client_id=client_id)
    rows = [
        (member, queue.broker_name, queue.queue_id, offset)
        for member, offsets in sorted(found.items())
        for queue, offset in sorted(offsets.items())
    ]
    title = (
        f"get consumer status from client. group={group}, topic={topic}, "
        f"originClientId={client_id or ''}"
    )
    return Reply(f"{title}\n{text_of(_STATUS_COLUMNS, rows)}", objects(_STATUS_COLUMNS, rows))


def _moved(moved: dict[MessageQueue, int]) -> Reply:
    return table(_MOVED_COLUMNS, [(it.broker_name, it.queue_id, at) for it, at in moved.items()])


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


@app.asks("consumerProgress")
async def _consumer_progress(
    admin: AdminClient,
    group: Annotated[
        str | None, opt("-g", "--groupName", "Consumer group; all by default.")
    ] = None,
    show_client_ip: Annotated[
        str, opt("-s", "--showClientIP", "If true, show the owner of each queue.")
    ] = "false",
) -> Reply:
    if group is None:
        return table(_GROUP_COLUMNS, await _all_progress(admin))
    stats = await admin.consume_stats(group, is_missing_ok=True)
    if not stats.offset_table:
        await known_group(admin, group)
        if await admin.is_broadcasting(group):
            raise ClientError(broadcasting_text(group))
        raise ClientError(f"the group {group} has consumed nothing yet")
    with_ip = show_client_ip.lower() == "true"
    owners = await _owners(admin, group) if with_ip else {}
    owner_columns = (_CLIENT_IP_COLUMN,) if with_ip else ()
    columns = (*_PROGRESS_COLUMNS[:5], *owner_columns, *_PROGRESS_COLUMNS[5:])
    rows: list[list[object]] = []
    for queue, pair in sorted(stats.offset_table.items()):
        owner = [owners.get(queue, "")] if with_ip else []
        behind = difference(pair.consumer_offset, pair.broker_offset)
        place = [queue.topic, queue.broker_name, queue.queue_id]
        offsets = [pair.broker_offset, pair.consumer_offset]
        rows.append([*place, *offsets, *owner, behind, pair.last_timestamp])
    total, tps = _behind(stats), stats.consume_tps
    return Reply(
        f"{text_of(columns, rows)}\n\nConsume TPS: {tps:.2f}\nDiff Total: {total}",
        {"queues": objects(columns, rows), "consume_tps": tps, "diff_total": total},
    )


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
