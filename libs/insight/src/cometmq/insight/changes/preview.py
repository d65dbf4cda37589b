# SPDX-License-Identifier: Apache-2.0
"""Previews, which only read: how many messages a reset of a group would redeliver or skip."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Protocol

import msgspec

from cometmq.client.admin import END, AdminClient
from cometmq.client.admin.broker import BrokerAdmin
from cometmq.client.admin.groups import NEW_GROUP, check_known
from cometmq.client.admin.offsets import unknown_offsets
from cometmq.client.errors import InvalidArgument
from cometmq.insight.queue_states import store_time_of
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.bodies.stats import TopicOffset
from cometmq.remoting.errors import CometError
from cometmq.remoting.progress import position

IN_FLIGHT_MAX: Final = 16
MEMBERS_MOVE: Final = (
    "each member keeps its own offsets (BROADCASTING): connected ones continue there",
    "members that are not connected stay where they are",
)
"""The effect of a reset on a broadcasting group."""


class QueueMove(msgspec.Struct, frozen=True):
    """What the change does in one queue."""

    queue: MessageQueue
    committed: int | None
    """The stored offset; None if there is none, so that the group would begin at the first
    message.
    """
    wanted: int
    """The offset after the change."""
    redelivered: int | None
    """Messages that the group has read and will get again; None if its members keep their own
    offsets (BROADCASTING).
    """
    skipped: int | None
    """Messages that the group has not read and will not get; None as in `redelivered`."""
    from_ms: int | None
    """When the first of the redelivered or skipped messages was stored; None if there are none, or
    if it cannot be read.
    """
    to_ms: int | None
    """When the last of these messages was stored."""


class Preview(msgspec.Struct, frozen=True):
    """What the change does in the queues of a topic."""

    group: str
    topic: str
    moves: Sequence[QueueMove]
    missing_brokers: Sequence[str] = ()
    """The brokers of the topic that have no master now; the change would be refused."""

    @property
    def redelivered(self) -> int | None:
        """Messages that the group has read and will get again."""
        return total(it.redelivered for it in self.moves)

    @property
    def skipped(self) -> int | None:
        """Messages that the group has not read and will not get."""
        return total(it.skipped for it in self.moves)


def total(counts: Iterable[int | None]) -> int | None:
    """Return a sum; None if one of the numbers is unknown."""
    found = list(counts)
    known = [it for it in found if it is not None]
    return sum(known) if len(known) == len(found) else None


async def preview_reset(
    admin: AdminClient,
    group: str,
    topic: str,
    timestamp_ms: int,
    *,
    is_forced: bool = True,
    is_new_group: bool = False,
) -> Preview:
    """Return what `AdminClient.reset_offsets` with these arguments would do.

    The committed offsets are those that the brokers know; connected members may have read more.

    Raise InvalidArgument if the members of a broadcasting group should not move forward, because
    brokers do not know where they are.
    """

    async def wanted(broker: BrokerAdmin, queue: MessageQueue, bounds: TopicOffset) -> int:
        if timestamp_ms == END:
            return bounds.max_offset
        return await broker.search_offset(queue.topic, queue.queue_id, timestamp_ms)

    is_broadcasting = await admin.is_broadcasting(group)
    if is_broadcasting and not is_forced:
        raise unknown_offsets(group)
    found = await _preview(
        admin, group, topic, wanted, is_forced=is_forced, is_new_group=is_new_group
    )
    if not is_broadcasting:
        return found
    unknown = {"committed": None, "redelivered": None, "skipped": None}
    nothing = {**unknown, "from_ms": None, "to_ms": None}
    moves = [msgspec.structs.replace(it, **nothing) for it in found.moves]
    return msgspec.structs.replace(found, moves=moves)


async def preview_offsets(
    admin: AdminClient,
    group: str,
    topic: str,
    offsets: Mapping[MessageQueue, int],
    *,
    is_new_group: bool = False,
) -> Preview:
    """Return what committing these offsets would do; other queues are left unchanged.

    Raise InvalidArgument for an offset outside its queue, or a queue that the topic lacks.
    """
    left = dict(offsets)

    async def wanted(_broker: BrokerAdmin, queue: MessageQueue, bounds: TopicOffset) -> int | None:
        offset = left.pop(queue, None)
        if offset is not None and not bounds.min_offset <= offset <= bounds.max_offset:
            raise InvalidArgument(
                f"the offset {offset} is outside queue {queue.queue_id} of {topic} at"
                f" {queue.broker_name}: give one from {bounds.min_offset} to {bounds.max_offset}"
            )
        return offset

    found = await _preview(admin, group, topic, wanted, is_new_group=is_new_group)
    for queue in left:
        raise InvalidArgument(
            f"{topic} has no queue {queue.queue_id} at {queue.broker_name}: nothing would change"
            " there"
        )
    return found


async def preview_clone(
    admin: AdminClient, group: str, topic: str, offsets: Mapping[MessageQueue, int]
) -> Preview:
    """Return what copying these offsets of another group would do.

    An offset outside its queue counts as the nearest one inside, at which consumers begin.
    """

    async def wanted(_broker: BrokerAdmin, queue: MessageQueue, bounds: TopicOffset) -> int | None:
        offset = offsets.get(queue)
        return None if offset is None else min(max(offset, bounds.min_offset), bounds.max_offset)

    return await _preview(admin, group, topic, wanted)


class _Wanted(Protocol):
    async def __call__(
        self, broker: BrokerAdmin, queue: MessageQueue, bounds: TopicOffset, /
    ) -> int | None:
        """Return the offset after the change, or None for no change."""


async def _preview(
    admin: AdminClient,
    group: str,
    topic: str,
    wanted: _Wanted,
    *,
    is_forced: bool = True,
    is_new_group: bool = False,
) -> Preview:
    if not is_new_group:
        await check_known(admin, group, NEW_GROUP)
    masters = await admin.masters_of(topic)
    led = {it.name for it in masters}
    missing = {it.broker_name for it in (await admin.route(topic)).broker_datas} - led
    room = asyncio.Semaphore(IN_FLIGHT_MAX)

    async def move(
        broker: BrokerAdmin, queue: MessageQueue, bounds: TopicOffset, committed: int | None
    ) -> QueueMove | CometError | None:
        try:
            async with room:
                offset = await wanted(broker, queue, bounds)
                if offset is None:
                    return None
                return await _move(broker, queue, bounds, committed, offset, is_forced=is_forced)
        except CometError as error:
            return error

    moves: list[QueueMove] = []
    for broker in masters:
        table = (await broker.topic_stats(topic)).offset_table
        offsets = (await broker.consumer_offsets()).offset_table.get(f"{topic}@{group}", {})
        async with asyncio.TaskGroup() as tasks:
            asked = [
                tasks.create_task(move(broker, queue, bounds, offsets.get(queue.queue_id)))
                for queue, bounds in sorted(table.items())
            ]
        for outcome in (task.result() for task in asked):
            if isinstance(outcome, CometError):
                raise outcome
            moves += [] if outcome is None else [outcome]
    return Preview(group, topic, moves, sorted(missing))


async def _move(
    broker: BrokerAdmin,
    queue: MessageQueue,
    bounds: TopicOffset,
    committed: int | None,
    wanted: int,
    *,
    is_forced: bool,
) -> QueueMove:
    first, end = bounds.min_offset, bounds.max_offset
    now = min(position(committed, first), end)
    then = min(max(wanted, first), end)
    if then > now and not is_forced:
        wanted, then = now if committed is None else committed, now
    begin, stop = min(now, then), max(now, then)
    from_ms = to_ms = None
    if begin < stop:
        from_ms = await store_time_of(broker, queue, begin)
        to_ms = await store_time_of(broker, queue, stop - 1)
    return QueueMove(
        queue,
        committed,
        wanted,
        redelivered=max(0, now - then),
        skipped=max(0, then - now),
        from_ms=from_ms,
        to_ms=to_ms,
    )
