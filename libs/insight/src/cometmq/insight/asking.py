# SPDX-License-Identifier: Apache-2.0
"""Asks one broker for the figures of a snapshot: one request for each kind.

Java's brokers have no request for the queues of all topics, or for the members of all groups. Each
snapshot asks them about a limited number of topics and groups, those with the oldest answers first
(`Turns`).
"""

import asyncio
from collections.abc import Awaitable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, Generic, TypeVar

import msgspec

from cometmq.client.admin.broker import BrokerAdmin
from cometmq.client.admin.groups import with_offsets_only
from cometmq.client.cluster.routes import MASTER_ID
from cometmq.insight.model import Since, Trouble, Unknown, Unreachable, is_silence
from cometmq.remoting.bodies.connections import ConsumerConnections, ProducerInfo
from cometmq.remoting.bodies.offsets import DelayOffsetTable
from cometmq.remoting.bodies.overview import (
    BrokerOverview,
    GroupClients,
    GroupHabit,
    QueueEnds,
    RefusedRequests,
)
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.bodies.stats import TopicOffset
from cometmq.remoting.bodies.topic_config import SubscriptionGroupConfig, TopicConfig
from cometmq.remoting.errors import (
    NO_ANSWER,
    CometError,
    ConnectFailed,
    ConsumerNotOnline,
    RemoteProtocolError,
    RequestCodeNotSupported,
    RequestTimeout,
    TopicNotExist,
    TransportError,
)
from cometmq.remoting.names import DLQ_PREFIX

T = TypeVar("T")

IN_FLIGHT_MAX: Final = 16
"""The most requests of a snapshot that are in flight to one broker."""
TURN_MAX: Final = 200
"""The most topics, and the most groups, about which one snapshot asks a broker without an overview.
The first snapshot asks about all of them.
"""
TURNS_S_MAX: Final = 10.0
NEVER_MS: Final = -1
NOT_TOLD: Final = Unknown("not asked yet: this broker tells it one by one", is_new=True)


class Queue(msgspec.Struct, frozen=True, gc=False):
    """The ends of one queue, and when its newest message was stored (0: unknown)."""

    first: int
    end: int
    last_write_ms: int = 0


Queues = Mapping[int, Queue | QueueEnds]
"""The queues of a topic on one broker, by number."""
Firsts = tuple[tuple[int, int], ...]
"""The numbers of the queues of a topic that are not empty, with the offsets of their first
messages.
"""


class MasterAnswers(msgspec.Struct, frozen=True):
    """A master's answers, by kind; `Unknown` where it refused or did not answer."""

    topics: Mapping[str, TopicConfig] | Unknown
    groups: Mapping[str, SubscriptionGroupConfig] | Unknown
    offsets: Mapping[str, Mapping[int, int]] | Unknown
    """Committed offsets by `topic@group` and queue."""
    delays: DelayOffsetTable | Unknown
    producers: Mapping[str, list[ProducerInfo]] | Unknown
    queues: Mapping[str, Queues]
    """The queues of each topic; a topic is missing if the broker has not answered about it yet."""
    consumers: Mapping[str, ConsumerConnections | None]
    """The members of each group, None if it has none; a group without an answer yet is missing."""
    oldest_unread_ms: Mapping[str, int] | None = None
    """When the oldest unread message was stored, by `topic@group`; a group without unread messages,
    or not measured yet, is missing. None if the broker does not report these times.
    """
    untold: Unknown = NOT_TOLD
    """Why topics are missing in `queues`, and groups in `consumers`."""
    disagreements: Mapping[str, str] = {}
    """How the subscriptions of a group's members differ, by group."""
    refused: Sequence[RefusedRequests] | Unknown = Unknown("this broker does not report it")
    habits: Sequence[GroupHabit] = ()
    first_dead_ms: Mapping[str, int] = {}
    """When the oldest message of a dead-letter topic was stored; a topic is missing if it is empty
    or the broker has not answered about it.
    """


class BrokerAnswers(msgspec.Struct, frozen=True):
    """The answers of one copy of a broker: its master or a slave."""

    runtime: Mapping[str, str]
    settings: Mapping[str, str] | Unknown
    master: MasterAnswers | None
    """The answers that only masters are asked for, because the tables of slaves are copies."""


class Turns(Generic[T]):
    """Keeps the answers about many items; selects the items with the oldest answers, to ask about
    them next.
    """

    def __init__(self) -> None:
        self._answers: dict[str, T] = {}
        self._asked_ms: dict[str, int] = {}

    def next(self, items: Collection[str], count_max: int) -> list[str]:
        """Return the items to ask about; drop answers about items that are not in `items`."""
        for name in self._asked_ms.keys() - set(items):
            del self._asked_ms[name]
            self._answers.pop(name, None)
        if not self._asked_ms or len(items) <= count_max:
            return list(items)
        return sorted(items, key=lambda it: self._asked_ms.get(it, NEVER_MS))[:count_max]

    def told(self, name: str, answer: T, now_ms: int) -> None:
        """Keep an answer."""
        self._answers[name] = answer
        self._asked_ms[name] = now_ms

    @property
    def answers(self) -> Mapping[str, T]:
        """The newest answer about each item."""
        return dict(self._answers)


class BrokerMemory:
    """What is kept about one master between snapshots: answers, and whether it has an overview."""

    def __init__(self) -> None:
        self.queues: Turns[Queues] = Turns()
        self.consumers: Turns[ConsumerConnections | None] = Turns()
        self.first_dead: dict[str, tuple[Firsts, int]] = {}
        """By dead-letter topic, the first messages of its queues and the time of the oldest."""
        self.has_overview = True
        """Whether the broker returns all queues and members in one answer; RocketMQ's brokers do
        not.
        """


async def ask(
    broker: BrokerAdmin, broker_id: int, memory: BrokerMemory, now_ms: int, timeout_ms: int
) -> BrokerAnswers:
    """Ask one copy of a broker; raise CometError if it does not answer at all.

    Answers that have not arrived `timeout_ms` after the first request are `Unknown`. Other kinds of
    requests are sent only after the first answer, so a broker that hangs gets one request.
    """
    asking = _Asking(timeout_ms)
    runtime = await broker.runtime_info()
    if broker_id != MASTER_ID:
        return BrokerAnswers(runtime, await asking.answer(broker.config()), None)
    async with asyncio.TaskGroup() as group:
        settings = group.create_task(asking.answer(broker.config()))
        topics = group.create_task(asking.answer(broker.topics()))
        groups = group.create_task(asking.answer(broker.groups()))
        offsets = group.create_task(asking.answer(_offsets(broker)))
        delays = group.create_task(asking.answer(broker.delay_offsets()))
        producers = group.create_task(asking.answer(broker.producers()))
        overview = group.create_task(asking.answer(_overview(broker, memory)))
    found = overview.result()
    if not isinstance(found, BrokerOverview) and not is_silence(found):
        names = _group_names(groups.result(), offsets.result())
        await _take_turns(broker, memory, topics.result(), names, now_ms)
    master = MasterAnswers(
        topics=topics.result(),
        groups=groups.result(),
        offsets=offsets.result(),
        delays=delays.result(),
        producers=producers.result(),
        queues=memory.queues.answers,
        consumers=memory.consumers.answers,
        untold=found if is_silence(found) else NOT_TOLD,
    )
    if isinstance(found, BrokerOverview):
        master = _with_overview(master, found)
    first_dead_ms = await asking.answer(_first_dead_ms(broker, memory, master.queues))
    if not isinstance(first_dead_ms, Unknown):
        master = msgspec.structs.replace(master, first_dead_ms=first_dead_ms)
    return BrokerAnswers(runtime, settings.result(), master)


class _Asking:
    """The requests to one broker, which share a deadline."""

    def __init__(self, timeout_ms: int) -> None:
        self._timeout_ms = timeout_ms
        self._until_s = asyncio.get_running_loop().time() + timeout_ms / 1_000

    async def answer(self, question: Awaitable[T]) -> T | Unknown:
        """Return the answer; on an error or timeout, an `Unknown` with the reason."""
        try:
            async with asyncio.timeout_at(self._until_s):
                return await question
        except RequestCodeNotSupported:
            return Unknown("this broker does not report it")
        except CometError as error:
            return Unknown(str(error), is_silence=isinstance(error, NO_ANSWER))
        except TimeoutError:
            return Unknown(f"no answer within {self._timeout_ms} ms", is_silence=True)


async def _overview(broker: BrokerAdmin, memory: BrokerMemory) -> BrokerOverview | None:
    """Return the broker's overview; None if the broker does not support it."""
    if not memory.has_overview:
        return None
    try:
        return await broker.overview()
    except RequestCodeNotSupported:
        memory.has_overview = False
        return None


def _with_overview(master: MasterAnswers, overview: BrokerOverview) -> MasterAnswers:
    names = _group_names(master.groups, master.offsets)
    consumers: dict[str, ConsumerConnections | None] = dict.fromkeys(names)
    consumers |= {name: connections_in(it) for name, it in overview.groups.items()}
    return msgspec.structs.replace(
        master,
        queues={
            topic: {it.queue_id: it for it in queues} for topic, queues in overview.queues.items()
        },
        consumers=consumers,
        oldest_unread_ms=overview.oldest_unread_ms,
        disagreements={
            name: it.disagreement for name, it in overview.groups.items() if it.disagreement
        },
        refused=overview.refused,
        habits=overview.habits,
    )


def connections_in(clients: GroupClients) -> ConsumerConnections:
    """Return the members of a group in the form in which the query for a single group
    returns them.
    """
    return ConsumerConnections(
        connection_set=clients.members,
        consume_type=clients.consume_type,
        message_model=clients.message_model,
        subscription_table={it.topic: it for it in clients.subscriptions},
    )


def _group_names(
    groups: Mapping[str, SubscriptionGroupConfig] | Unknown,
    offsets: Mapping[str, Mapping[int, int]] | Unknown,
) -> Collection[str]:
    """Return the broker's groups, including those without settings."""
    settings = {} if isinstance(groups, Unknown) else groups
    places = () if isinstance(offsets, Unknown) else offsets
    return with_offsets_only(settings, {place.partition("@")[2] for place in places})


def unreachable(error: CometError, since: Since) -> Unreachable:
    """Return the state of a broker that failed with `error`."""
    trouble = Trouble.REFUSES
    if isinstance(error, RequestTimeout):
        trouble = Trouble.HANGS
    elif isinstance(error, ConnectFailed | TransportError):
        trouble = Trouble.DOWN
    elif isinstance(error, RemoteProtocolError):
        trouble = Trouble.GARBLED
    return Unreachable(trouble, str(error), since)


async def _take_turns(
    broker: BrokerAdmin,
    memory: BrokerMemory,
    topics: Mapping[str, Any] | Unknown,
    groups: Collection[str],
    now_ms: int,
) -> None:
    room = asyncio.Semaphore(IN_FLIGHT_MAX)

    async def bounds_of(topic: str) -> None:
        async with room:
            answer = await _queues(broker, topic)
        memory.queues.told(topic, answer, now_ms)

    async def members_of(group: str) -> None:
        async with room:
            answer = await _members(broker, group)
        memory.consumers.told(group, answer, now_ms)

    async def attempt(work: Awaitable[None]) -> None:
        try:
            await work
        except RequestTimeout as error:  # a broker that begins to hang costs one of them
            raise TimeoutError from error
        except CometError:  # the item keeps its last answer; the next snapshot asks again
            return

    topic_names = () if isinstance(topics, Unknown) else topics.keys()
    try:
        async with asyncio.timeout(TURNS_S_MAX), asyncio.TaskGroup() as tasks:
            for topic in memory.queues.next(topic_names, TURN_MAX):
                tasks.create_task(attempt(bounds_of(topic)))
            for group in memory.consumers.next(groups, TURN_MAX):
                tasks.create_task(attempt(members_of(group)))
    except* TimeoutError:  # the items left over keep their last answers
        pass


async def _queues(broker: BrokerAdmin, topic: str) -> Queues:
    try:
        table = (await broker.topic_stats(topic)).offset_table
    except TopicNotExist:  # deleted meanwhile
        return {}
    return queues_in(table.items())


def queues_in(rows: Iterable[tuple[MessageQueue, TopicOffset]]) -> Queues:
    """Return the queues of a topic's statistics; negative numbers, which are invalid, become 0."""
    return {
        queue.queue_id: Queue(
            max(0, it.min_offset), max(0, it.max_offset), max(0, it.last_update_timestamp)
        )
        for queue, it in rows
    }


async def _members(broker: BrokerAdmin, group: str) -> ConsumerConnections | None:
    try:
        return await broker.consumer_connections(group)
    except ConsumerNotOnline:
        return None


async def _first_dead_ms(
    broker: BrokerAdmin, memory: BrokerMemory, queues: Mapping[str, Queues]
) -> Mapping[str, int]:
    """Return when the oldest dead letter of each group was stored. Only topics whose first messages
    have changed are queried again, and at most TURN_MAX of them.
    """
    firsts = {
        topic: own
        for topic, its in queues.items()
        if topic.startswith(DLQ_PREFIX)
        and (own := tuple((at, it.first) for at, it in sorted(its.items()) if it.end > it.first))
    }
    memory.first_dead = {
        topic: told for topic, told in memory.first_dead.items() if told[0] == firsts.get(topic)
    }
    wanted = [topic for topic in firsts if topic not in memory.first_dead]
    for topic in wanted[:TURN_MAX]:
        times = [await broker.earliest_store_time(topic, at) for at, _ in firsts[topic]]
        if found := [it for it in times if it is not None]:
            memory.first_dead[topic] = firsts[topic], min(found)
    return {topic: first_ms for topic, (_, first_ms) in memory.first_dead.items()}


async def _offsets(broker: BrokerAdmin) -> Mapping[str, Mapping[int, int]]:
    return (await broker.consumer_offsets()).offset_table
