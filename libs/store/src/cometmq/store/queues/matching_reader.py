# SPDX-License-Identifier: Apache-2.0
"""Read the messages of a queue whose records pass a test, such as an SQL filter.

Such a search skips most of the records it examines, so it is a `Lookup`. It requests a few adjacent
records at a time; its caller decides how many reads to perform per turn of the loop, and which
reads wait for the disk. Limits and results follow the rules of `read_queue`. If the caller throws
`Exhausted` into it, it ends after at least one record; the result says where the next search
continues.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Final, NamedTuple, TypeAlias

from cometmq.remoting.message.record_layout import RECORD_BYTES_MIN
from cometmq.remoting.types import Buffer
from cometmq.store.log.commit_log import LogRead, LogView
from cometmq.store.queues.consume_queue import ConsumeQueue
from cometmq.store.queues.queue_files import ENTRY, FILLER_SIZE
from cometmq.store.queues.queue_reader import SCAN_COUNT_MIN, QueueRow, ReadLimits, locate
from cometmq.store.queues.record_check import HEAD_BYTES, is_at, matching
from cometmq.store.reads import PAUSE, Exhausted, Lookup, SomeRead
from cometmq.store.results import GetResult, GetStatus

RecordTest: TypeAlias = Callable[[Buffer], bool | None]
"""Returns whether a record matches; None if the test has paused and must be called again with the
same record.
"""

BLOCK_COUNT_MAX: Final = 16
BLOCK_BYTES_MAX: Final = 64 << 10


class BlockSize(NamedTuple):
    """The maximum count and size of the adjacent records that one read covers; it covers at least
    one. Testing them should take about 20 us.
    """

    count_max: int = BLOCK_COUNT_MAX
    bytes_max: int = BLOCK_BYTES_MAX


WHOLE_BLOCK: Final = BlockSize()
PORTION_BYTES: Final = 64 * ENTRY.size


class _Place(NamedTuple):
    queue: ConsumeQueue
    queue_offset: int
    log: LogView
    limits: ReadLimits
    block: "BlockSize"
    memory_start: int  # records before this offset are assumed to be on disk

    def most(self, offset: int) -> tuple[int, int]:
        """Return the count limit and the byte limit of an answer that continues at this offset."""
        limits = self.limits
        if offset >= self.memory_start:
            return limits.count_max, limits.bytes_max
        return limits.disk_count_max, limits.disk_bytes_max


class _Found:
    __slots__ = (
        "bytes", "damaged", "doubts", "is_paused", "last_offset", "records", "scanned_count",
        "status",
    )  # fmt: skip

    def __init__(self, log_end: int) -> None:
        self.records: list[Buffer] = []
        self.bytes = 0
        self.scanned_count = 0
        self.damaged: list[int] = []
        self.doubts: list[int] = []
        self.is_paused = False
        self.last_offset = log_end
        self.status = GetStatus.NO_MATCHED_MESSAGE

    def is_full(self, size: int, offset: int, place: _Place) -> bool:
        """Return whether the answer has no room for a record of this size."""
        if not self.records:
            return False
        count_max, bytes_max = place.most(offset)
        return len(self.records) >= count_max or self.bytes + size > bytes_max

    def leave_out(self, row: QueueRow, place: _Place) -> None:
        """Note an entry without a readable record."""
        offset, size, _ = row
        if size == FILLER_SIZE:
            return
        is_expired = 0 <= offset < place.log.first and size >= RECORD_BYTES_MIN
        left_out = self.doubts if is_expired and not self.records else self.damaged
        left_out.append(place.queue_offset + self.scanned_count)

    def result(self, place: _Place) -> GetResult:
        status = self.status
        if self.records:
            status = GetStatus.FOUND
        elif self.damaged:
            status = GetStatus.MESSAGE_WAS_REMOVING
        return GetResult(
            status,
            place.queue_offset + self.scanned_count,
            place.queue.min_offset,
            place.queue.max_offset,
            self.records,
            len(self.records),
            self.bytes,
            place.log.end - self.last_offset > place.limits.memory_bytes,
            damaged=self.damaged,
            doubts=self.doubts,
        )


def read_matching(
    queue: ConsumeQueue,
    queue_offset: int,
    log: LogView,
    test: RecordTest,
    limits: ReadLimits,
    block: BlockSize = WHOLE_BLOCK,
) -> Lookup[GetResult]:
    """Find the records from this offset on that pass a test; if none does, return a status with the
    next offset.

    Tests that are slow need a smaller `block`.
    """
    status, next_offset = locate(queue, queue_offset)
    if status is not GetStatus.FOUND:
        return GetResult(status, next_offset, queue.min_offset, queue.max_offset)
    place = _Place(queue, queue_offset, log, limits, block, log.end - limits.memory_bytes)
    found = _Found(log.end)
    scan_count = max(SCAN_COUNT_MIN, limits.count_max)
    data = yield from queue.plan(queue_offset, scan_count).entries()
    for rows in _portions(data):
        has_room = yield from _search(rows, found, place, test)
        if not has_room:
            break
    return found.result(place)


def _portions(data: Buffer) -> Iterator[list[QueueRow]]:
    """Unpack entries in batches, because most reads find enough messages among the first ones."""
    view = memoryview(data)
    for start in range(0, len(view), PORTION_BYTES):
        yield list(ENTRY.iter_unpack(view[start : start + PORTION_BYTES]))


def _search(
    rows: Sequence[QueueRow], found: _Found, place: _Place, test: RecordTest
) -> Lookup[bool]:
    """Test the records of some entries; return False if the answer is full or the search is
    exhausted.
    """
    at = alone_until = 0
    while at < len(rows):
        if found.is_full(rows[at][1], rows[at][0], place):
            return False
        stop = _block(rows, at, place)
        if at < alone_until:
            stop = min(stop, at + 1)
        if rows[at][1] > BLOCK_BYTES_MAX and stop > at:
            is_sized = yield from _is_sized(rows[at], found, place)
            stop = stop if is_sized else at
        if stop == at:  # the record was deleted, or is damaged
            found.leave_out(rows[at], place)
            found.status = GetStatus.MESSAGE_WAS_REMOVING
            found.scanned_count += 1
            at += 1
            continue
        read = _read(rows, at, stop, place.log)
        block = yield from _unless_exhausted(read, found)
        if block is None:
            return False
        if len(block) < read.size and stop > at + 1:
            alone_until = stop  # a part of the block is damaged
            continue
        if not (yield from _test_block(block, rows[at:stop], found, place, test)):
            return False
        at = stop
    return True


def _test_block(
    block: Buffer, rows: Sequence[QueueRow], found: _Found, place: _Place, test: RecordTest
) -> Lookup[bool]:
    """Test the records of a block; return False if the answer is full or the search exhausted."""
    start, at = rows[0][0], 0
    while True:
        at += _take(block, start, rows[at:], found, place, test)
        if at == len(rows):
            return True
        if not found.is_paused or (yield from _unless_exhausted(PAUSE, found)) is None:
            return False


def _unless_exhausted(read: SomeRead, found: _Found) -> Lookup[Buffer | None]:
    """Request bytes; return None if the search is exhausted and has tested at least one record."""
    while True:
        try:
            return (yield read)
        except Exhausted:
            if found.scanned_count:
                return None


def _take(
    block: Buffer,
    start: int,
    rows: Sequence[QueueRow],
    found: _Found,
    place: _Place,
    test: RecordTest,
) -> int:
    """Test the records of a block that begins at `start`; return how many were tested.

    If some are left, the answer is full or the test has paused.
    """
    queue = place.queue
    queue_offset = place.queue_offset + found.scanned_count
    count_max, bytes_max = place.most(rows[0][0])
    records, total, scanned = found.records, found.bytes, 0
    found.is_paused = False
    for offset, size, _ in rows:
        if records and (total + size > bytes_max or len(records) >= count_max):
            break
        wanted = (size, queue.queue_id, queue_offset + scanned, offset)
        scanned += 1
        is_whole = offset - start + size <= len(block)
        matched = matching(block, start, (wanted,), queue.topic_field) if is_whole else ()
        if not matched:
            found.damaged.append(wanted[2])
        elif verdict := test(matched[0]):
            records.append(bytes(matched[0]))  # a view would keep the whole block, up to 64 KiB
            total += size
        elif verdict is None:
            scanned -= 1
            found.is_paused = True
            break
    if scanned:
        found.last_offset = rows[scanned - 1][0]
    found.scanned_count += scanned
    found.bytes = total
    return scanned


def _block(rows: Sequence[QueueRow], start: int, place: _Place) -> int:
    """Return the end of the adjacent records that one read covers; `start` if there are none."""
    log = place.log
    first, size, _ = rows[start]
    if not _is_in(first, size, log) or log.is_damaged(first, size):
        return start
    border = first - (first - log.first) % log.file_size + log.file_size  # the file's end
    border = min(border, first + place.block.bytes_max, log.end)
    if first < place.memory_start:  # other limits apply from there on
        border = min(border, place.memory_start)
    end, stop, may_be_damaged = first + size, start + 1, log.has_damage
    for offset, size, _ in rows[stop : start + place.block.count_max]:
        if offset < end or offset + size > border or size < RECORD_BYTES_MIN:
            break
        if may_be_damaged and log.is_damaged(offset, size):
            break
        end = offset + size
        stop += 1
    return stop


def _is_sized(row: QueueRow, found: _Found, place: _Place) -> Lookup[bool]:
    """Return whether an entry may have the right size; a large one is compared with the record."""
    offset, size, _ = row
    wanted = (size, place.queue.queue_id, place.queue_offset + found.scanned_count, offset)
    while True:
        with suppress(Exhausted):  # the search ends at its next read
            head = yield LogRead(place.log, offset, HEAD_BYTES)
            return is_at(memoryview(head), wanted)


def _is_in(offset: int, size: int, log: LogView) -> bool:
    """Return whether a record of this size may begin here: it must lie in the log, and within one
    file.
    """
    return (
        RECORD_BYTES_MIN <= size <= log.file_size - (offset - log.first) % log.file_size
        and log.first <= offset <= log.end - size
    )


def _read(rows: Sequence[QueueRow], start: int, stop: int, log: LogView) -> LogRead:
    first = rows[start][0]
    return LogRead(log, first, rows[stop - 1][0] + rows[stop - 1][1] - first)
