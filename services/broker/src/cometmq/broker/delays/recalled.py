# SPDX-License-Identifier: Apache-2.0
"""Which waiting messages are recalled: they leave their delay level without being delivered.

An entry is a level and a queue offset in it, with the unique key of the message there. After the
end of the log was cut off, another message may be at this offset; it has another key, and is
delivered. Entries are kept until the saved position of the level has passed them.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from cometmq.remoting.message.properties import PropertyKey, timed_ms
from cometmq.remoting.message.record import MessageRecord
from cometmq.remoting.names import SCHEDULE_TOPIC
from cometmq.store.queues.queue_files import ENTRY
from cometmq.store.reader import Reader
from cometmq.store.reads import Lookup

COPIES_MAX: Final = 32
"""Maximum number of messages with one unique key that are examined: a producer that sends a message
again uses the same key.
"""
_FOREVER_MS: Final = (1 << 63) - 1

RecalledTable: TypeAlias = dict[int, dict[int, str]]
"""Level -> queue offset -> unique key; an empty key removes an entry."""


class AlreadyDue(Exception):
    """A message cannot be recalled: it may have been delivered."""


class OnItsWay(Exception):
    """A message cannot be recalled at the moment: it moves to another level."""


class Delayed(NamedTuple):
    """A message in the queue of a delay level, delivered or not."""

    level: int
    queue_offset: int
    due_ms: int
    timed_ms: int | None = None
    """The delivery time of a timed message, of which this is one hop."""


class Recalled:
    """The table of recalled messages."""

    def __init__(self) -> None:
        self._keys: RecalledTable = {}
        self._offsets: dict[int, list[int]] = {}  # of each level, ascending
        self.count = 0
        self.noted: RecalledTable = {}
        """The changes that are not in the journal yet."""
        self._removed: dict[tuple[int, int], Callable[[], None]] = {}  # by level and queue offset

    def key_at(self, level: int, queue_offset: int) -> str | None:
        """Return the unique key of an entry; None if there is no entry at this offset."""
        return self._keys.get(level, {}).get(queue_offset)

    def offsets(self, level: int) -> Sequence[int]:
        """Return the queue offsets of the entries of a level, in ascending order."""
        return self._offsets.get(level, ())

    def first(self, level: int, begin: int) -> int | None:
        """Return the lowest queue offset of an entry at or above `begin`; None if there is none."""
        offsets = self._offsets.get(level)
        if offsets is None:
            return None
        at = bisect_left(offsets, begin)
        return offsets[at] if at < len(offsets) else None

    def put(self, level: int, queue_offset: int, unique_key: str) -> None:
        """Add an entry, or remove it if the key is empty."""
        keys = self._keys.setdefault(level, {})
        offsets = self._offsets.setdefault(level, [])
        if unique_key and queue_offset not in keys:
            insort(offsets, queue_offset)
            self.count += 1
        elif not unique_key and queue_offset in keys:
            offsets.remove(queue_offset)
            self.count -= 1
        if unique_key:
            keys[queue_offset] = unique_key
        else:
            keys.pop(queue_offset, None)
            self._tell(level, queue_offset)
        self._forget_empty(level)

    def when_removed(self, level: int, queue_offset: int, call: Callable[[], None]) -> None:
        """Call a function when an entry is removed, or when this is called again for it."""
        self._tell(level, queue_offset)
        self._removed[level, queue_offset] = call

    def _tell(self, level: int, queue_offset: int) -> None:
        call = self._removed.pop((level, queue_offset), None)
        if call is not None:
            call()

    def note(self, level: int, queue_offset: int, unique_key: str) -> None:
        """Change an entry, and note it for the journal."""
        self.put(level, queue_offset, unique_key)
        self.noted.setdefault(level, {})[queue_offset] = unique_key

    def update(self, table: Mapping[int, Mapping[int, str]]) -> None:
        """Add the entries of a table; an empty key removes an entry."""
        for level, keys in table.items():
            for queue_offset, unique_key in keys.items():
                self.put(level, queue_offset, unique_key)

    def drop_below(self, level: int, offset: int) -> None:
        """Drop the entries that a saved position has passed."""
        offsets = self._offsets.get(level)
        if offsets is None or offsets[0] >= offset:
            return
        end = bisect_left(offsets, offset)
        for passed in offsets[:end]:
            del self._keys[level][passed]
            self._tell(level, passed)
        del offsets[:end]
        self.count -= end
        self._forget_empty(level)

    def _forget_empty(self, level: int) -> None:
        if not self._keys[level]:
            del self._keys[level], self._offsets[level]

    def as_table(self) -> RecalledTable:
        """Return a copy of all entries."""
        return {level: dict(keys) for level, keys in self._keys.items()}

    def changes_to(self, table: Mapping[int, Mapping[int, str]]) -> Sequence[tuple[int, int, str]]:
        """Return the arguments of the calls of `put` that make this table equal to `table`."""
        mine = {(level, at): key for level, keys in self._keys.items() for at, key in keys.items()}
        theirs = {(level, at): key for level, keys in table.items() for at, key in keys.items()}
        gone = [(*place, "") for place in mine.keys() - theirs.keys()]
        return [*gone, *((*it, key) for it, key in theirs.items() if mine.get(it) != key)]


def find_delayed(
    store: Reader,
    topic: str,
    unique_key: str,
    has_time: Callable[[], bool],
    is_past: Callable[[int, int], bool] = lambda _level, _offset: False,
) -> Lookup[list[Delayed] | None]:
    """Return the messages for a topic with this unique key that are in queues of delay levels.

    Return None if there may be further ones: COPIES_MAX were found, or not all messages with the
    key were examined before `has_time` returned False (any message may have this text as a key).
    Hops of timed messages for which `is_past` returns True do not count towards COPIES_MAX.
    """
    places: dict[int, tuple[int, int, int | None]] = {}
    past: set[int] = set()

    def take(record: MessageRecord) -> bool:
        properties = record.properties
        name = properties.get(PropertyKey.UNIQUE_KEY), properties.get(PropertyKey.REAL_TOPIC)
        if name == (unique_key, topic):
            time_ms = timed_ms(properties)
            places[record.physical_offset] = record.queue_id, record.queue_offset, time_ms
            if time_ms is not None and is_past(record.queue_id + 1, record.queue_offset):
                past.add(record.physical_offset)
        return len(places) - len(past) < COPIES_MAX

    is_whole = yield from store.visit(
        SCHEDULE_TOPIC, unique_key, 0, _FOREVER_MS, take, has_time=has_time
    )
    if not is_whole or len(places) - len(past) == COPIES_MAX:
        return None
    found = []
    for record_offset, (queue_id, queue_offset, time_ms) in places.items():
        queue = store.queue(SCHEDULE_TOPIC, queue_id)
        if queue is None:
            continue
        data = yield from queue.plan(queue_offset, 1).entries()
        for physical_offset, _, due_ms in ENTRY.iter_unpack(data):
            if physical_offset == record_offset:
                found.append(Delayed(queue_id + 1, queue_offset, due_ms, time_ms))
    return found
