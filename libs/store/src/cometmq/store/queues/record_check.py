# SPDX-License-Identifier: Apache-2.0
"""Check that the record at an entry's offset is the message that the entry stands for.

An entry that changed on the disk may point into the middle of a record, or at a record of another
queue. A record holds its own size, queue id, queue offset, physical offset and topic, which are
compared.

Hot path: `matching` runs once per pull, its loop once per message (budget 0.5 us,
bench/micro/bench_consume_queue.py).
"""

import struct
from collections.abc import Iterable
from typing import Final, TypeAlias

from cometmq.remoting.message.record_layout import (
    FIXED,
    FIXED_V4,
    HOST_MASK,
    MAGIC_V1,
    MAGIC_V2,
)
from cometmq.remoting.types import Buffer

Place: TypeAlias = tuple[int, int, int, int]
"""Size, queue id, queue offset and physical offset, in the order of a record's fields."""

HEAD_BYTES: Final = 36
"""The bytes of a record that hold its place."""

_place: Final = struct.Struct(">i8xi4xqq").unpack_from
_fields: Final = struct.Struct(">i8xi4xqq48xi").unpack_from  # the place, and the body's length
_queue_offset: Final = struct.Struct(">q").unpack_from
_int: Final = struct.Struct(">i").unpack_from
_short: Final = struct.Struct(">h").unpack_from
_V4_BYTES: Final = FIXED_V4.size


def topic_field(topic: str) -> bytes:
    """Return the field of a record that holds its topic, in the usual encoding.

    The bytes of a topic that is not valid UTF-8 are unknown; the empty field fits every record.
    """
    if "\ufffd" in topic:
        return b""
    name = topic.encode("utf-8", "surrogateescape")
    return bytes((len(name) & 0xFF,)) + name


def matching(data: Buffer, start: int, places: Iterable[Place], topic: bytes) -> list[memoryview]:
    """Return the records at these places of a span that begins at `start`.

    A record that does not match its entry is left out, because clients must not receive damaged
    parts of the log, or messages of other queues. `topic` is the queue's `topic_field`.
    """
    # Comparing a part of a memoryview takes twice as long.
    text = data if isinstance(data, bytes | bytearray) else bytes(data)
    view, found, starts_with = memoryview(text), [], text.startswith
    for place in places:
        begin = place[3] - start
        size, queue_id, queue_offset, offset, body_bytes = _fields(text, begin)
        if (size, queue_id, queue_offset, offset) != place:
            continue
        record = view[begin : begin + size]
        if starts_with(topic, begin + _V4_BYTES + body_bytes) or has_topic(record, topic):
            found.append(record)
    return found


def matching_places(data: Buffer, start: int, places: Iterable[Place]) -> list[memoryview]:
    """Do as `matching`, for entries that this process has made: their records have the right topic.

    Comparing the topic would make a pull of 32 messages 3 us slower.
    """
    view = memoryview(data)
    return [
        view[begin : begin + place[0]]
        for place in places
        if _place(view, begin := place[3] - start) == place
    ]


def queue_offset_of(record: Buffer) -> int:
    """Return the queue offset that a record names."""
    return int(_queue_offset(record, 20)[0])


def is_at(head: memoryview, place: Place) -> bool:
    """Return whether a record's first bytes name this place."""
    return len(head) >= HEAD_BYTES and _place(head) == place


def place_at(head: Buffer) -> Place | None:
    """Read the place of a record from its first bytes; None if no record begins with them."""
    if len(head) < HEAD_BYTES or _int(head, 4)[0] not in (MAGIC_V1, MAGIC_V2):
        return None
    size, queue_id, queue_offset, offset = _place(head)
    return size, queue_id, queue_offset, offset


def body_end(head: Buffer) -> int | None:
    """Return where the body of a record ends, counted from its start; None if its first bytes do
    not tell.
    """
    start = FIXED[head[39] & HOST_MASK].size
    body_bytes = _int(head, start - 4)[0] if len(head) >= start else -1
    return None if body_bytes < 0 else start + body_bytes


def topic_at(head: Buffer, rest: Buffer) -> str:
    """Return the topic of a record, from its first bytes and those after its body; empty if there
    are too few.
    """
    if len(rest) < 2:
        return ""
    is_long = _int(head, 4)[0] == MAGIC_V2
    start, count = (2, _short(rest)[0]) if is_long else (1, rest[0])
    return str(rest[start : max(start, start + count)], "utf-8", "replace")


def has_topic(record: memoryview, topic: bytes) -> bool:
    """Return whether a record has the topic in this `topic_field`, with a length of one or two
    bytes.
    """
    try:
        start = FIXED[record[39] & HOST_MASK].size
        at = start + _int(record, start - 4)[0]
        if at < start:
            return False
        if _int(record, 4)[0] != MAGIC_V2:
            return record[at : at + len(topic)] == topic
        name = topic[1:]
        return _short(record, at)[0] == len(name) and record[at + 2 : at + 2 + len(name)] == name
    except (IndexError, struct.error):
        return False
