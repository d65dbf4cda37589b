# SPDX-License-Identifier: Apache-2.0
"""A queue whose owners take turns, so that the items of one owner do not delay another's."""

from collections import deque
from collections.abc import Callable
from typing import Final, Generic, NamedTuple, TypeVar

T = TypeVar("T")

UNLIMITED: Final = 1 << 62
"""The room of a queue whose users bound its items themselves."""


class Requester(NamedTuple):
    """The owner of an item, such as an account or an address, and its connection; both hashable.

    Owners take turns, and the connections of one owner take the owner's turns in rotation.

    If connections alone took turns, an owner could get more turns by opening more connections.
    """

    owner: object
    connection: object = None


class FairQueue(Generic[T]):
    """Items by requester: first in, first out for each connection, round robin among the
    connections of an owner, and among the owners.

    The room is divided by dynamic thresholds (Choudhury and Hahne, 1998): an owner may hold as many
    items as there are free places. A single owner thus gets half of the room, two owners a third
    each, and some room is always left for a new owner. A connection may hold as many items as its
    owner may still add, so that some room is left for the owner's other connections.
    """

    __slots__ = ("_count", "_owners", "_room")

    def __init__(self, room: int = UNLIMITED) -> None:
        assert room > 1
        self._room = room
        self._count = 0
        self._owners: dict[object, _Items[T]] = {}  # the owner to serve next is the first

    def __len__(self) -> int:
        return self._count

    def put(self, requester: Requester, item: T, *, is_first: bool = False) -> bool:
        """Append an item; return False, with nothing changed, if the requester has no room.

        With `is_first`, it is put before the other items of its connection, not behind them.
        """
        owner, connection = requester
        items = self._owners.get(owner)
        left = self._room - self._count - (0 if items is None else items.count)
        if left <= 0:
            return False
        if items is None:
            items = self._owners[owner] = _Items()
        queue = items.queues.get(connection)
        if queue is None:
            queue = items.queues[connection] = deque()
        elif connection is not None and len(queue) >= left:
            return False
        if is_first:
            queue.appendleft(item)
        else:
            queue.append(item)
        items.count += 1
        self._count += 1
        return True

    def pop(self) -> T:
        """Remove and return the next item; raise IndexError if there is none."""
        if not self._owners:
            raise IndexError("the queue is empty")
        owner = next(iter(self._owners))
        items = self._owners.pop(owner)
        connection = next(iter(items.queues))
        queue = items.queues.pop(connection)
        item = queue.popleft()
        items.count -= 1
        self._count -= 1
        if queue:
            items.queues[connection] = queue  # behind all others
        if items.queues:
            self._owners[owner] = items
        return item

    def discard_first(self, requester: Requester, is_over: Callable[[T], bool]) -> None:
        """Remove a requester's items that are over, up to the first that is not."""
        items = self._owners.get(requester.owner)
        queue = None if items is None else items.queues.get(requester.connection)
        if items is None or queue is None:
            return
        while queue and is_over(queue[0]):
            queue.popleft()
            items.count -= 1
            self._count -= 1
        if not queue:
            del items.queues[requester.connection]
        if not items.queues:
            del self._owners[requester.owner]

    def take(self, connection: object) -> list[T]:
        """Remove and return all items of a connection; usually, it has only one owner."""
        taken: list[T] = []
        for owner in [it for it, items in self._owners.items() if connection in items.queues]:
            taken += self.take_of(Requester(owner, connection))
        return taken

    def take_of(self, requester: Requester) -> list[T]:
        """Remove and return all items of a requester."""
        owner, connection = requester
        items = self._owners.get(owner)
        if items is None or connection not in items.queues:
            return []
        queue = items.queues.pop(connection)
        items.count -= len(queue)
        self._count -= len(queue)
        if not items.queues:
            del self._owners[owner]
        return list(queue)


class _Items(Generic[T]):
    """The items of one owner."""

    __slots__ = ("count", "queues")

    def __init__(self) -> None:
        self.count = 0
        self.queues: dict[object, deque[T]] = {}  # the connection to serve next is the first
