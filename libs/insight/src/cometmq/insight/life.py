# SPDX-License-Identifier: Apache-2.0
"""The life of one message, as a list of events in order of time.

Everything comes from the message's properties, the brokers' offsets, and the copies that retries,
delays and dead letters have left under the message's unique key; it needs no tracing.
"""

import asyncio
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Final, TypeVar

import msgspec

from cometmq.client.admin import AdminClient, MessageTrack, TrackType
from cometmq.client.admin.dead_letters import origin_message_id, origin_topic
from cometmq.client.admin.figures import read_figures
from cometmq.client.cluster.routes import MASTER_ID
from cometmq.client.message import MessageExt
from cometmq.insight import times
from cometmq.insight.model import Unknown
from cometmq.insight.reading import each
from cometmq.insight.words import counted
from cometmq.remoting.errors import CometError, TopicNotExist
from cometmq.remoting.message.properties import PropertyKey, timed_ms
from cometmq.remoting.names import (
    DLQ_PREFIX,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    dead_letter_topic,
    retry_topic,
)

T = TypeVar("T")

GROUPS_MAX: Final = 50
"""Groups whose retries and dead letters are searched."""
IN_FLIGHT_MAX: Final = 8
REPLAYS_MAX: Final = 100
"""The most dead letters in a list for which it is looked up when they were replayed; each takes a
search.
"""


class Happening(StrEnum):
    """A kind of event."""

    SENT = "sent"
    HALF = "half message"
    COMMITTED = "committed"
    DELAYED = "delayed"
    STORED = "stored"
    COPIED = "copied"
    READ = "read"
    FILTERED = "filtered"
    WAITS = "waits"
    RETRIED = "retried"
    DEAD = "dead letter"
    REPLAYED = "replayed"
    UNKNOWN = "unknown"


class Event(msgspec.Struct, frozen=True):
    """Something that happened to a message, or its present state in a group."""

    happening: Happening
    text: str
    at_ms: int | None = None
    """The time; None for a state whose beginning is not recorded."""
    group: str = ""
    place: str = ""
    """The broker, queue and offset of the stored copy concerned."""
    topic: str = ""
    """The topic of the stored copy that the event concerns (the original, a retry or a dead
    letter), if it is another one than the shown message; else empty.
    """
    message: str = ""
    """The offset message id of that copy."""


class Life(msgspec.Struct, frozen=True):
    """The events of one message: those with a time in order, then its present states."""

    message_id: str
    topic: str
    events: Sequence[Event]
    notes: Sequence[str] = ()


async def life_of(admin: AdminClient, message: MessageExt) -> Life:
    """Return the life of a stored message; facts that a broker lacks become UNKNOWN events."""
    events = _birth(message)
    events += await _origin(admin, message)
    notes: list[str] = []
    events += await _copies(admin, message)
    tracks = await _or_unknown(admin.message_tracks(message))
    if isinstance(tracks, Unknown):
        events.append(Event(Happening.UNKNOWN, f"who has read it is unknown: {tracks.reason}"))
        tracks = []
    if len(tracks) > GROUPS_MAX:
        notes.append(
            f"{counted(len(tracks), 'group')} read the topic; retries of the first {GROUPS_MAX}"
            " are shown"
        )
    events += [_state(track, message) for track in tracks]
    room = asyncio.Semaphore(IN_FLIGHT_MAX)
    async with asyncio.TaskGroup() as tasks:
        asked = [
            tasks.create_task(_of_group(admin, message, track.consumer_group, room))
            for track in tracks[:GROUPS_MAX]
        ]
    for task in asked:
        events += [it for it in task.result() if it.message != message.offset_message_id]
    events.sort(key=lambda it: (it.at_ms is None, it.at_ms or 0))
    return Life(message.message_id, message.topic, events, notes)


async def replays_of(
    admin: AdminClient, group: str, dead: Sequence[MessageExt]
) -> list[int | Unknown]:
    """Return `replayed_ms` of each dead letter; `dead` begins with the oldest, and only the newest
    are looked up.
    """
    older = len(dead[:-REPLAYS_MAX])
    unknown = [Unknown(f"only the newest {REPLAYS_MAX} are looked up")] * older
    asked = await each(
        dead[older:], lambda it: replayed_ms(admin, group, it), at_once=IN_FLIGHT_MAX
    )
    return [*unknown, *asked]


async def replayed_ms(admin: AdminClient, group: str, message: MessageExt) -> int | Unknown:
    """Return when a dead letter of a group was last sent to it again; 0 for never.

    Replays to other topics are not looked for.
    """
    found = await _or_unknown(_copies_in(admin, message, retry_topic(group)))
    if isinstance(found, Unknown):
        return found
    events = _retry_event(found, group, message.store_timestamp)
    return max((it.at_ms or 0 for it in events if it.happening is Happening.REPLAYED), default=0)


def place_of(message: MessageExt) -> str:
    """Return where a message is stored: broker, queue and offset."""
    return f"{message.queue.broker_name}:{message.queue.queue_id}, offset {message.queue_offset}"


def _named(message: MessageExt) -> tuple[str, str]:
    """Return the `topic` and `message` of an event that concerns this stored copy."""
    return message.queue.topic, message.offset_message_id


def _birth(message: MessageExt) -> list[Event]:
    found = message.properties
    group = found.get(PropertyKey.PRODUCER_GROUP, "")
    sender = f" by {group}" if group else ""
    events = [
        Event(Happening.SENT, f"sent from {message.born_host}{sender}", message.born_timestamp)
    ]
    place = place_of(message)
    if message.queue.topic == SCHEDULE_TOPIC:
        text = f"{_delay_text(found)} for {found.get(PropertyKey.REAL_TOPIC, '?')}"
        return [*events, Event(Happening.DELAYED, text, message.store_timestamp, place=place)]
    if found.get(PropertyKey.TRANSACTION_PREPARED) == "true":
        at = found.get(PropertyKey.TRANSACTION_PREPARED_QUEUE_OFFSET, "")
        text = "stored as a half message" + (f" at offset {at} of the half queue" if at else "")
        events.append(Event(Happening.HALF, text, message.born_timestamp))
        events.append(
            Event(Happening.COMMITTED, "its transaction was committed", message.store_timestamp)
        )
    if PropertyKey.TIMER_OUT_MS in found or found.get(PropertyKey.DELAY, "0") != "0":
        text = _delay_text(found, was=True)
        events.append(Event(Happening.DELAYED, text, message.born_timestamp))
    if message.queue.topic.startswith(DLQ_PREFIX):
        group = message.queue.topic.removeprefix(DLQ_PREFIX)
        (died,) = _dead_event([message], group, None)
        return [*events, msgspec.structs.replace(died, topic="", message="")]
    stored = Event(
        Happening.STORED, f"stored by {message.store_host}", message.store_timestamp, place=place
    )
    return [*events, stored]


def _delay_text(properties: Mapping[str, str], *, was: bool = False) -> str:
    due_ms = timed_ms(properties)
    if due_ms is not None:
        return f"{'was delayed' if was else 'waits'} until {times.shown(due_ms)}"
    level = properties.get(PropertyKey.DELAY, "?")
    return f"was delayed by level {level}" if was else f"waits in delay level {level}"


async def _origin(admin: AdminClient, message: MessageExt) -> list[Event]:
    """Return the events of the original, if the message is a retry or a dead letter."""
    copied_to = message.queue.topic
    topic, group = origin_topic(message), copied_to.partition("%")[2].partition("%")[2]
    if not copied_to.startswith((DLQ_PREFIX, RETRY_PREFIX)) or topic == copied_to:
        return []
    found = await _or_unknown(admin.view_message(origin_message_id(message), topic))
    if isinstance(found, Unknown):
        text = f"its original in {topic} is unknown, or deleted: {found.reason}"
        events = [Event(Happening.UNKNOWN, text)]
    else:
        text = f"the original was stored in {topic}"
        place, stored_ms = place_of(found), found.store_timestamp
        events = [Event(Happening.STORED, text, stored_ms, "", place, *_named(found))]
    others = await _of_group(admin, message, group, asyncio.Semaphore(IN_FLIGHT_MAX))
    return events + [it for it in others if it.message != message.offset_message_id]


async def _copies(admin: AdminClient, message: MessageExt) -> list[Event]:
    groups = await _or_unknown(admin.broker_groups())
    if isinstance(groups, Unknown):
        return [Event(Happening.UNKNOWN, f"its copies are unknown: {groups.reason}")]
    events = []
    for broker_id, broker in groups.get(message.queue.broker_name, {}).items():
        if broker_id == MASTER_ID:
            continue
        facts = await _or_unknown(broker.runtime_info())
        place = f"{broker.name}, copy {broker_id}"
        if isinstance(facts, Unknown):
            text = f"copy {broker_id} does not answer: {facts.reason}"
            events.append(Event(Happening.UNKNOWN, text, place=place))
        elif read_figures(facts).log_max_offset > message.physical_offset:
            text = f"copy {broker_id} at {broker.address} has it"
            events.append(Event(Happening.COPIED, text, place=place))
        else:
            text = f"copy {broker_id} at {broker.address} does not have it yet"
            events.append(Event(Happening.WAITS, text, place=place))
    return events


_STATES: Final = {
    TrackType.CONSUMED: (Happening.READ, "has read it"),
    TrackType.CONSUMED_BUT_FILTERED: (Happening.FILTERED, "has passed it: its filter skips it"),
    TrackType.NOT_CONSUME_YET: (Happening.WAITS, "has not read it yet"),
    TrackType.PULL: (Happening.UNKNOWN, "pulls, and keeps its own offsets"),
    TrackType.CONSUME_BROADCASTING: (
        Happening.UNKNOWN,
        "broadcasts: each member keeps its own offsets",
    ),
    TrackType.UNKNOWN: (Happening.UNKNOWN, "is in an unknown state"),
}


def _state(track: MessageTrack, message: MessageExt) -> Event:
    group = track.consumer_group
    if track.track_type is TrackType.NOT_ONLINE:
        return Event(Happening.WAITS, f"{group} has no connected member", group=group)
    happening, text = _STATES[track.track_type]
    reason = f" ({track.exception_desc})" if track.exception_desc else ""
    place = place_of(message) if happening is Happening.WAITS else ""
    return Event(happening, f"{group} {text}{reason}", group=group, place=place)


async def _of_group(
    admin: AdminClient, message: MessageExt, group: str, room: asyncio.Semaphore
) -> list[Event]:
    """Return the retries and dead letters of a message in one group."""
    retry, dead = retry_topic(group), dead_letter_topic(group)

    async def copies(topic: str) -> list[MessageExt] | Unknown:
        async with room:
            return await _or_unknown(_copies_in(admin, message, topic))

    events: list[Event] = []
    died_ms: int | None = None
    for topic, event_of in ((dead, _dead_event), (retry, _retry_event)):
        found = await copies(topic)
        if isinstance(found, Unknown):
            text = f"its copies in {topic} are unknown: {found.reason}"
            events.append(Event(Happening.UNKNOWN, text, group=group))
            continue
        if topic == dead and found:
            died_ms = min(it.store_timestamp for it in found)
        events += event_of(found, group, died_ms)
        if topic == retry and found:
            events += await _retry_state(admin, found, group, events)
    return events


async def _retry_state(
    admin: AdminClient, found: Sequence[MessageExt], group: str, events: Sequence[Event]
) -> list[Event]:
    """Return the event that says whether the group has read the newest retry; none if it became a
    dead letter.
    """
    newest = max(found, key=lambda it: it.store_timestamp)
    if any(
        it.happening is Happening.DEAD and (it.at_ms or 0) >= newest.store_timestamp
        for it in events
    ):
        return []
    committed = await _or_unknown(admin.committed_offset(group, newest.queue))
    if isinstance(committed, Unknown):
        text = f"whether {group} has read the newest retry is unknown: {committed.reason}"
        return [Event(Happening.UNKNOWN, text, group=group)]
    happening, text = _STATES[
        TrackType.CONSUMED if (committed or 0) > newest.queue_offset else TrackType.NOT_CONSUME_YET
    ]
    place = place_of(newest)
    return [Event(happening, f"{group} {text}", None, group, place, *_named(newest))]


async def _copies_in(admin: AdminClient, message: MessageExt, topic: str) -> list[MessageExt]:
    if await admin.namesrv.route(topic) is None:  # brokers create it for the first failure
        return []
    try:
        found = await admin.query_by_unique_key(topic, message.message_id)
    except TopicNotExist:
        return []
    ids = {message.message_id, message.offset_message_id}
    return [it for it in found if it.message_id in ids or origin_message_id(it) in ids]


def _dead_event(found: Iterable[MessageExt], group: str, _died_ms: int | None) -> Sequence[Event]:
    return [
        Event(
            Happening.DEAD,
            f"{group} gave up on it after {counted(it.reconsume_times, 'attempt')}",
            it.store_timestamp,
            group,
            place_of(it),
            *_named(it),
        )
        for it in found
    ]


def _retry_event(found: Iterable[MessageExt], group: str, died_ms: int | None) -> Sequence[Event]:
    events = []
    for it in found:
        is_replay = died_ms is not None and not it.reconsume_times and it.store_timestamp > died_ms
        happening = Happening.REPLAYED if is_replay else Happening.RETRIED
        text = (
            f"was replayed to {group}"
            if is_replay
            else (f"{group} got it back for attempt {it.reconsume_times + 1}")
        )
        events.append(Event(happening, text, it.store_timestamp, group, place_of(it), *_named(it)))
    return events


async def _or_unknown(question: Awaitable[T]) -> T | Unknown:
    try:
        return await question
    except CometError as error:
        return Unknown(str(error) or type(error).__name__)
