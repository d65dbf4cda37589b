# SPDX-License-Identifier: Apache-2.0
"""Rebalancing: divides the queues of the subscribed topics among the members of the group.

All members of a group must compute the same division, whatever language they are written in, so
each strategy matches Java's exactly. Queues are sorted by (topic, broker name, queue id), and
client ids as strings; a client that is not in the list gets no queues.
"""

import asyncio
import hashlib
import random
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import suppress
from itertools import groupby
from typing import Final, Protocol, TypeVar

from cometmq.client.admin.broker_consumers import BrokerConsumers
from cometmq.client.application_calls import Failures, original
from cometmq.client.arguments import whole
from cometmq.client.consume.queues.owned import TOPICS_AT_ONCE
from cometmq.client.consume.queues.parts import ConsumerParts
from cometmq.client.errors import InvalidArgument, shown
from cometmq.client.log import Reminders
from cometmq.client.turns import for_each
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.errors import (
    AccessDenied,
    CometError,
    RemoteProtocolError,
    ServerError,
    TransportError,
)
from cometmq.remoting.transport.tasks import describe

T = TypeVar("T")

VIRTUAL_NODE_COUNT: Final = 10  # of the consistent hash, per client, as in RocketMQ


class AllocateStrategy(Protocol):
    """Divides the queues of one topic among the members of one group."""

    @property
    def name(self) -> str:
        """RocketMQ's name for the strategy; all members of a group must use the same one."""

    def allocate(
        self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """Return the queues assigned to `client_id`; queues and client ids are sorted."""


class AllocateAveragely:
    """Assigns n queues to c members in blocks; the first `n mod c` get one more queue."""

    name: Final = "AVG"

    def allocate(
        self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """Return the block of `client_id`."""
        if client_id not in client_ids:
            return []
        index = client_ids.index(client_id)
        share, rest = divmod(len(queues), len(client_ids))
        start = index * share + min(index, rest)
        return list(queues[start : start + share + (index < rest)])


class AllocateByCircle:
    """Assigns queues to c members in turn: queue i belongs to member `i mod c`."""

    name: Final = "AVG_BY_CIRCLE"

    def allocate(
        self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """Return every c-th queue, starting at the member's own index."""
        if client_id not in client_ids:
            return []
        return list(queues[client_ids.index(client_id) :: len(client_ids)])


class AllocateByConfig:
    """Assigns a fixed list of queues, independently of the other members."""

    name: Final = "CONFIG"

    def __init__(self, queues: Iterable[MessageQueue]) -> None:
        self._queues = list(queues)

    def allocate(
        self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        return list(self._queues)


class AllocateByMachineRoom:
    """Divides the queues of brokers named `room@name` in the given rooms; ignores all others.

    Queues that are left over after an even division go, one each, to the first members.
    """

    name: Final = "MACHINE_ROOM"

    def __init__(self, rooms: Iterable[str]) -> None:
        self._rooms = frozenset(rooms)

    def allocate(
        self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """Return the share of `client_id`."""
        if client_id not in client_ids:
            return []
        index = client_ids.index(client_id)
        near = [queue for queue in queues if self._room(queue) in self._rooms]
        share, rest = divmod(len(near), len(client_ids))
        mine = near[index * share : (index + 1) * share]
        if index < rest:
            mine.append(near[share * len(client_ids) + index])
        return mine

    @staticmethod
    def _room(queue: MessageQueue) -> str | None:
        room, at, _ = queue.broker_name.partition("@")
        return room if at and queue.broker_name.count("@") == 1 else None


class AllocateByConsistentHash:
    """Gives members arcs of a hash ring, so that few queues move when a member joins or leaves."""

    name: Final = "CONSISTENT_HASH"

    def __init__(self, virtual_node_count: int = VIRTUAL_NODE_COUNT) -> None:
        self._virtual_node_count = whole(virtual_node_count, "virtual_node_count")

    def allocate(
        self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """Return the queues whose position on the ring belongs to `client_id`."""
        if client_id not in client_ids:
            return []
        ring = {
            ring_place(f"{member}-{node}"): member
            for member in client_ids
            for node in range(self._virtual_node_count)
        }
        places = sorted(ring)
        if not places:
            return []
        mine = []
        for queue in queues:
            place = ring_place(java_queue_text(queue))
            owner = ring[places[bisect_left(places, place) % len(places)]]
            if owner == client_id:
                mine.append(queue)
        return mine


class AllocateMachineRoomNearby:
    """Gives a room's queues to the members in that room, or to all members if it has none."""

    def __init__(
        self,
        inner: AllocateStrategy,
        *,
        broker_room: Callable[[MessageQueue], str],
        consumer_room: Callable[[str], str],
    ) -> None:
        """`inner` divides each room; the callables return the room of a queue or a client."""
        self._inner = inner
        self._broker_room = broker_room
        self._consumer_room = consumer_room
        self.name = f"MACHINE_ROOM_NEARBY-{inner.name}"

    def allocate(
        self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """Return the share of the client's own room, then shares of rooms without members."""
        if client_id not in client_ids:
            return []
        by_room = _grouped(queues, self._broker_room)
        members = _grouped(client_ids, self._consumer_room)
        own = self._consumer_room(client_id)
        mine = self._inner.allocate(client_id, by_room.pop(own, []), members[own])
        for room, room_queues in sorted(by_room.items()):
            if room not in members:
                mine.extend(self._inner.allocate(client_id, room_queues, client_ids))
        return mine


def ring_place(text: str) -> int:
    """Return a position on the ring: the first four bytes of an MD5 digest, as in Java."""
    digest = hashlib.md5(text.encode(), usedforsecurity=False).digest()
    return int.from_bytes(digest[:4], "big")


def java_queue_text(queue: MessageQueue) -> str:
    """Return a queue as Java prints it; the ring hashes this text."""
    return (
        f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, "
        f"queueId={queue.queue_id}]"
    )


def _grouped(items: Sequence[T], room: Callable[[T], str]) -> dict[str, list[T]]:
    ordered = sorted(items, key=room)  # stable: the order inside a room is kept
    return {name: list(members) for name, members in groupby(ordered, key=room)}


MEMBERS_MAX: Final = 65_536
"""Members of one group; they are sorted, and searched for our own id."""

DUPLICATE_REMIND_MS: Final = 60_000
"""Interval between warnings about a client id that stays duplicated."""


class Assigner:
    """Computes which queues this member owns.

    All members compute the same division from the same sorted lists, so no coordinator is needed.
    While members join and leave, two of them may briefly hold the same queue.
    """

    def __init__(self, parts: ConsumerParts, strategy: AllocateStrategy) -> None:
        self._instance = parts.instance
        self._group = parts.group
        self._interval_ms = parts.options.rebalance_interval_ms
        # A broadcasting member takes all queues.
        self._strategy = None if parts.is_broadcasting else strategy
        self._duplicates = Reminders(DUPLICATE_REMIND_MS)

    async def shares(self, topics: Iterable[str]) -> tuple[dict[str, list[MessageQueue]], bool]:
        """Compute our shares; return those that are known, and False if a retry is needed soon."""
        members = _Members(self._members)
        shares: dict[str, list[MessageQueue]] = {}
        is_complete = True

        async def compute(topic: str) -> None:
            nonlocal is_complete
            try:
                mine = await self._mine(topic, members)
            except CometError as error:
                outages = self._instance.outages
                outages.failed("rebalance.failed", error, group=self._group, topic=topic)
                is_complete = is_complete and isinstance(error, AccessDenied)
                return
            if mine is None:
                is_complete = False
            else:
                shares[topic] = mine

        await for_each(sorted(topics), compute, running_max=TOPICS_AT_ONCE)
        return shares, is_complete

    async def _mine(self, topic: str, members: "_Members") -> list[MessageQueue] | None:
        route = self._instance.routes.get(topic)
        if route is None:
            return []  # the instance fetches the route, and wakes us when it has arrived
        queues = sorted(route.subscribe_queues)
        if not queues or self._strategy is None:
            return queues
        client_ids = await members.at_any(route.brokers)
        if not client_ids:
            return None
        if client_ids.count(self._instance.client_id) > 1:
            self._client_id_duplicated()
        else:
            self._duplicates.end(self._group)
        try:
            with Failures():
                mine = self._strategy.allocate(self._instance.client_id, queues, client_ids)
            return self._readable(topic, mine, queues)
        except Exception as error:  # noqa: BLE001  # a strategy may be application code
            self._strategy_failed(topic, describe(original(error)))
            return None

    def _readable(
        self, topic: str, mine: object, queues: Sequence[MessageQueue]
    ) -> list[MessageQueue]:
        """Return the queues that a strategy chose, except unknown ones.

        Queues of other topics, which Java's fixed list returns too, are ignored without an error.
        Raise InvalidArgument for anything but queues.
        """
        if isinstance(mine, str) or not isinstance(mine, Iterable):
            raise InvalidArgument(f"it must return a list of queues, not {shown(mine)}")
        found = list(dict.fromkeys(mine))
        for queue in found:
            if not isinstance(queue, MessageQueue):
                raise InvalidArgument(
                    f"it must return a list of queues, not one with {shown(queue)}"
                )
        known = set(queues)
        unknown = [queue for queue in found if queue.topic == topic and queue not in known]
        if unknown:
            self._strategy_failed(
                topic, f"{len(unknown)} of its queues cannot be read, such as {unknown[0]}"
            )
        return [queue for queue in found if queue in known]

    def _client_id_duplicated(self) -> None:
        """Warn that members with the same client id compute the same share of the queues.

        The warning waits for the next regular round: when this member has reconnected, the broker
        may not have closed its old connection yet.

        Compatibility: the share is computed as in Java, which does not warn.
        """
        if not self._duplicates.is_due(self._group, after_ms=self._interval_ms):
            return
        self._instance.log.warning(
            "client_id.duplicated",
            group=self._group,
            client_id=self._instance.client_id,
            advice="another member of the group has the same client id: both receive the messages "
            "of the same queues, and some queues are not consumed. Give each process an "
            "instance_name of its own; after a lost connection, the old one counts as a member for "
            "up to two minutes",
        )

    def _strategy_failed(self, topic: str, error: str) -> None:
        self._instance.log.error("strategy.failed", group=self._group, topic=topic, error=error)

    async def _members(self, broker_name: str) -> list[str]:
        """Fetch the members of the group; if the broker does not know us yet, send a heartbeat
        first.

        Raise AccessDenied if the broker refuses the heartbeat, because the broker then knows no
        member of the group, and its answer to the query would be misleading.
        """
        instance = self._instance
        _, address = instance.routes.brokers.any_of(broker_name)
        try:
            return await self._ask_members(broker_name)
        except AccessDenied:
            raise
        except ServerError:
            await instance.heartbeats.send()
            if (refusal := instance.heartbeats.refusals.get(address)) is not None:
                raise refusal from None
            return await self._ask_members(broker_name)

    async def _ask_members(self, broker_name: str) -> list[str]:
        ids = await BrokerConsumers.of(self._instance, broker_name).consumer_ids(self._group)
        if len(ids) > MEMBERS_MAX:
            raise RemoteProtocolError(
                f"broker {broker_name} answers that the group {self._group} has {len(ids):,}"
                f" members, more than {MEMBERS_MAX:,}: check this broker"
            )
        return sorted(ids)


class _Members:
    """The members of the group as each broker knows them, asked once per round of rebalancing."""

    def __init__(self, ask: Callable[[str], Awaitable[list[str]]]) -> None:
        self._ask = ask
        self._locks: dict[str, asyncio.Lock] = {}
        self._found: dict[str, list[str] | CometError] = {}

    async def at_any(self, broker_names: Collection[str]) -> list[str]:
        """Return the sorted ids of the clients that at least one broker knows.

        A broker that does not answer is passed over, because all brokers know the same members; if
        none answers, raise the error of the last one.
        """
        names = sorted(broker_names)
        *others, last = random.sample(names, len(names))  # spreads load
        for broker_name in others:
            with suppress(TransportError):
                return await self.at(broker_name)
        return await self.at(last)

    async def at(self, broker_name: str) -> list[str]:
        """Return the sorted client ids that a broker knows, or raise its first error."""
        async with self._locks.setdefault(broker_name, asyncio.Lock()):
            if broker_name not in self._found:
                try:
                    self._found[broker_name] = await self._ask(broker_name)
                except CometError as error:
                    self._found[broker_name] = error
        found = self._found[broker_name]
        if isinstance(found, CometError):
            raise found
        return found
