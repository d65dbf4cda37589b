# SPDX-License-Identifier: Apache-2.0
"""Changes that delete: a topic, or the messages at the beginning of its queues."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Final

from cometmq.client.admin import AdminClient
from cometmq.client.admin.broker import BrokerAdmin
from cometmq.client.admin.groups import check_disconnected
from cometmq.client.admin.removals import Before, Trim, carry_out, plan_trim
from cometmq.client.clock import wall_ms
from cometmq.client.errors import ClientError, InvalidArgument
from cometmq.insight import times
from cometmq.insight.changes.change import (
    Change,
    Consequence,
    Done,
    Only,
    OnlyCluster,
    Plan,
    Risk,
    Topic,
    arg,
    bad,
    configs_at,
    warn,
)
from cometmq.insight.changes.topics import check_exists, state_of
from cometmq.insight.queue_states import kept_note, waiting_counts, waiting_note
from cometmq.insight.words import counted, sized
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.bodies.stats import TopicOffset
from cometmq.remoting.integers import whole
from cometmq.remoting.names import DLQ_REPLAY_GROUP, is_system_topic
from cometmq.remoting.progress import unread

GROUPS_SHOWN: Final = 20
"""The most groups of a topic whose unread messages are named before it is deleted."""
RECENT_MS: Final = 60_000
TRIM_END: Final = "end"
_PLACE: Final = re.compile(r"(\S{1,255}):(\d{1,5})")


class TrimTopic(Change, frozen=True, kw_only=True):
    """Delete the messages before an offset or a time; asks for confirmation.

    Clients see the queues as after retention. Disk space is freed, and the bytes vanish, when
    retention reaches them in the log, which all topics share.

    \b
    EXAMPLE
      cometmq topic trim orders --before @7d --dry-run
    """

    name = "topic.trim"
    risk = Risk.HIGH

    topic: Topic
    before: Annotated[
        str,
        arg("OFFSET of one queue, @TIME (@2026-11-20T10:00Z, @90m ago) or end (all).",
            "Delete the messages before", flags="--before"),
    ]  # fmt: skip
    queue: Annotated[str | None, arg("Only this queue, BROKER:NUMBER.", "Only the queue")] = None
    seen: Annotated[str, arg("The offsets that were shown.", only=Only.FORMS)] = ""

    async def _plan(self, admin: AdminClient) -> Plan:
        topic, chosen = self.topic, None
        await check_exists(admin, topic)
        if self.queue:  # of all queues, because consumers may not read dead letters
            (chosen,) = chosen_queues([*await admin.topic_stats(topic)], topic, self.queue)
        before = _seen(topic, self.seen) or trim_place(self.before, now_ms=wall_ms())
        found = await plan_trim(admin, topic, before, chosen)
        queues = {_place(it.queue): it for it in found.queues if it.messages}
        what, seen = counted(found.messages, "message"), [f"{at}={it.before}"
                                                          for at, it in queues.items()]  # fmt: skip

        async def perform(admin: AdminClient) -> Done:
            await carry_out(admin, found)
            rows = [
                {
                    "broker": it.queue.broker_name, "queue": it.queue.queue_id, "from": it.first,
                    "to": it.before, "messages": it.messages, "bytes": it.size,
                }
                for it in queues.values()
            ]  # fmt: skip
            facts = {"topic": topic, "messages": found.messages, "bytes": found.size}
            return Done(f"{what} of {topic} deleted.", {**facts, "queues": rows})

        return Plan(
            f"delete {what} of {topic}",
            topic,
            {f"{at}: first offset": it.first for at, it in queues.items()},
            {f"{at}: first offset": it.before for at, it in queues.items()},
            perform,
            [bad(f"{what} ({sized(found.size)}) can no longer be read.")],
            trim_losses(found),
            idle="" if queues else "there are no such messages",
            at=sorted({it.queue.broker_name for it in queues.values()}),
            preview={
                "messages": found.messages, "bytes": found.size, "losses": trim_losses(found),
            },
            compared=seen,
            confirms={"seen": " ".join(seen)},
        )  # fmt: skip


def trim_place(text: str, *, now_ms: int) -> Before:
    """Parse `OFFSET`, `@TIME` or `end`; raise InvalidArgument for anything else."""
    if text == TRIM_END:
        return Before()
    offset = whole(text)
    if offset is not None:
        return Before(offset=offset)
    if not text.startswith("@"):
        raise InvalidArgument(
            f"{text} is no place in a queue: give an offset, @TIME (@2026-11-20T10:00Z, @90m ago)"
            f" or {TRIM_END}"
        )
    at_ms = times.parsed(text[1:], now_ms=now_ms)
    if at_ms > now_ms:
        raise InvalidArgument(f"{text} is in the future: to delete all messages, give {TRIM_END}")
    return Before(timestamp_ms=at_ms)


def trim_losses(trim: Trim) -> list[str]:
    """Return a sentence about each group that loses messages which it has not read."""
    return [
        f"the group {group} has not read {counted(count, 'message')} of these"
        for group, count in sorted(trim.unread.items(), key=lambda it: -it[1])
        if count
    ]


def chosen_queues(
    queues: Sequence[MessageQueue], topic: str, wanted: str | None
) -> list[MessageQueue]:
    """Return all queues, or only the requested one; raise ClientError if it does not exist."""
    if wanted is None:
        return list(queues)
    found = [queue for queue in queues if wanted == _place(queue)]
    if not found:
        names = " ".join(map(_place, queues))
        if _PLACE.fullmatch(wanted) is None:
            raise InvalidArgument(f"--queue {wanted}: must be BROKER:NUMBER; {topic} has {names}")
        raise ClientError(f"the topic {topic} has no queue {wanted}; it has {names}")
    return found


def _place(queue: MessageQueue) -> str:
    return f"{queue.broker_name}:{queue.queue_id}"


def _seen(topic: str, text: str) -> Before | None:
    """Return the offsets in a confirmed plan, because later messages must not be deleted; None
    before a plan.
    """
    offsets: dict[MessageQueue, int] = {}
    for part in text.split():
        place, _, offset = part.rpartition("=")
        found = _PLACE.fullmatch(place)
        if found is None or not (offset.isascii() and offset.isdigit()):
            raise InvalidArgument(f"seen: {part} is not BROKER:NUMBER=OFFSET")
        offsets[MessageQueue(topic, found[1], int(found[2]))] = int(offset)
    return Before(offsets=offsets) if offsets else None


class DeleteTopic(Change, frozen=True, kw_only=True):
    """Delete a topic and its messages; asks for confirmation.

    A broker that is down keeps the topic and brings it back when it starts; cluster --expect shows
    whether all brokers are there.

    Group offsets are kept, so a new topic of this name would not be read from its beginning.
    --reset-groups prevents that; it fails if members are connected, because they would commit the
    old offsets again. Delayed messages that are waiting are kept, too, and are delivered to a new
    topic of this name.

    \b
    EXAMPLE
      cometmq topic delete orders --dry-run
    """

    name = "topic.delete"
    risk = Risk.HIGH

    topic: Topic
    cluster: OnlyCluster = None
    reset_groups: Annotated[
        bool, arg("Also reset group offsets in the topic to 0, for a new topic of this name.")
    ] = False

    async def _plan(self, admin: AdminClient) -> Plan:
        topic = self.topic
        await check_exists(admin, topic)
        masters = await admin.masters_to_change(self.cluster)
        configs = await configs_at(admin, masters, topic, lambda it: it.topics())
        homes = [masters[it] for it in configs]
        answers = await admin.ask_all(homes, lambda it: it.topic_stats(topic))
        stats = {queue: it for _, found in answers for queue, it in found.offset_table.items()}
        lags = await _unread_by_group(admin, masters.values(), topic, stats)
        count = sum(it.max_offset - it.min_offset for it in stats.values())
        text = f"{counted(count, 'message')} can no longer be read."
        found = [bad(text) if count else Consequence(text)]
        for group, lag in list(lags.items())[:GROUPS_SHOWN]:
            text = f"The group {group} has not read {counted(lag, 'message')}."
            found.append(bad(text) if lag else warn(text))
        last_ms = max((it.last_update_timestamp for it in stats.values()), default=0)
        if wall_ms() - last_ms < RECENT_MS:
            text = "Producers send to it now: brokers with autoCreateTopicEnable create it again."
            found.append(bad(text))
        notes: list[str] = []
        if self.reset_groups:
            await check_disconnected(masters.values(), lags)
        elif lags:
            notes.append(kept_note(topic, list(lags)))
        if counts := await waiting_counts(masters.values()):
            notes.append(waiting_note(topic, counts))
        is_needed = is_system_topic(topic) or topic in masters

        async def perform(admin: AdminClient) -> Done:
            await admin.delete_topic(topic, cluster=self.cluster, reset_groups=self.reset_groups)
            fate = "offsets_reset" if self.reset_groups else "offsets_kept"
            kept = {fate: list(lags)} if lags else {}
            return Done(f"The topic {topic} is deleted.", {"deleted": topic, **kept})

        return Plan(
            f"delete the topic {topic} with all its messages",
            topic,
            state_of(configs),
            None,
            perform,
            found,
            notes,
            "the brokers need this topic themselves" if is_needed else "",
            at=sorted(masters),
        )


async def _unread_by_group(
    admin: AdminClient,
    masters: Iterable[BrokerAdmin],
    topic: str,
    stats: Mapping[MessageQueue, TopicOffset],
) -> dict[str, int]:
    """Return the number of unread messages of each group with an offset above 0 in a topic."""
    found: dict[str, int] = {}
    for broker, table in await admin.ask_all(masters, lambda it: it.consumer_offsets()):
        for key, offsets in table.offset_table.items():
            name, _, group = key.partition("@")
            # The position of replays is reset with the topic.
            if name == topic and max(offsets.values(), default=0) > 0 and group != DLQ_REPLAY_GROUP:
                found[group] = found.get(group, 0) + sum(
                    unread(offsets.get(queue.queue_id), it.min_offset, it.max_offset)
                    for queue, it in stats.items()
                    if queue.broker_name == broker.name
                )
    return dict(sorted(found.items()))


CHANGES: Final = (TrimTopic, DeleteTopic)
