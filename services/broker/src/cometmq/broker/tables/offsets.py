# SPDX-License-Identifier: Apache-2.0
"""Committed offsets: the position from which each consumer group continues in each queue.

Every offset enters the table through `valid`, whether it comes from a request, a pull, another
group, the file, the journal or another broker: what the table holds, every code may answer.

Compatibility: RocketMQ stores any offset without checking the group, topic or queue, and the last
value wins, even if it is lower than the one before. So an offset outside its queue is stored here,
too: a program may commit one before the messages arrive. RocketMQ also stores negative offsets, but
reads them as "never committed"; here they remove the group's offset. The table has a bound, so that
clients cannot exhaust memory.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from types import MappingProxyType
from typing import Final, TypeAlias

import msgspec

from cometmq.broker.tables.large_json import encode_large
from cometmq.remoting.bodies.dialect import decode_json, encode_json
from cometmq.remoting.errors import SystemBusy
from cometmq.runtime.incremental import Steps
from cometmq.store.json_config import JsonTable

KEY_SEPARATOR: Final = "@"  # neither a topic nor a group name may contain it

PIECE_COUNT_MAX: Final = 32_768  # offsets in a piece of changes: less than 1 MB beside the names
PIECE_CHARS_MAX: Final = 1 << 20  # of all names in it

COUNT_MAX: Final = 2_000_000
"""Maximum number of offsets, over all groups and queues: about 600 MB with their names."""

NO_NAMES: Final[frozenset[str]] = frozenset()
NO_QUEUES: Final[Mapping[int, int]] = MappingProxyType({})

OffsetTable: TypeAlias = dict[str, dict[int, int]]
OffsetChanges: TypeAlias = dict[str, dict[int, int | None]]
"""`topic@group` -> queue -> next queue offset; None means that it was removed."""

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
    def __init__(self, file: JsonTable[OffsetFile] | None = None) -> None:
        loaded = file.load() if file is not None else None
        self.file = file
        self.table: OffsetTable = _valid_table(loaded.offset_table if loaded is not None else {})
        self.is_dirty = False
        self.noted: Callable[[], None] | None = None
        self._noted: OffsetChanges = {}
        self._count = sum(map(len, self.table.values()))
        self._topics: dict[str, set[str]] = {}
        self._groups: dict[str, set[str]] = {}
        for key in self.table:
            self._list(key)

    def committed(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the group's next queue offset; None if it never committed one."""
        queues = self.table.get(f"{topic}{KEY_SEPARATOR}{group}")
        return None if queues is None else queues.get(queue_id)

    def has_room(self, count: int) -> bool:
        """Return whether this number of commits is certain to stay within the bound."""
        return self._count + count <= COUNT_MAX

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Set the group's next queue offset; a negative one removes it.

        Raise SystemBusy if a new entry would exceed the bound.
        """
        key = f"{topic}{KEY_SEPARATOR}{group}"
        queues = self.table.get(key)
        if queues is not None and queues.get(queue_id) == offset:
            return  # members commit every 5 s: without traffic there is nothing to save
        if offset < 0:
            self._remove(key, queue_id)
            return
        if queues is None or queue_id not in queues:
            if self._count >= COUNT_MAX:
                raise SystemBusy(f"the broker stores at most {COUNT_MAX} offsets")
            self._count += 1
            if queues is None:
                queues = self.table[key] = {}
                self._list(key)
        queues[queue_id] = offset
        self.is_dirty = True
        if self.noted is not None:
            self._note(key, queue_id, offset)

    def _remove(self, key: str, queue_id: int) -> None:
        queues = self.table.get(key)
        if queues is None or queues.pop(queue_id, None) is None:
            return
        self._count -= 1
        self.is_dirty = True
        if self.noted is not None:
            self._note(key, queue_id, None)
        if not queues:
            del self.table[key]
            self._unlist(key)

    def _note(self, key: str, queue_id: int, offset: int | None) -> None:
        noted = self._noted.get(key)
        if noted is not None:
            noted[queue_id] = offset
            return
        if not self._noted and self.noted is not None:
            self.noted()
        self._noted[key] = {queue_id: offset}

    def overwrite(self, table: OffsetTable) -> None:
        """Copy the offsets from another table; leave the groups and topics that it lacks
        unchanged.
        """
        for key, queues in _valid_table(table).items():
            known = self.table.get(key)
            if known == queues:
                continue
            count = self._count + len(queues) - len(known or ())
            if count > COUNT_MAX:
                raise SystemBusy(f"the broker stores at most {COUNT_MAX} offsets")
            self._count = count
            self._set(key, queues)

    def queues(self, group: str, topic: str) -> Mapping[int, int]:
        """Return the group's offsets in the topic, as queue -> offset."""
        return self.table.get(f"{topic}{KEY_SEPARATOR}{group}", NO_QUEUES)

    def groups(self) -> AbstractSet[str]:
        """Return the groups that have offsets in any topic."""
        return self._topics.keys()

    def topics_of(self, group: str) -> AbstractSet[str]:
        return self._topics.get(group, NO_NAMES)

    def groups_of(self, topic: str) -> AbstractSet[str]:
        return self._groups.get(topic, NO_NAMES)

    def clone(self, source: str, target: str, topic: str) -> None:
        """Replace a group's offsets in a topic with another group's, if that group has any."""
        offsets = self.queues(source, topic)
        if not offsets:
            return
        count = self._count + len(offsets) - len(self.queues(target, topic))
        if count > COUNT_MAX:
            raise SystemBusy(f"the broker stores at most {COUNT_MAX} offsets")
        self._count = count
        self._set(f"{topic}{KEY_SEPARATOR}{target}", offsets)

    def _set(self, key: str, offsets: Mapping[int, int]) -> None:
        """Replace a group's offsets in a topic; the caller has already counted them."""
        self._note_removed(key)
        self.table[key] = dict(offsets)
        self._list(key)
        self.is_dirty = True
        if self.noted is not None:
            for queue_id, offset in offsets.items():
                self._note(key, queue_id, offset)

    def _note_removed(self, key: str) -> None:
        if self.noted is not None:
            for queue_id in self.table.get(key, NO_QUEUES):
                self._note(key, queue_id, None)

    def drop_group(self, group: str) -> None:
        for topic in self._topics.pop(group, NO_NAMES):
            key = f"{topic}{KEY_SEPARATOR}{group}"
            self._note_removed(key)
            self._count -= len(self.table.pop(key))
            self._groups[topic].discard(group)
            if not self._groups[topic]:
                del self._groups[topic]
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
                self._list(key)
            self._count -= len(queues)
            for queue_id, asked in offsets.items():
                offset = valid(asked)
                if offset is None:
                    queues.pop(queue_id, None)
                else:
                    queues[queue_id] = offset
            self._count += len(queues)
            if not queues:
                del self.table[key]
                self._unlist(key)
        self.is_dirty = True

    def become(self, pieces: Sequence[msgspec.Raw]) -> None:
        """Replace all offsets with those in another broker's `whole`; note the differences."""
        table: OffsetTable = {}
        for piece in pieces:
            table |= _valid_table(_TABLE_DECODER.decode(piece))
        count = sum(map(len, table.values()))
        if count > COUNT_MAX:
            raise SystemBusy(f"the broker stores at most {COUNT_MAX} offsets, not {count}")
        for key in self.table.keys() - table.keys():
            self._note_removed(key)
            self._count -= len(self.table.pop(key))
            self._unlist(key)
            self.is_dirty = True
        self.overwrite(table)

    def encode(self) -> Steps[bytes]:
        """Return the content of the file, which is also the answer to code 43."""
        return encode_large(OffsetFile(), self.table, len)

    def encode_for_file(self) -> Steps[bytes]:
        """Clear `is_dirty` and return the content of the file; set `is_dirty` again if encoding
        does not complete.
        """
        self.is_dirty = False
        is_whole = False
        try:
            data = yield from self.encode()
            is_whole = True
            return data
        finally:
            if not is_whole:
                self.is_dirty = True

    def _list(self, key: str) -> None:
        """Index a key by group and topic; a file may contain malformed keys."""
        names = key.split(KEY_SEPARATOR)
        if len(names) == 2:
            topic, group = names
            self._topics.setdefault(group, set()).add(topic)
            self._groups.setdefault(topic, set()).add(group)

    def _unlist(self, key: str) -> None:
        names = key.split(KEY_SEPARATOR)
        if len(names) == 2:
            topic, group = names
            for index, name, other in (
                (self._topics, group, topic),
                (self._groups, topic, group),
            ):
                index[name].discard(other)
                if not index[name]:
                    del index[name]


def _valid_table(table: OffsetTable) -> OffsetTable:
    """Remove offsets that mean nothing is committed, as a Java broker's table may contain."""
    found = {
        key: {queue: offset for queue, offset in queues.items() if valid(offset) is not None}
        for key, queues in table.items()
    }
    return {key: queues for key, queues in found.items() if queues}


def _pieces(offsets: Iterable[tuple[str, Mapping[int, int | None]]]) -> Iterator[bytes]:
    """Yield the JSON of offsets in pieces of bounded size; yield nothing if there are no
    offsets.
    """
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
    return JsonTable(path, decode=_decode, encode=encode_json)


def _decode(data: bytes) -> OffsetFile:
    return decode_json(OffsetFile, data)
