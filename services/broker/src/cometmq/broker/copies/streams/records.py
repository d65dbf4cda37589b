# SPDX-License-Identifier: Apache-2.0
"""Record boundaries in a stream of log bytes (pure).

A RocketMQ master cuts the log anywhere to send it. But a log that ends inside a record cannot be
told from a log that has diverged, so a CometMQ slave appends only whole records, and a CometMQ
master ends its transfers at record boundaries. The header of each record contains its physical
offset, so reading one header after another also shows that the bytes belong at this offset.
"""

import struct
from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

from cometmq.broker.copies.unfit import Unfit, UnfitLog
from cometmq.remoting.message.record_layout import (
    BLANK_BYTES_MIN,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
)
from cometmq.remoting.types import Buffer

_HEAD: Final = struct.Struct(">ii20xq")  # size, magic, physical offset
_SIZE_MAGIC: Final = struct.Struct(">ii")
_MAGICS: Final = frozenset({MAGIC_V1, MAGIC_V2})

HEAD_BYTES: Final = _HEAD.size


class Cut(NamedTuple):
    whole_bytes: int  # of the records at its beginning
    next_size: int  # of the record after them; 0 if its header is incomplete


def whole_records(data: Buffer, offset: int, file_size: int, bytes_max: int) -> Cut:
    """Return the size of the whole records at the start of `data`, which begins at this log offset.

    Include the first one even above `bytes_max`. Raise UnfitLog where no record begins.
    """
    cursor, end = 0, len(data)
    while end - cursor >= BLANK_BYTES_MIN:
        size, magic = _SIZE_MAGIC.unpack_from(data, cursor)
        place = offset + cursor
        file_left = file_size - place % file_size
        if magic in _MAGICS:
            if end - cursor < HEAD_BYTES:
                break
            if _HEAD.unpack_from(data, cursor)[2] != place or size < RECORD_BYTES_MIN:
                raise _not_a_record(place)
            if size > file_left - BLANK_BYTES_MIN:
                raise _other_file_size(place, file_size)
        elif magic != MAGIC_BLANK:
            raise _not_a_record(place)
        elif size != file_left:
            raise _other_file_size(place, file_size)
        if size > end - cursor or (cursor and cursor + size > bytes_max):
            return Cut(cursor, size)
        cursor += size
    return Cut(cursor, 0)


def is_border(head: Buffer, offset: int, file_size: int) -> bool:
    """Return whether a record begins at an offset; `head` holds its next `HEAD_BYTES` bytes."""
    try:
        cut = whole_records(head, offset, file_size, 0)
    except UnfitLog:
        return False
    return cut.whole_bytes > 0 or cut.next_size > 0


FollowHeaders: TypeAlias = Callable[[bytes, int, int, int], tuple[int, int] | None]
"""A native `whole_records`: returns the fields of a `Cut`, or None if Python must decide."""


class RecordStream:
    __slots__ = ("_count", "_file_size", "_follow", "_parts", "_record_bytes_max", "_wanted", "end")

    def __init__(
        self,
        end: int,
        *,
        file_size: int,
        record_bytes_max: int,
        follow: FollowHeaders | None = None,
    ) -> None:
        """Expect bytes from `end`; buffer at most one record. `follow` is tried first."""
        self._follow = follow
        self.end = end  # of everything received, records and their beginnings
        self._file_size = file_size
        self._record_bytes_max = record_bytes_max
        self._parts: list[Buffer] = []
        self._count = 0
        self._wanted = BLANK_BYTES_MIN

    @property
    def held_bytes(self) -> int:
        return self._count

    def feed(self, *pieces: Buffer) -> Buffer:
        """Return the newly completed records, joined; raise UnfitLog if the bytes are none."""
        size = sum(map(len, pieces))
        self._parts += pieces
        self._count += size
        self.end += size
        if self._count < self._wanted:
            return b""
        joined = b"".join(self._parts)
        cut = self._cut(joined, self.end - self._count)
        # Only a blank may be longer, as it fills its file, and a file of the right size has room.
        if cut.next_size > self._record_bytes_max and not self._is_blank(joined, cut):
            raise UnfitLog(
                Unfit.RECORD_TOO_LARGE,
                f"the record at offset {self.end - self._count + cut.whole_bytes} has"
                f" {cut.next_size} bytes; this broker takes {self._record_bytes_max}",
            )
        whole = memoryview(joined)[: cut.whole_bytes]
        rest = joined[cut.whole_bytes :]
        self._parts = [rest] if rest else []
        self._count = len(rest)
        self._wanted = cut.next_size or (HEAD_BYTES if len(rest) >= BLANK_BYTES_MIN else 8)
        return whole

    def _cut(self, joined: bytes, offset: int) -> Cut:
        if self._follow is not None:
            found = self._follow(joined, offset, self._file_size, len(joined))
            if found is not None:
                return Cut._make(found)
        return whole_records(joined, offset, self._file_size, len(joined))

    @staticmethod
    def _is_blank(data: bytes, cut: Cut) -> bool:
        return bool(_SIZE_MAGIC.unpack_from(data, cut.whole_bytes)[1] == MAGIC_BLANK)


def _not_a_record(place: int) -> UnfitLog:
    return UnfitLog(Unfit.NOT_A_RECORD, f"no record begins at offset {place} of the master's log")


def _other_file_size(place: int, file_size: int) -> UnfitLog:
    return UnfitLog(
        Unfit.FILE_SIZE,
        f"offset {place} of the master's log contradicts mappedFileSizeCommitLog={file_size}",
    )
