# SPDX-License-Identifier: Apache-2.0
"""Committed offsets: the position from which each consumer group continues in each queue.

`valid` checks every offset before it is added to the table, from whatever source,
so answers need no checks of their own.

Compatibility: as in RocketMQ, the last committed value counts, even if it is lower than the one
before or outside its queue: a program may commit an offset before the messages arrive. RocketMQ
also stores negative offsets, and reads them as "never committed"; here they remove the group's
offset. Unlike in RocketMQ, the table has a bound, so that clients cannot exhaust memory.
"""

import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from types import MappingProxyType
from typing import Final, TypeAlias

import msgspec

from cometmq.broker.limits import GROUP_OFFSETS, OFFSETS, UNKNOWN_OFFSETS, Room
from cometmq.broker.names import TOPIC_CHARS_MAX, check_group
from cometmq.broker.tables.persistence import clean_after
from cometmq.broker.tables.subscription_groups import Groups
from cometmq.broker.tables.topics import Topics
from cometmq.remoting import remarks
from cometmq.remoting.bodies.dialect import decode_file, encode_json
from cometmq.remoting.bodies.large import encode_with_table
from cometmq.remoting.errors import ServerError, SystemBusy
from cometmq.remoting.names import is_system_group
from cometmq.runtime.incremental import Steps
from cometmq.store.json_config import JsonTable


class UnknownOffsets:
    """Offsets whose group or queue did not exist at their commit; `check` bounds them."""

    def __init__(self, topics: Topics, groups: Groups) -> None:
        self._topics = topics
        self._groups = groups
        self._found: set[tuple[str, int]] = set()  # key and queue
        self._recounted_as_of: object = None

    def __len__(self) -> int:
        return len(self._found)

    def is_known(self, group: str, topic: str, queue_id: int) -> bool:
        """Return whether a group, and a queue of a topic, exist."""
        config = self._topics.get(topic)
        if config is None or not (group in self._groups.table or is_system_group(group)):
            return False
        return 0 <= queue_id < max(config.read_queue_nums, config.write_queue_nums)

    def _is_known(self, key: str, queue_id: int) -> bool:
        topic, _, group = key.partition(KEY_SEPARATOR)
        return self.is_known(group, topic, queue_id)

    def find(self, table: Mapping[str, Mapping[int, int]]) -> None:
        """Find the unknown offsets in a loaded table."""
        for key, queues in table.items():
            self._found.update(
                (key, queue_id) for queue_id in queues if not self._is_known(key, queue_id)
            )

    def check(self, room: Room) -> None:
        """Raise LimitReached if there is no room for another unknown offset."""
        if len(self._found) >= room.limits.maximum(UNKNOWN_OFFSETS):
            self._recount()
        room.admit(UNKNOWN_OFFSETS, len(self._found))

    def _recount(self) -> None:
        """Remove the offsets whose group, topic and queue exist by now."""
        version = (self._topics.version, self._groups.version)
        if version != self._recounted_as_of:
            self._recounted_as_of = version
            self._found = {found for found in self._found if not self._is_known(*found)}

    def add(self, group: str, topic: str, queue_id: int) -> None:
        self._found.add((f"{topic}{KEY_SEPARATOR}{group}", queue_id))

    def discard(self, key: str, queue_id: int) -> None:
        self._found.discard((key, queue_id))


KEY_SEPARATOR: Final = "@"  # neither a topic nor a group name may contain it

NO_NAMES: Final[frozenset[str]] = frozenset()


class OffsetIndex:
    """Counts the offsets of queues by group and topic."""

    __slots__ = ("_group_counts", "_groups", "_topics", "count")

    def __init__(self) -> None:
        self.count = 0
        self._group_counts: defaultdict[str, int] = defaultdict(int)
        self._topics: defaultdict[str, dict[str, int]] = defaultdict(dict)
        """Group -> topic -> number of entries."""
        self._groups: defaultdict[str, set[str]] = defaultdict(set)

    def add(self, key: str, count: int) -> None:
        """Count entries that were added, or removed if the number is negative."""
        self.count += count
        topic, separator, group = key.partition(KEY_SEPARATOR)
        if not count or not separator or KEY_SEPARATOR in group:
            return  # a file may contain malformed keys
        self._group_counts[group] += count
        topics = self._topics[group]
        topics[topic] = topics.get(topic, 0) + count
        self._groups[topic].add(group)
        if topics[topic]:
            return
        del topics[topic]
        if not topics:
            del self._topics[group], self._group_counts[group]
        self._groups[topic].discard(group)
        if not self._groups[topic]:
            del self._groups[topic]

    def count_of(self, group: str) -> int:
        return self._group_counts.get(group, 0)

    def groups(self) -> AbstractSet[str]:
        """Return the groups that have offsets in any topic."""
        return self._topics.keys()

    def topics_of(self, group: str) -> AbstractSet[str]:
        topics = self._topics.get(group)
        return NO_NAMES if topics is None else topics.keys()

    def groups_of(self, topic: str) -> AbstractSet[str]:
        return self._groups.get(topic, NO_NAMES)


PIECE_COUNT_MAX: Final = 32_768  # offsets in a piece of changes: less than 1 MB beside the names
PIECE_CHARS_MAX: Final = 1 << 20  # of all names in it

NO_QUEUES: Final[Mapping[int, int]] = MappingProxyType({})

OffsetTable: TypeAlias = dict[str, dict[int, int]]
OffsetChanges: TypeAlias = dict[str, dict[int, int | None]]
"""`topic@group` -> queue -> next queue offset; None means that it was removed."""

COPIED_MAX: Final = 10_000_000
"""Maximum number of offsets that a slave copies from its master, whatever its own setting is."""
OFFSET_MAX: Final = (1 << 63) - 1  # of Java's long

_CHANGES_DECODER: Final = msgspec.json.Decoder(OffsetChanges)
_TABLE_DECODER: Final = msgspec.json.Decoder(OffsetTable)


def valid(offset: int | None) -> int | None:
    """Return the offset as the table stores it; None if it means that nothing is committed."""
    return offset if offset is not None and 0 <= offset <= OFFSET_MAX else None


class OffsetFile(msgspec.Struct, rename="camel"):
    """The content of consumerOffset.json: `topic@group` -> queue -> next queue offset."""

    offset_table: OffsetTable = {}


class Offsets:
    def __init__(
        self, file: JsonTable[OffsetFile] | None = None, unknown: UnknownOffsets | None = None
    ) -> None:
        loaded = file.load() if file is not None else None
        self.file = file
        self.table: OffsetTable = _valid_table(loaded.offset_table if loaded is not None else {})
        self._is_dirty = False
        self.version = 0
        """Increases with each change."""
        self.noted: Callable[[], None] | None = None
        self._noted: OffsetChanges = {}
        self.unknown = unknown
        self.count_max = sys.maxsize
        """Maximum number of entries."""
        self.index = OffsetIndex()
        for key, queues in self.table.items():
            self.index.add(key, len(queues))

    @property
    def is_dirty(self) -> bool:
        """Whether the table has changed since its last save."""
        return self._is_dirty

    @is_dirty.setter
    def is_dirty(self, value: bool) -> None:
        self._is_dirty = value
        self.version += value

    def committed(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the group's next queue offset; None if it never committed one."""
        queues = self.table.get(f"{topic}{KEY_SEPARATOR}{group}")
        return None if queues is None else queues.get(queue_id)

    def has_room(self, count: int) -> bool:
        """Return whether this number of commits is certain to stay within the bound."""
        return self.index.count + count <= self.count_max

    def commit(
        self, group: str, topic: str, queue_id: int, offset: int, room: Room | None = None
    ) -> None:
        """Set the group's next queue offset; a negative one removes it.

        Raise CommandError if there is no `room` for a new entry, or for a change in the journal.
        """
        key = f"{topic}{KEY_SEPARATOR}{group}"
        queues = self.table.get(key)
        if queues is not None and queues.get(queue_id) == offset:
            return  # members commit every 5 s: without traffic there is nothing to save
        if room is not None:
            room.check_journal()
        if offset < 0:
            self._remove(key, queue_id)
            return
        if queues is None or queue_id not in queues:
            if room is not None:
                self._admit(group, topic, queue_id, room)
            self.index.add(key, 1)
            if queues is None:
                queues = self.table[key] = {}
        queues[queue_id] = offset
        self.is_dirty = True
        if self.noted is not None:
            self._note(key, queue_id, offset)

    def commit_pulled(self, commits: Iterable[tuple[str, str, int, int]]) -> None:
        """Commit the offsets of several pulls, each given as the first four arguments of `commit`;
        the caller has checked `has_room`.
        """
        table, is_changed = self.table, False
        for group, topic, queue_id, offset in commits:
            key = f"{topic}{KEY_SEPARATOR}{group}"
            queues = table.get(key)
            if queues is None or queue_id not in queues or offset < 0:
                self.commit(group, topic, queue_id, offset)
            elif queues[queue_id] != offset:
                queues[queue_id] = offset
                is_changed = True
                if self.noted is not None:
                    self._note(key, queue_id, offset)
        if is_changed:
            self._is_dirty = True  # `is_dirty`, without a call
            self.version += 1

    def _admit(self, group: str, topic: str, queue_id: int, room: Room) -> None:
        """Raise CommandError if a new entry has an illegal name, or there is no room for it."""
        check_group(group)
        if not topic or len(topic) > TOPIC_CHARS_MAX or KEY_SEPARATOR in topic:
            raise ServerError(remarks.TOPIC_ILLEGAL)
        room.check(GROUP_OFFSETS, self.index.count_of(group) + 1, f"the group {group}")
        if self.unknown is None or self.unknown.is_known(group, topic, queue_id):
            room.admit(OFFSETS, self.index.count)
            return
        self.unknown.check(room)
        room.admit(OFFSETS, self.index.count)
        self.unknown.add(group, topic, queue_id)

    def _remove(self, key: str, queue_id: int) -> None:
        queues = self.table.get(key)
        if queues is None or queues.pop(queue_id, None) is None:
            return
        self.index.add(key, -1)
        if self.unknown is not None:
            self.unknown.discard(key, queue_id)
        self.is_dirty = True
        if self.noted is not None:
            self._note(key, queue_id, None)
        if not queues:
            del self.table[key]

    def _note(self, key: str, queue_id: int, offset: int | None) -> None:
        noted = self._noted.get(key)
        if noted is not None:
            noted[queue_id] = offset
            return
        if not self._noted and self.noted is not None:
            self.noted()
        self._noted[key] = {queue_id: offset}

    def overwrite(self, table: OffsetTable) -> None:
        """Take over all offsets in `table`; leave other groups and topics unchanged."""
        for key, queues in _valid_table(table).items():
            known = self.table.get(key)
            if known == queues:
                continue
            self._check_copied(len(queues) - len(known or ()))
            self._set(key, queues)

    def queues(self, group: str, topic: str) -> Mapping[int, int]:
        """Return the group's offsets in the topic, as queue -> offset."""
        return self.table.get(f"{topic}{KEY_SEPARATOR}{group}", NO_QUEUES)

    def clone(self, source: str, target: str, topic: str, room: Room | None = None) -> None:
        """Replace a group's offsets in a topic with another group's, if that group has any.

        Raise CommandError if there is no `room` for the new entries.
        """
        offsets = self.queues(source, topic)
        if not offsets:
            return
        known = self.queues(target, topic)
        new = [queue_id for queue_id in offsets if queue_id not in known]
        if room is not None:
            room.check_journal()
            for queue_id in new:  # they count only once all of them are admitted
                self._admit(target, topic, queue_id, room)
        if new and not self.has_room(len(new)):
            raise SystemBusy(f"the broker stores at most {self.count_max} offsets (offsetsMax)")
        self._set(f"{topic}{KEY_SEPARATOR}{target}", offsets)

    def _check_copied(self, more: int) -> None:
        if self.index.count + more > COPIED_MAX:
            raise SystemBusy(f"a copy stores at most {COPIED_MAX} offsets")

    def _set(self, key: str, offsets: Mapping[int, int]) -> None:
        self._note_removed(key)
        self.index.add(key, len(offsets) - len(self.table.get(key, ())))
        self.table[key] = dict(offsets)
        self.is_dirty = True
        if self.noted is not None:
            for queue_id, offset in offsets.items():
                self._note(key, queue_id, offset)

    def _note_removed(self, key: str) -> None:
        if self.noted is not None:
            for queue_id in self.table.get(key, NO_QUEUES):
                self._note(key, queue_id, None)

    def drop_group(self, group: str) -> None:
        for topic in list(self.index.topics_of(group)):
            self._drop(f"{topic}{KEY_SEPARATOR}{group}")

    def _drop(self, key: str) -> None:
        self._note_removed(key)
        self.index.add(key, -len(self.table.pop(key)))
        self.is_dirty = True

    def noted_changes(self) -> list[bytes]:
        """Return the last value of each noted offset, usually in one piece."""
        return list(_pieces(self._noted.items()))

    def whole(self) -> Iterator[bytes]:
        """Yield all offsets, in pieces in the format of `noted_changes`."""
        return _pieces((key, self.table[key]) for key in list(self.table) if key in self.table)

    def forget_noted(self) -> None:
        self._noted = {}

    def apply_changes(self, data: msgspec.Raw) -> None:
        """Apply a piece of `noted_changes` without noting it."""
        for key, offsets in _CHANGES_DECODER.decode(data).items():
            queues = self.table.get(key)
            if queues is None:
                queues = self.table[key] = {}
            before = len(queues)
            for queue_id, asked in offsets.items():
                offset = valid(asked)
                if offset is None:
                    queues.pop(queue_id, None)
                else:
                    queues[queue_id] = offset
            self.index.add(key, len(queues) - before)
            if not queues:
                del self.table[key]
        self.is_dirty = True

    def become(self, pieces: Sequence[msgspec.Raw]) -> None:
        """Replace all offsets with those in another broker's `whole`; note the differences."""
        table: OffsetTable = {}
        for piece in pieces:
            table |= _valid_table(_TABLE_DECODER.decode(piece))
        self._check_copied(sum(map(len, table.values())) - self.index.count)
        for key in self.table.keys() - table.keys():
            self._drop(key)
        self.overwrite(table)

    def encode(self) -> Steps[bytes]:
        """Return the content of the file, which is also the answer to code 43."""
        return encode_with_table(OffsetFile(), self.table, len)

    def encode_for_file(self) -> Steps[bytes]:
        """Clear `is_dirty` and return the content of the file."""
        return clean_after(self, self.encode())


def _valid_table(table: OffsetTable) -> OffsetTable:
    """Remove negative offsets, which mean "never committed" in a Java broker's table."""
    found = {
        key: {queue: offset for queue, offset in queues.items() if valid(offset) is not None}
        for key, queues in table.items()
    }
    return {key: queues for key, queues in found.items() if queues}


def _pieces(offsets: Iterable[tuple[str, Mapping[int, int | None]]]) -> Iterator[bytes]:
    """Yield the JSON of offsets in pieces of bounded size, none without offsets."""
    piece: dict[str, Mapping[int, int | None]] = {}
    count = chars = 0
    for key, queues in offsets:
        if piece and (count + len(queues) > PIECE_COUNT_MAX or chars > PIECE_CHARS_MAX):
            yield msgspec.json.encode(piece)
            piece, count, chars = {}, 0, 0
        piece[key] = queues
        count += len(queues)
        chars += len(key)
    if piece:
        yield msgspec.json.encode(piece)


def offset_file(path: str) -> JsonTable[OffsetFile]:
    return JsonTable(path, decode=partial(decode_file, OffsetFile), encode=encode_json)
