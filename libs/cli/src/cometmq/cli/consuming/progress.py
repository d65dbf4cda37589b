# SPDX-License-Identifier: Apache-2.0
"""Reads the progress of all groups with a few requests to each broker.

For 500 groups with 4 queues, one call of `queue_states` per group would take 12 s, because it sends
requests for each queue.
"""

from collections.abc import (
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from typing import NamedTuple

import msgspec

from cometmq.cli.admin import CommandAdmin
from cometmq.cli.outcome import MISSING
from cometmq.client.admin import AdminClient
from cometmq.client.admin.broker import BrokerAdmin
from cometmq.insight.asking import connections_in
from cometmq.insight.members import GroupMembers, members_of
from cometmq.insight.queue_states import QueueState, queue_states, state_of, store_time_of
from cometmq.insight.reading import each_or_why
from cometmq.remoting.bodies.connections import ConsumerConnections
from cometmq.remoting.bodies.overview import BrokerOverview
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.bodies.topic_config import SubscriptionGroupConfig, TopicConfig
from cometmq.remoting.errors import NO_ANSWER, AccessDenied, CometError, RequestCodeNotSupported
from cometmq.remoting.names import retry_topic
from cometmq.remoting.progress import position, unread


class AbsentBrokers:
    """The brokers that did not answer a command, and the groups that may be affected.

    A broker affects a group if it is in the route of one of the group's topics. Brokers create the
    group's retry topic when a member connects; if no broker has it, offsets may be anywhere.
    """

    def __init__(self, admin: CommandAdmin) -> None:
        self._admin = admin
        self._places: dict[str, frozenset[str]] = {}

    @property
    def names(self) -> list[str]:
        """Return the names of all brokers that have not answered so far."""
        return sorted(self._admin.unanswered)

    async def of(self, group: str, topics: Iterable[str], only: str | None = None) -> list[str]:
        """Return the absent brokers that may have messages or offsets of a group.

        `topics` are the known topics of the group; with `only`, no other topic counts.
        """
        if not self._admin.unanswered:
            return []
        if only is not None:
            places = await self._of_topic(only)
        else:
            places = await self._of_topic(retry_topic(group))
            if not places:
                return self.names
            for topic in topics:
                places |= await self._of_topic(topic)
        return sorted(self._admin.unanswered.keys() & places)

    async def _of_topic(self, topic: str) -> frozenset[str]:
        if topic not in self._places:
            route = await self._admin.namesrv.route(topic)
            found = () if route is None else route.broker_datas
            self._places[topic] = frozenset(it.broker_name for it in found)
        return self._places[topic]


def note_left_out(group: str, error: object) -> None:
    """Record that the figures of a group are missing, and why."""
    MISSING.setdefault(f"group {group}", f"the figures of the group {group} are missing: {error}")


def absence(brokers: Sequence[str]) -> str:
    """Return a clause that names the brokers that have not answered or have no master."""
    return f"{', '.join(brokers)} {'is' if len(brokers) == 1 else 'are'} missing"


_Next = tuple[BrokerAdmin, MessageQueue, int]
"""The broker, queue and offset of a message."""


class _Queue(NamedTuple):
    """The progress of a group in a queue."""

    master: BrokerAdmin
    queue: MessageQueue
    first: int
    committed: int
    end: int

    @property
    def lag(self) -> int:
        return unread(self.committed, self.first, self.end)

    @property
    def next(self) -> _Next:
        """The group's next message."""
        return self.master, self.queue, position(self.committed, self.first)


class _Tables(msgspec.Struct, frozen=True):
    """What one broker has answered about all groups."""

    master: BrokerAdmin
    offsets: Mapping[str, Mapping[int, int]]
    """Committed offsets, by `topic@group` and queue."""
    topics: Mapping[str, TopicConfig]
    overview: BrokerOverview

    def queues(self, group: str, topic: str) -> Iterator[_Queue]:
        """Yield the queues that members read, and the others that have unread messages. Yield none
        if the members do not subscribe to the topic.
        """
        config, online = self.topics.get(topic), self.overview.groups.get(group)
        subscribed = [it.topic for it in online.subscriptions] if online is not None else []
        if config is None or (subscribed and topic not in subscribed):
            return
        offsets = self.offsets.get(f"{topic}@{group}", {})
        for it in self.overview.queues.get(topic, ()):
            queue = MessageQueue(topic, self.master.name, it.queue_id)
            committed = max(0, offsets.get(it.queue_id, 0))
            found = _Queue(self.master, queue, it.first, committed, it.end)
            if it.queue_id < config.read_queue_nums or found.lag:
                yield found


async def _tables(master: BrokerAdmin) -> _Tables:
    offsets = (await master.consumer_offsets()).offset_table
    overview = await master.overview()  # after the offsets, or these may be beyond the ends
    return _Tables(master, offsets, await master.topics(), overview)


class Progress:
    """The progress and the members of groups."""

    def __init__(self, admin: AdminClient, tables: Sequence[_Tables] | None) -> None:
        """`tables` is None if a broker has no overview, as those of RocketMQ; the brokers are then
        asked about each group.
        """
        self._admin = admin
        self._tables = tables
        self._topics: dict[str, set[str]] = {}
        for key in (key for it in tables or () for key in it.offsets):
            topic, _, group = key.partition("@")
            self._topics.setdefault(group, set()).add(topic)

    @classmethod
    async def read(cls, admin: AdminClient) -> "Progress":
        """Query all brokers, and return what they answer."""
        try:
            answers = await admin.ask_each((await admin.masters()).values(), _tables)
        except (RequestCodeNotSupported, AccessDenied):
            return cls(admin, None)
        return cls(admin, [it for _, it in answers])

    async def states(
        self, groups: Collection[str], topic: str | None = None
    ) -> dict[str, list[QueueState] | CometError]:
        """Return the states of each group's queues, of one topic or of all; for a group whose
        states are missing, return the error.
        """
        if self._tables is None:
            return await each_or_why(groups, lambda it: queue_states(self._admin, it, topic))
        readers = set(groups if topic is None else await self._admin.consuming_groups(topic))
        queues = {it: list(self._queues(it, topic)) if it in readers else [] for it in groups}
        wanted = {it.next for found in queues.values() for it in found if it.lag}
        stored = await each_or_why(wanted, lambda it: store_time_of(*it))
        return {it: self._states(found, stored) for it, found in queues.items()}

    async def members(self, group: str, config: SubscriptionGroupConfig) -> GroupMembers:
        """Return the connected members of a group."""
        if self._tables is None:
            return await members_of(self._admin, group, config)
        online: ConsumerConnections | None = None
        for it in self._tables:
            clients = it.overview.groups.get(group)
            if clients is None:
                continue
            if online is None:
                online = connections_in(clients)
                continue
            known = {one.client_id for one in online.connection_set}
            online.connection_set += [it for it in clients.members if it.client_id not in known]
        return GroupMembers(group, config, online)

    def _queues(self, group: str, topic: str | None) -> Iterator[_Queue]:
        topics = {topic} if topic is not None else self._topics_of(group) | {retry_topic(group)}
        for name in sorted(topics):
            for it in self._tables or ():
                yield from it.queues(group, name)

    def _topics_of(self, group: str) -> set[str]:
        """Return the topics in which the group has offsets, where it still reads them."""
        return {
            topic
            for topic in self._topics.get(group, ())
            for it in self._tables or ()
            if f"{topic}@{group}" in it.offsets and any(it.queues(group, topic))
        }

    def _states(
        self, queues: Sequence[_Queue], stored: Mapping[_Next, int | CometError | None]
    ) -> list[QueueState] | CometError:
        found = []
        for it in queues:
            stored_ms = stored[it.next] if it.lag else None
            if isinstance(stored_ms, NO_ANSWER):
                self._admin.unreachable(it.master, stored_ms)
            elif isinstance(stored_ms, CometError):
                return stored_ms
            else:
                found.append(state_of(it.queue, it.first, it.committed, it.end, stored_ms))
        return found
