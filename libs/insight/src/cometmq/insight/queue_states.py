# SPDX-License-Identifier: Apache-2.0
"""The progress of groups in their queues, and committed offsets that outlived their topic.

A broker keeps the offsets of groups when a topic is deleted, as RocketMQ does. If the topic is
created again, the groups continue from these offsets and skip the messages before them.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final

import msgspec

from cometmq.client.admin import AdminClient, QueueLag
from cometmq.client.admin.broker import BrokerAdmin
from cometmq.client.admin.offsets import lags_in, stats_without_offsets
from cometmq.client.clock import wall_ms
from cometmq.insight.consumer_groups import NOT_KEPT, kept_s
from cometmq.insight.model import Unknown
from cometmq.insight.words import command, counted, listed
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.errors import (
    NO_ANSWER,
    CometError,
    CommandError,
    NoPermission,
    ServerError,
    TopicNotExist,
)
from cometmq.remoting.names import PARKED_TOPIC, SCHEDULE_TOPIC
from cometmq.remoting.progress import lost, position, unread

NOT_READ: Final = Unknown("the oldest unread message of a queue cannot be read")


class QueueState(msgspec.Struct, frozen=True):
    """The progress of a group in one queue."""

    queue: MessageQueue
    min_offset: int
    committed: int
    max_offset: int
    lag: int
    behind_s: float | None
    """Age in seconds of the first message not consumed; 0 if there is none, None if it cannot be
    read.
    """
    unread_since_ms: int | None = None
    """When the first message not consumed was stored; None if there is none, or if it cannot be
    read.
    """

    @property
    def is_beyond_end(self) -> bool:
        """Return whether the committed offset is beyond the end of the queue. The broker moves the
        group to the end at its next pull.
        """
        return self.committed > self.max_offset

    @property
    def skip_count(self) -> int:
        """Return the number of messages that the group will skip."""
        return self.max_offset - self.min_offset if self.is_beyond_end else 0

    @property
    def lost_count(self) -> int:
        """Return how many messages were deleted before the group read them; a group without a
        stored offset has lost none.
        """
        return lost(self.committed, self.min_offset)


def unread_since_ms(states: Iterable[QueueState]) -> int | None:
    """Return when the oldest unread message was stored, or None if nothing is unread or known."""
    stored = [it.unread_since_ms for it in states if it.unread_since_ms is not None]
    return min(stored, default=None)


def waiting_in(states: Iterable[QueueState]) -> dict[MessageQueue, int]:
    """Return the number of messages that a group has not consumed, by queue."""
    return {state.queue: state.lag for state in states}


async def queue_states(
    admin: AdminClient, group: str, topic: str | None = None
) -> list[QueueState]:
    """Return the progress of a group in each of its queues.

    A queue without an offset counts as not consumed. `admin` records the brokers that are left out.
    """
    if topic is not None and group not in await admin.consuming_groups(topic):
        return []  # for a given topic, brokers report 0 for every group
    stats = await admin.consume_stats(group, topic, is_missing_ok=True)
    lags = lags_in(stats)
    masters = await admin.masters()
    if topic is None:
        lags += lags_in(await stats_without_offsets(admin, group, stats.offset_table))
    for name in sorted({found.queue.broker_name for found in lags} - masters.keys()):
        admin.without_master(name, ())  # it was removed meanwhile
    known = [found for found in lags if found.queue.broker_name in masters]
    states: list[QueueState] = []
    for found, outcome in zip(known, await _outcomes(masters, known), strict=True):
        if isinstance(outcome, NO_ANSWER):
            admin.unreachable(masters[found.queue.broker_name], outcome)
        elif isinstance(outcome, CometError):
            raise outcome
        else:
            states.append(outcome)
    return states


async def _outcomes(
    masters: Mapping[str, BrokerAdmin], lags: Iterable[QueueLag]
) -> list[QueueState | CometError]:
    async def outcome(found: QueueLag) -> QueueState | CometError:
        try:
            return await _queue_state(masters[found.queue.broker_name], found)
        except CometError as error:
            return error

    async with asyncio.TaskGroup() as tasks:
        asked = [tasks.create_task(outcome(found)) for found in lags]
    return [task.result() for task in asked]


async def topics_by_group(admin: AdminClient) -> dict[str, set[str]]:
    """Return the topics in which each group has offsets, with one request to each master."""
    found: dict[str, set[str]] = {}
    masters = (await admin.masters()).values()
    for _, table in await admin.ask_each(masters, lambda it: it.consumer_offsets()):
        for key in table.offset_table:
            topic, _, group = key.partition("@")
            found.setdefault(group, set()).add(topic)
    return found


async def _queue_state(master: BrokerAdmin, found: QueueLag) -> QueueState:
    queue, committed, end = found.queue, found.committed_offset, found.max_offset
    min_offset = await master.min_offset(queue.topic, queue.queue_id)
    if committed > end:  # Java brokers read the end first: the group may have committed meanwhile
        end = await master.max_offset(queue.topic, queue.queue_id)
    stored_ms: int | None = None
    if unread(committed, min_offset, end):
        stored_ms = await store_time_of(master, queue, position(committed, min_offset))
    return state_of(queue, min_offset, committed, end, stored_ms)


def state_of(
    queue: MessageQueue, min_offset: int, committed: int, end: int, stored_ms: int | None
) -> QueueState:
    """Return the progress in a queue; `stored_ms` is when its first unread message was stored."""
    lag = unread(committed, min_offset, end)
    behind_s: float | None = 0.0
    if lag:
        behind_s = None if stored_ms is None else max(0, wall_ms() - stored_ms) / 1000
    return QueueState(queue, min_offset, committed, end, lag, behind_s, stored_ms)


async def store_time_of(master: BrokerAdmin, queue: MessageQueue, offset: int) -> int | None:
    """Return the store time of the message at an offset, or None if it cannot be read."""
    try:
        pulled = await master.pull(queue.topic, queue.queue_id, offset, count_max=1)
    except TopicNotExist:
        return None  # deleted meanwhile
    except (NoPermission, ServerError):
        return await _time_in_log(master, queue, offset)
    return pulled.messages[0].store_timestamp if pulled.messages else None


async def _time_in_log(master: BrokerAdmin, queue: MessageQueue, offset: int) -> int | None:
    """Return the store time of a message that no pull can read: the topic has no permission to read
    at the moment, or no longer has the queue.
    """
    try:
        entries = await master.queue_entries(queue.topic, queue.queue_id, offset, count=1)
        if not entries.queue_data:
            return None
        place = entries.queue_data[0].physic_offset
        return (await master.message_at(place, topic=queue.topic)).store_timestamp
    except CommandError:  # deleted meanwhile, or the account may not ask for it
        return None


def never_read_notes(groups: Sequence[str], topic: str | None = None) -> list[str]:
    """Return a line about groups without an offset in the topic, or in any: their lag may be 0
    although they have read nothing.
    """
    if not groups:
        return []
    verb, it = ("has", "it") if len(groups) == 1 else ("have", "them")
    who, read = counted(len(groups), "group"), "anything" if topic is None else topic
    return [f"{who} {verb} never read {read}, so brokers have no offset of {it}: {listed(groups)}"]


# -- messages that a group misses -------------------------------------------------------------


def missed_notes(group: str, states: Sequence[QueueState]) -> list[str]:
    """Return a line for each topic in which the group has lost messages or will skip some."""
    lost = Counter[str]()
    for state in states:
        lost[state.queue.topic] += state.lost_count
    notes = [
        f"{group} in {topic}: {counted(count, 'message')} were deleted before the group read them,"
        " because their retention ended or the disk was full"
        for topic, count in sorted(lost.items())
        if count
    ]
    for topic in sorted({state.queue.topic for state in states if state.is_beyond_end}):
        found = [it for it in states if it.is_beyond_end and it.queue.topic == topic]
        skips = sum(it.skip_count for it in found)
        skipped = "the messages sent until it consumes"
        if skips:
            skipped = f"the {counted(skips, 'message')} there, and those sent until it consumes"
        notes.append(
            f"{group} in {topic}: the committed offset is beyond the end of"
            f" {counted(len(found), 'queue')}, as after the topic was deleted and created again;"
            f" the group will skip {skipped}; to read them: {_remedy(group, topic)}"
        )
    return notes


async def offsets_by_group(
    admin: AdminClient, masters: Iterable[BrokerAdmin], topic: str
) -> dict[str, int]:
    """Return the highest committed offset in a topic of each group that has one above 0; the topic
    may have been deleted.
    """
    found: dict[str, int] = {}
    for _, table in await admin.ask_each(masters, lambda it: it.consumer_offsets()):
        for key, offsets in table.offset_table.items():
            name, _, group = key.partition("@")
            highest = max(offsets.values(), default=0)
            if name == topic and highest > 0:
                found[group] = max(highest, found.get(group, 0))
    return dict(sorted(found.items()))


def kept_note(topic: str, groups: Sequence[str]) -> str:
    """Return the warning that brokers keep the offsets of these groups when the topic is
    deleted.
    """
    is_one = len(groups) == 1
    return (
        f"the offsets of {', '.join(groups)} in {topic} stay, so"
        f" {f'{groups[0]} skips' if is_one else 'these groups skip'} the first messages if the"
        f" topic is created again; to prevent that, stop the members and delete it with"
        f" --reset-groups, or later: {_remedy(_one_of(groups), topic)}"
    )


async def waiting_counts(masters: Iterable[BrokerAdmin]) -> dict[str, int]:
    """Return how many delayed messages, of all topics, wait on each broker that has any."""
    found: dict[str, int] = {}
    for master in masters:
        with suppress(CometError):  # the figures only serve a note
            table = await master.delay_offsets()
            stats = (await master.topic_stats(SCHEDULE_TOPIC)).offset_table
            count = sum(
                table.waiting(queue.queue_id + 1, it.min_offset, it.max_offset)
                for queue, it in stats.items()
            )
            if count > 0:
                found[master.name] = count
    return found


async def missing_level_notes(admin: AdminClient) -> list[str]:
    """Return a line for each broker on which delayed messages wait in levels that it lacks."""
    masters = (await admin.masters()).values()
    return [note for _, note in await admin.ask_each(masters, _missing_levels) if note]


async def _missing_levels(master: BrokerAdmin) -> str:
    try:
        last = len((await master.config())["messageDelayLevel"].split())
        table = await master.delay_offsets()
        stats = (await master.topic_stats(SCHEDULE_TOPIC)).offset_table
    except (CometError, KeyError):  # the figures only serve a note
        return ""
    counts = {
        queue.queue_id + 1: table.waiting(queue.queue_id + 1, it.min_offset, it.max_offset)
        for queue, it in stats.items()
        if queue.queue_id >= last
    }
    levels = [str(level) for level, count in sorted(counts.items()) if count]
    if not levels:
        return ""
    total = sum(counts.values())
    return (
        f"{master.name}: {counted(total, 'delayed message')} in level {', '.join(levels)}"
        f" {'wait' if total > 1 else 'waits'} until messageDelayLevel, which has"
        f" {counted(last, 'level')}, has the level again"
    )


def waiting_note(topic: str, counts: Mapping[str, int]) -> str:
    """Return the warning that delayed messages of a deleted topic will be parked."""
    where = ", ".join(f"{counted(count, 'message')} on {name}" for name, count in counts.items())
    return (
        f"delayed messages are waiting ({where}, of all topics): those for {topic} will be in"
        f" {PARKED_TOPIC} when they are due, unless {topic} has been created again"
    )


def outlived_note(topic: str, offsets: dict[str, int]) -> str:
    """Return the warning that groups have offsets from an earlier topic of this name."""
    held = ", ".join(f"{group} (up to {offset:,})" for group, offset in offsets.items())
    return (
        f"groups have offsets from an earlier topic {topic}, and will skip the messages before"
        f" them: {held}; to read all: {_remedy(_one_of(list(offsets)), topic)}"
    )


def _one_of(groups: Sequence[str]) -> str:
    return groups[0] if len(groups) == 1 else "GROUP"


def _remedy(group: str, topic: str) -> str:
    return command("group reset", group, topic, options=("--to", "first"))


async def time_to_loss(
    admin: AdminClient, states: Sequence[QueueState], kept: dict[str, float | None] | None = None
) -> float | Unknown | None:
    """Return the seconds until the oldest unread message may be deleted because of its age; None if
    nothing is unread.

    `kept` caches how long brokers keep messages; pass the same mapping for several groups to save
    requests.
    """
    left: list[float] = []
    kept = {} if kept is None else kept
    for state in states:
        if not state.lag:
            continue
        if state.behind_s is None:
            return NOT_READ
        name = state.queue.broker_name
        if name not in kept:
            kept[name] = await _kept_s(admin, name)
        if (lasts_s := kept[name]) is None:
            return NOT_KEPT
        left.append(max(0.0, lasts_s - state.behind_s))
    return min(left, default=None)


async def _kept_s(admin: AdminClient, name: str) -> float | None:
    masters = await admin.masters()
    try:
        return kept_s(await masters[name].config())
    except (CometError, KeyError):
        return None
