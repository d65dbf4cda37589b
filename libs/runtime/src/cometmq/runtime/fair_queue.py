# SPDX-License-Identifier: Apache-2.0
"""A queue that serves its keys in turn, so that the items of one key do not delay another key's."""

from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class FairQueue(Generic[T]):
    """Items by hashable key: first in, first out for each key, round robin among the keys.

    The room is divided by dynamic thresholds (Choudhury and Hahne, 1998): a key may hold as many
    items as there are free places. A single key thus gets half of the room, two keys a third each,
    and some room is always left for a new key.
    """

    __slots__ = ("_count", "_items", "_room")

    def __init__(self, room: int) -> None:
        assert room > 1
        self._room = room
        self._count = 0
        self._items: dict[object, deque[T]] = {}  # the key to serve next is the first

    def __len__(self) -> int:
        return self._count

    def put(self, key: object, item: T) -> bool:
        """Append an item; return False, with nothing changed, if the key has no room."""
        items = self._items.get(key)
        if (0 if items is None else len(items)) >= self._room - self._count:
            return False
        if items is None:
            items = self._items[key] = deque()
        items.append(item)
        self._count += 1
        return True

    def pop(self) -> T:
        """Remove and return the next item; raise IndexError if there is none."""
        if not self._items:
            raise IndexError("the queue is empty")
        key = next(iter(self._items))
        items = self._items.pop(key)
        item = items.popleft()
        self._count -= 1
        if items:
            self._items[key] = items  # behind all others
        return item

    def take(self, key: object) -> deque[T]:
        """Remove and return all items of a key."""
        items = self._items.pop(key, deque())
        self._count -= len(items)
        return items
