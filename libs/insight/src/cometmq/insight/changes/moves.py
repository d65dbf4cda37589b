# SPDX-License-Identifier: Apache-2.0
"""Changes of the offsets of consumer groups: reset them, or copy those of another group."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any, Final

from cometmq.client.admin import END, AdminClient
from cometmq.client.admin.broker import BrokerAdmin
from cometmq.client.clock import wall_ms
from cometmq.client.errors import ClientError, InvalidArgument, NoRoute
from cometmq.insight import times
from cometmq.insight.changes.change import (
    NAME,
    Cell,
    Change,
    Consequence,
    Done,
    Group,
    Only,
    Plan,
    Topic,
    arg,
    bad,
)
from cometmq.insight.changes.deletions import chosen_queues
from cometmq.insight.changes.groups import broadcasting_text, known_group
from cometmq.insight.changes.preview import (
    MEMBERS_MOVE,
    Preview,
    QueueMove,
    preview_clone,
    preview_offsets,
    preview_reset,
    total,
)
from cometmq.insight.changes.topics import check_exists
from cometmq.insight.members import members_of
from cometmq.insight.queue_states import topics_by_group
from cometmq.insight.words import command, counted, listed
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.bodies.topic_config import SubscriptionGroupConfig
from cometmq.remoting.names import retry_topic

PLACES: Final = {"first": 0, "last": END}
QUEUES_SHOWN: Final = 200
"""The most queues whose offsets a plan names."""


def totals(moves: Iterable[QueueMove]) -> dict[str, Cell]:
    """Return how many queues move, and how many messages are read again and skipped, None if it is
    unknown.
    """
    rows = list(moves)
    again, skipped = total(it.redelivered for it in rows), total(it.skipped for it in rows)
    return {"queues": len(rows), "read_again": again, "skipped": skipped}


async def check_brokers(admin: AdminClient, topic: str) -> None:
    """Raise CometError if a broker of a topic does not answer, before anything is changed."""
    with suppress(NoRoute):  # reported after a wrong group
        await admin.ask_all(await admin.masters_of(topic), lambda it: it.groups())


async def check_without_members(
    admin: AdminClient, group: str, config: SubscriptionGroupConfig
) -> None:
    """Raise ClientError if a group has members, which would commit their own offsets again."""
    if count := (await members_of(admin, group, config)).count:
        raise ClientError(
            f"the consumer group {group} has {counted(count, 'connected member')}, which would"
            f" commit their own offsets again: stop them first"
            f" ({command('group describe', group)})"
        )


async def offsets_of(
    admin: AdminClient, group: str, topics: Collection[str]
) -> dict[MessageQueue, int]:
    """Return the committed offsets of a group, in all topics or in some."""

    async def ask(broker: BrokerAdmin) -> dict[MessageQueue, int]:
        table = (await broker.consumer_offsets()).offset_table
        return {
            MessageQueue(topic, broker.name, queue_id): offset
            for key, queues in table.items()
            for topic, _, owner in [key.partition("@")]
            if owner == group and (not topics or topic in topics)
            for queue_id, offset in queues.items()
        }

    answers = await admin.ask_all((await admin.masters_to_change()).values(), ask)
    return dict(sorted(pair for _, found in answers for pair in found.items()))


async def _plan_of(admin: AdminClient, where: str, found: Preview, perform: Any) -> Plan:
    group, topic = found.group, found.topic
    await admin.masters_to_change_of(topic)  # raises if a broker has no master
    again, skipped = found.redelivered, found.skipped
    shown = {f"{it.queue.broker_name}:{it.queue.queue_id}": it for it in found.moves}
    consequences = [Consequence("Connected members continue there within a few seconds.")]
    if skipped:
        text = f"{counted(skipped, 'message')} that the group has not read"
        consequences.insert(0, bad(f"{text} {_are(skipped)} skipped."))
    if again:
        text = f"{counted(again, 'message')} {_are(again)} delivered again."
        consequences.insert(0, bad(text))
    if again == skipped == 0:
        text = "Nothing is delivered again, and nothing is skipped."
        consequences.insert(0, Consequence(text))
    is_new = topic not in (await topics_by_group(admin)).get(group, ())
    notes = [f"{group} has no offsets in {topic} yet"] if is_new else []
    first = list(shown.items())[:QUEUES_SHOWN]
    return Plan(
        f"move the consumer group {group} in {topic} to {where}",
        group,
        {place: it.committed for place, it in first},
        {place: it.wanted for place, it in first},
        perform,
        consequences,
        [*notes, *(MEMBERS_MOVE if again is None or skipped is None else ())],
        f"no master answers at {listed(found.missing_brokers)}" if found.missing_brokers else "",
        at=sorted({it.queue.broker_name for it in found.moves}),
        preview=totals(found.moves),
        compared=list(shown),  # offsets move while the group reads
    )


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _moved(group: str, where: str, moved: Mapping[MessageQueue, int]) -> Done:
    rows = [
        {"broker": it.broker_name, "queue": it.queue_id, "offset": to} for it, to in moved.items()
    ]
    text = f"The group {group} continues at {where} in {counted(len(moved), 'queue')}."
    return Done(text, rows)


class ResetGroup(Change, frozen=True, kw_only=True):
    """Move a group to new offsets, whether or not it is connected; asks for confirmation.

    A time selects the first message stored at that time in each queue, or else the nearest one, so
    one older message per queue may be read again. --queue and --offset require a group without
    members.

    \b
    EXAMPLE
      cometmq group reset billing orders --to 90m --dry-run
    """

    name = "group.reset"
    needs = "operator"
    either = ("to", "offset")

    group: Group
    topic: Topic
    to: Annotated[
        str | None,
        arg("first, last, a time (2026-11-20T10:00Z) or an age (90m).", "Continue at"),
    ] = None
    queue: Annotated[
        str | None,
        arg("Move only this queue, BROKER:NUMBER, to --offset instead of --to.",
            only=Only.COMMANDS),
    ] = None  # fmt: skip
    offset: Annotated[int | None, arg("New offset of --queue.", only=Only.COMMANDS, ge=0)] = None
    backwards: Annotated[bool, arg("Never move a queue forward.", "Never move a queue forward")] = (
        False
    )

    @classmethod
    async def suggested(
        cls, admin: AdminClient, given: Mapping[str, str]
    ) -> Mapping[str, str | Sequence[str]]:
        """Return the topics of the group; its retry topic, rarely meant, is the last."""
        group = given["group"]
        online = await members_of(admin, group, await known_group(admin, group))
        topics = {*(await topics_by_group(admin)).get(group, ()), *online.topics}
        return {"topic": sorted(topics, key=lambda it: (it == retry_topic(group), it))}

    async def _plan(self, admin: AdminClient) -> Plan:
        group, topic = self.group, self.topic
        is_one = self.queue is not None and self.offset is not None
        if is_one == (self.to is not None) or (self.queue is not None) != is_one:
            raise InvalidArgument("--queue and --offset belong together, without --to")
        at_ms = 0 if self.to is None else _at_ms(self.to)
        await check_brokers(admin, topic)
        config = await known_group(admin, group)
        if is_one:
            return await self._plan_of_queue(admin, config)
        is_forced = not self.backwards
        found = await preview_reset(admin, group, topic, at_ms, is_forced=is_forced)
        where = {0: "the first message", END: "the end"}.get(at_ms) or f"{times.shown(at_ms)}"

        async def perform(admin: AdminClient) -> Done:
            moved = await admin.reset_offsets(group, topic, at_ms, is_forced=is_forced)
            return _moved(group, where, moved)

        return await _plan_of(admin, where, found, perform)

    async def _plan_of_queue(self, admin: AdminClient, config: SubscriptionGroupConfig) -> Plan:
        """Plan to move a group in one queue; it must have no members, because they would overwrite
        the offset.
        """
        group, topic, offset = self.group, self.topic, self.offset or 0
        await check_without_members(admin, group, config)
        (queue,) = chosen_queues([*await admin.topic_stats(topic)], topic, self.queue)
        found = await preview_offsets(admin, group, topic, {queue: offset})

        async def perform(admin: AdminClient) -> Done:
            masters = await admin.masters_to_change(None, [queue.broker_name])
            await admin.change_each(
                masters.values(),
                lambda it: it.commit_offset(group, topic, queue.queue_id, offset),
                f"move the group {group} in {topic}",
            )
            return _moved(group, str(offset), {queue: offset})

        return await _plan_of(admin, str(offset), found, perform)


def _at_ms(to: str) -> int:
    now_ms = wall_ms()
    at_ms = PLACES[to] if to in PLACES else times.parsed(to, now_ms=now_ms, words=PLACES)
    if at_ms > now_ms:
        raise InvalidArgument(
            f"{to} is in the future: it is {times.shown(now_ms)} now; for the end of each queue,"
            " give --to last"
        )
    return at_ms


class CloneGroup(Change, frozen=True, kw_only=True):
    """Copy the offsets of a group in a topic to another group; asks for confirmation.

    \b
    EXAMPLE
      cometmq group clone billing billing-2 orders
    """

    name = "group.clone"
    has_form = False

    source: Annotated[str, arg("Group to copy from.", **NAME)]
    destination: Annotated[str, arg("Group to copy to.", **NAME)]
    topic: Annotated[str, arg("Topic that both groups consume.", **NAME)]

    async def _plan(self, admin: AdminClient) -> Plan:
        source, group, topic = self.source, self.destination, self.topic
        await check_brokers(admin, topic)
        await known_group(admin, source)
        await known_group(admin, group, other_than=source)
        await check_exists(admin, topic)
        if topic not in (await topics_by_group(admin)).get(source, ()):
            raise ClientError(f"the consumer group {source} has no offsets in {topic}")
        if await admin.is_broadcasting(group):
            raise ClientError(f"{broadcasting_text(group)}: nothing was copied")
        offsets = await offsets_of(admin, source, [topic])
        found = await preview_clone(admin, group, topic, offsets)

        async def perform(admin: AdminClient) -> Done:
            moved = await admin.clone_offsets(source, group, topic)
            return _moved(group, f"the offsets of {source}", moved)

        return await _plan_of(admin, f"the offsets of {source}", found, perform)


CHANGES: Final = (ResetGroup, CloneGroup)
