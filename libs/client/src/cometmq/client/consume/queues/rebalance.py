# SPDX-License-Identifier: Apache-2.0
"""RocketMQ's allocation strategies, which decide which member owns a queue, as pure functions.

All members of a group must compute the same division, whatever language they are written in, so
each strategy matches Java's exactly. Queues are sorted by (topic, broker name, queue id), and
client ids as strings; a client that is not in the list gets no queues.
"""

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Final, Protocol, TypeVar

from cometmq.client.arguments import whole
from cometmq.remoting.bodies.queues import MessageQueue

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
    """Assigns n queues to c members in contiguous blocks; the first `n mod c` get one more
    queue.
    """

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
