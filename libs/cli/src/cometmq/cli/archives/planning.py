# SPDX-License-Identifier: Apache-2.0
"""Plans a backup: asks brokers for the bounds of queues, and for the offsets of groups."""

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final
from uuid import uuid4

from cometmq.cli.admin import CommandAdmin
from cometmq.cli.archives.form import GroupOffset, Plan, QueueSpan, TopicPlan
from cometmq.cli.consuming.source import queues_of, readable
from cometmq.cli.output import print_notes
from cometmq.cli.verbs.topics import kind_of
from cometmq.client.admin.broker import BrokerAdmin
from cometmq.client.clock import wall_ms
from cometmq.client.errors import ClientError, InvalidArgument, broker_missing
from cometmq.insight.times import shown
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.runtime.version import VERSION

_QUEUE: Final = re.compile(r"(\S+?):(\d{1,5})(?:=(\d{1,19})?(?::(\d{1,19}))?)?")
IN_FLIGHT_MAX: Final = 8

Ranges = Mapping[tuple[str, int], tuple[int | None, int | None]]
"""The chosen queues by broker and number, each with its first offset and its end, if given."""


def parse_queues(texts: Iterable[str]) -> Ranges:
    """Return the queues of `BROKER:NUMBER`, or of `BROKER:NUMBER=FIRST:END`."""
    found: dict[tuple[str, int], tuple[int | None, int | None]] = {}
    for text in texts:
        match = _QUEUE.fullmatch(text)
        if match is None:
            raise InvalidArgument(
                f"--queue {text}: must be BROKER:NUMBER, or BROKER:NUMBER=FIRST:END with offsets"
            )
        first, end = (None if it is None else int(it) for it in match.group(3, 4))
        if first is not None and end is not None and first >= end:
            raise InvalidArgument(f"--queue {text}: the offsets end before they begin")
        found[match[1], int(match[2])] = first, end
    return found


async def planned(  # one parameter per option
    admin: CommandAdmin,
    topics: Sequence[str],
    ranges: Ranges,
    groups: Sequence[str] | None,
    *,
    options: Mapping[str, Sequence[str]],
    since_ms: int | None,
    until_ms: int | None,
) -> Plan:
    """Return the plan of a backup of topics, or of all topics if none is named.

    `groups` are those whose offsets are saved; None means none, and an empty sequence all. Raise
    ClientError if a broker does not answer, because the backup would lack its messages.
    """
    names = topics or await _own_topics(admin)
    if not names:
        raise ClientError("the cluster has no topics of its own")
    room = asyncio.Semaphore(IN_FLIGHT_MAX)

    async def plan_of(topic: str) -> TopicPlan:
        async with room:
            return await _topic(admin, topic, ranges, since_ms, until_ms)

    async with asyncio.TaskGroup() as tasks:
        asked = [tasks.create_task(plan_of(it)) for it in dict.fromkeys(names)]
    plans = [it.result() for it in asked]
    slaves = sorted(admin.unanswered.keys() & {one.broker for it in plans for one in it.queues})
    print_notes([f"messages that only the master of {it} has are left out" for it in slaves])
    return Plan(
        id=uuid4().hex,
        begun=shown(wall_ms()) or "",
        program=f"cometmq {VERSION}",
        namesrv=";".join(admin.namesrv.addresses),
        topics=plans,
        options=options,
        since_ms=since_ms,
        until_ms=until_ms,
        offsets=[] if groups is None else await _offsets(admin, plans, groups),
    )


async def _own_topics(admin: CommandAdmin) -> list[str]:
    """Return the topics of a cluster, except those that servers create for themselves and for
    groups.
    """
    reserved = {*await admin.masters(), *(await admin.cluster()).cluster_addr_table}
    return [it for it in await admin.topics() if it not in reserved and kind_of(it) == "messages"]


async def _topic(
    admin: CommandAdmin, topic: str, ranges: Ranges, since_ms: int | None, until_ms: int | None
) -> TopicPlan:
    queues = await queues_of(admin, topic)
    known = {(it.broker_name, it.queue_id) for it in queues}
    for name, number in ranges.keys() - known:
        raise ClientError(f"the topic {topic} has no queue {name}:{number}")
    wanted = [it for it in queues if not ranges or (it.broker_name, it.queue_id) in ranges]
    brokers = await readable(admin, topic)
    for name in {it.broker_name for it in wanted} - brokers.keys():
        raise broker_missing(name)

    async def spans(broker: BrokerAdmin) -> list[QueueSpan]:
        return [
            await _span(broker, queue, ranges, since_ms, until_ms)
            for queue in wanted
            if queue.broker_name == broker.name
        ]

    answers = await admin.ask_all(brokers.values(), spans)
    data = (await admin.route(topic)).queue_datas
    return TopicPlan(
        name=topic,
        queues=sorted(
            (span for _, found in answers for span in found), key=lambda it: (it.broker, it.queue)
        ),
        queue_count=max(max(it.read_queue_nums, it.write_queue_nums) for it in data),
    )


async def _span(
    broker: BrokerAdmin,
    queue: MessageQueue,
    ranges: Ranges,
    since_ms: int | None,
    until_ms: int | None,
) -> QueueSpan:
    place = (queue.topic, queue.queue_id)
    least, end = await broker.min_offset(*place), await broker.max_offset(*place)
    first, wanted_end = ranges.get((broker.name, queue.queue_id), (None, None))
    if since_ms is not None:
        least = max(least, await broker.search_offset(*place, since_ms))
    if until_ms is not None:
        end = min(end, await broker.last_offset_until(*place, until_ms) + 1)
    least, end = max(least, first or 0), min(end, end if wanted_end is None else wanted_end)
    return QueueSpan(broker.name, queue.queue_id, min(least, end), end)


async def _offsets(
    admin: CommandAdmin, plans: Sequence[TopicPlan], groups: Sequence[str]
) -> list[GroupOffset]:
    """Return the offsets that groups have in the queues of the plans."""
    queues = {(it.name, one.broker, one.queue) for it in plans for one in it.queues}

    async def ask(broker: BrokerAdmin) -> list[GroupOffset]:
        table = (await broker.consumer_offsets()).offset_table
        found = [
            GroupOffset(owner, topic, broker.name, queue, offset)
            for key, offsets in table.items()
            for topic, _, owner in [key.partition("@")]
            if not groups or owner in groups
            for queue, offset in offsets.items()
        ]
        return [it for it in found if it.key in queues]

    answers = await admin.ask_all((await admin.masters_to_change()).values(), ask)
    rows = sorted((it for _, found in answers for it in found), key=lambda it: (it.group, *it.key))
    for group in groups:
        if not any(it.group == group for it in rows):
            raise ClientError(f"the consumer group {group} has no offsets in these topics")
    return rows
