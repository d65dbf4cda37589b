# SPDX-License-Identifier: Apache-2.0
"""A consume queue: 20-byte entries that locate the messages of one queue in the log.

Layout (docs/protocol/store.md#consume-queue): physical offset int64, record size int32, tag code
int64. Entry n lies at byte n * 20 of the queue.

Invariants: entries [0, max_offset) are visible. The newest of them may exist only in memory, in
`_tail`; the next checkpoint writes them, and recovery can rebuild them from the log. If many of
them accumulate before that, a spill writes them without a sync (`upkeep/checkpointer.py`:
`must_spill`). Entries [max_offset, next_offset) are assigned to records that readers may not see
yet: first the entries in `_held`, whose records are in the log but not confirmed, then the entries
of the next commit.

Hot path: `stage` runs once per message (budget 0.3 us), `publish` once per queue and commit, `plan`
once per pull (bench/micro/bench_consume_queue.py).
"""

from bisect import bisect_left
from typing import Final, NamedTuple

from cometmq.remoting.types import Buffer
from cometmq.store.disk import DiskFile, write_in_turn
from cometmq.store.queues.floors import Floor
from cometmq.store.queues.queue_files import ENTRY, FILLER, FILLER_SIZE, QueueFiles
from cometmq.store.queues.record_check import topic_field
from cometmq.store.reads import Lookup, Read
from cometmq.store.settings import CQ_ENTRY_BYTES

_pack = ENTRY.pack
_TAG_CODE_MAX: Final = (1 << 31) - 1


class QueueEntry(NamedTuple):
    """The location and tag code of one message."""

    physical_offset: int
    size: int
    tag_code: int


class QueuePlan(NamedTuple):
    """The file ranges and the copy of the tail that contain a range of entries.

    This object is immutable, so a worker thread may read it.
    """

    pieces: tuple[tuple[DiskFile, int, int], ...]
    tail: bytes

    def read(self, *, may_block: bool) -> Buffer | None:
        """Return the entries; None if reading would block and `may_block` is false.

        Entries that a file has lost are zeros, which readers report like other damaged ones.
        """
        if not self.pieces:
            return self.tail
        parts: list[Buffer] = []
        for file, position, count in self.pieces:
            part = (file.read if may_block else file.read_cached)(position, count)
            if part is None:
                return None
            parts.append(_padded(part, count))
        if len(parts) == 1 and not self.tail:
            return parts[0]
        return b"".join((*parts, self.tail))

    def entries(self) -> Lookup[bytes]:
        """Do as `read`, as a lookup."""
        parts: list[Buffer] = []
        for file, position, count in self.pieces:
            part = yield Read(file, position, count)
            parts.append(_padded(part, count))
        return b"".join((*parts, self.tail))


def _padded(part: Buffer, count: int) -> Buffer:
    return part if len(part) == count else bytes(part).ljust(count, b"\0")


class ConsumeQueue:
    """The queue of one topic and queue id: assigns offsets, and keeps new entries in memory until a
    checkpoint writes them.
    """

    __slots__ = (
        "_held",
        "_staged",
        "_tail",
        "delay_ms",
        "files",
        "floors",
        "life",
        "loaded_end",
        "max_offset",
        "min_offset",
        "next_offset",
        "queue_id",
        "topic",
        "topic_field",
    )

    def __init__(
        self, topic: str, queue_id: int, files: QueueFiles, delay_ms: int | None = None
    ) -> None:
        self.topic = topic
        self.topic_field = topic_field(topic)
        self.queue_id = queue_id
        self.files = files
        self.delay_ms = delay_ms
        self.floors: tuple[Floor, ...] = ()
        """The offsets below which messages were deleted by trims; entries of these messages may
        remain.
        """
        self.min_offset = 0
        self.max_offset = 0
        self.next_offset = 0
        self.life = 0
        """Changes whenever existing entries may be replaced; caches of entries compare it."""
        self.loaded_end = 0
        """The end of the entries that were in the files when the store was opened."""
        self._tail = bytearray()
        self._staged: Buffer = b""  # a bytearray after `stage`
        self._held: Buffer = b""  # a bytearray while anything is held

    @property
    def written_offset(self) -> int:
        """The offset of the first entry that exists only in memory."""
        return self.max_offset - len(self._tail) // CQ_ENTRY_BYTES

    @property
    def tail_bytes(self) -> int:
        """The size of the entries that exist only in memory."""
        return len(self._tail)

    def stage(self, physical_offset: int, size: int, tag_code: int, store_timestamp: int) -> bool:
        """Assign the next offset to a record that is about to be written.

        Return whether this is the first entry staged since the last publish. See `entry_code` for
        the tag code that the entry gets.
        """
        staged = self._staged
        is_first = not staged
        if not isinstance(staged, bytearray):
            staged = self._staged = bytearray(staged)
        if self.delay_ms is not None:
            tag_code = self.entry_code(tag_code, store_timestamp)
        staged += _pack(physical_offset, size, tag_code)
        self.next_offset += 1
        return is_first

    def entry_code(self, tag_code: int, store_timestamp: int) -> int:
        """Return the value of an entry's tag code field.

        In the queues of delay levels, that is the delivery time, as in RocketMQ: `store_timestamp`
        plus the delay of the level, or `tag_code`, if that is a time and earlier.
        """
        if self.delay_ms is None:
            return tag_code
        due_ms = store_timestamp + self.delay_ms
        return min(due_ms, tag_code) if tag_code > _TAG_CODE_MAX else due_ms

    def stage_run(self, entries: bytes, count: int) -> bool:
        """Assign the next offsets to records that are about to be written.

        `entries` have the encoding that `stage` uses, including delivery times. Return whether
        these are the first entries since the last publish.
        """
        staged = self._staged
        is_first = not staged
        # Usually a commit has one run for a queue, whose bytes need no copy until `publish`.
        self._staged = entries if is_first else bytes(staged) + entries
        self.next_offset += count
        return is_first

    def publish(self) -> None:
        """Make the staged entries visible; must not be called while entries are held."""
        assert not self._held
        self._tail += self._staged
        self._staged = b""
        self.max_offset = self.next_offset

    def hold(self) -> int:
        """Hold back the staged entries of records that are in the log; return their number."""
        staged = self._staged
        count = len(staged) // CQ_ENTRY_BYTES
        if isinstance(self._held, bytearray):
            self._held += staged
        else:
            self._held = bytearray(staged)
        self._staged = b""
        return count

    def publish_held(self, count: int) -> None:
        """Make the oldest held entries visible."""
        held = self._held
        assert isinstance(held, bytearray)
        size = count * CQ_ENTRY_BYTES
        self._tail += held[:size]
        self.max_offset += count
        del held[:size]
        if not held:
            self._held = b""

    def drop_held(self) -> None:
        """Forget the held entries; their records are later dispatched from the log or truncated."""
        assert not self._staged
        self._held = b""
        self.next_offset = self.max_offset

    def newest_tag_code(self, log_offset: int | None) -> int | None:
        """Return the tag code of the only entry from `log_offset` on; None if there are several or
        their number is unknown.
        """
        if log_offset is None:
            return None
        tail = self._tail
        if len(tail) > CQ_ENTRY_BYTES:
            before = ENTRY.unpack_from(tail, len(tail) - 2 * CQ_ENTRY_BYTES)
            if before[0] >= log_offset:
                return None
        code: int = ENTRY.unpack_from(tail, len(tail) - CQ_ENTRY_BYTES)[2]
        return code

    def unstage(self) -> None:
        """Discard the staged entries after their records could not be written."""
        self._staged = b""
        self.next_offset = self.max_offset + len(self._held) // CQ_ENTRY_BYTES

    def plan(self, queue_offset: int, count: int) -> QueuePlan:
        """Locate up to `count` entries, starting at this offset."""
        end = min(queue_offset + count, self.max_offset)
        written = self.written_offset
        if queue_offset >= written:
            start = (queue_offset - written) * CQ_ENTRY_BYTES
            return QueuePlan((), bytes(self._tail[start : (end - written) * CQ_ENTRY_BYTES]))
        tail = bytes(self._tail[: max(0, end - written) * CQ_ENTRY_BYTES])
        return QueuePlan(self.files.pieces(queue_offset, min(end, written)), tail)

    def unwritten(self) -> tuple[int, bytes]:
        """Return the offset of the first entry that exists only in memory, and a copy of all."""
        tail = self._tail
        return self.max_offset - len(tail) // CQ_ENTRY_BYTES, bytes(tail)

    def mark_written(self, queue_offset: int) -> None:
        """Release the entries before this offset, which are now in the files."""
        count = queue_offset - self.written_offset
        if count > 0:
            del self._tail[: count * CQ_ENTRY_BYTES]

    def write_tail(self) -> None:
        """Write the entries that exist only in memory; blocks."""
        if self._tail:
            write_in_turn(self.files.pieces_to_write(self.written_offset, bytes(self._tail)))
            self._tail = bytearray()

    def skip_to(self, queue_offset: int) -> None:
        """Let an empty queue begin at this offset, because the start of the log was lost."""
        assert self.max_offset == self.next_offset == self.min_offset
        self.life += 1
        if self.files.files:
            self.fill_to(queue_offset)
        self.min_offset = self.max_offset = self.next_offset = queue_offset

    def begin_again(self) -> None:
        """Empty the queue and restart at 0, because its topic was deleted and created again."""
        self.life += 1
        self._staged = b""
        self._held = b""
        self._tail.clear()
        self.files.remove_from(self.files.first)
        self.files.first = 0
        self.min_offset = self.max_offset = self.next_offset = 0

    def fill_to(self, queue_offset: int) -> None:
        """Fill a gap left by lost records with filler entries, which every reader skips."""
        assert not self._staged
        self._tail += FILLER * (queue_offset - self.max_offset)
        self.max_offset = self.next_offset = queue_offset

    def recover(self, log_first: int, log_end: int, *, keeps_fillers: bool = True) -> None:
        """Keep the entries that point into the given range of the log; zero the rest.

        Unless `keeps_fillers`, fillers at the end are removed, too: after a truncation of the log,
        their records may be copied again.
        """
        files = self.files
        files.pad_last()
        self.measure(log_first, log_end)
        if not keeps_fillers:
            end = self.max_offset
            while end > self.min_offset and self.files.entry(end - 1)[1] == FILLER_SIZE:
                end -= 1
            self.max_offset = self.next_offset = self.loaded_end = end
        position = self.max_offset * CQ_ENTRY_BYTES
        if files.has_data_from(position):
            files.clear_from(position)

    def measure(self, log_first: int, log_end: int) -> None:
        """Find the entries that point into the given range of the log; change no file."""
        end = self.files.count(log_end)
        self._held = b""
        self._tail.clear()
        self.max_offset = self.next_offset = self.loaded_end = end
        self.min_offset = self.files.first // CQ_ENTRY_BYTES
        self.min_offset = self.first_at(log_first)
        for floor in self.floors:
            self.raise_to(floor)

    def raise_to(self, floor: Floor) -> None:
        """Raise `min_offset` to a floor. Entries of records after the floor's mark are kept,
        because they belong to a later topic of the same name.
        """
        first, end = self.min_offset, min(floor.queue_offset, self.max_offset)
        if first < end:

            def is_behind(queue_offset: int) -> bool:
                ((offset, size, _),) = entries_from(self, queue_offset, 1)
                return bool(size != FILLER_SIZE and offset >= floor.place)

            # If the last one precedes the mark, as usual, all do.
            if is_behind(end - 1):
                end = first + bisect_left(range(first, end), True, key=is_behind)
            self.min_offset = end

    def first_at(self, log_first: int) -> int:
        """Return the first offset whose record is still in the log, looking only at the files.

        An entry that is damaged has expired if the next intact one has.
        """
        low, high = self.min_offset, self.written_offset
        middle = low  # usually nothing has expired
        while low < high:
            nearest, place = self.files.place_from(middle, high)
            if place < log_first:
                low = nearest + 1
            else:
                high = middle
            middle = (low + high) // 2
        return low

    def trim(self, queue_offset: int, log_first: int) -> list[str]:
        """Set the first offset; return the paths of the files before it.

        Files of the log may be deleted before a checkpoint writes the entries that point into
        them, and `first_at` looks only at files. So entries in memory whose records are before
        `log_first` are skipped, too.
        """
        self.min_offset = max(self.min_offset, queue_offset)
        files = self.files
        paths = files.forget_first(
            (self.min_offset * CQ_ENTRY_BYTES - files.first) // files.file_size
        )
        tail, written = self._tail, self.written_offset

        def is_in_log(queue_offset: int) -> bool:
            entry = ENTRY.unpack_from(tail, (queue_offset - written) * CQ_ENTRY_BYTES)
            return bool(entry[1] != FILLER_SIZE and entry[0] >= log_first)

        if self.min_offset >= written:
            in_memory = range(self.min_offset, self.max_offset)
            self.min_offset += bisect_left(in_memory, True, key=is_in_log)
        return paths

    def truncate(self, queue_offset: int) -> None:
        """Truncate the queue at this offset; zero the rest of its file."""
        assert not self._staged
        self.life += 1
        self.write_tail()
        if self.files.files:
            self.files.clear_from(max(queue_offset * CQ_ENTRY_BYTES, self.files.first))
        self.max_offset = self.next_offset = queue_offset
        self.min_offset = min(self.min_offset, queue_offset)


def entries_from(queue: ConsumeQueue, queue_offset: int, count: int) -> list[tuple[int, int, int]]:
    """Return up to `count` raw entries, starting at this offset; may block."""
    if not queue.min_offset <= queue_offset < queue.max_offset:
        return []
    data = queue.plan(queue_offset, count).read(may_block=True) or b""
    return list(ENTRY.iter_unpack(data))


def entry_at(queue: ConsumeQueue, queue_offset: int) -> QueueEntry | None:
    """Return one entry; None for a filler entry or an offset outside the queue; may block."""
    for entry in entries_from(queue, queue_offset, 1):
        if entry[1] not in {0, FILLER_SIZE}:
            return QueueEntry(*entry)
    return None


def last_entry(queue: ConsumeQueue) -> QueueEntry | None:
    """Return the newest visible entry; None if there is none or it is a filler; may block."""
    return entry_at(queue, queue.max_offset - 1)
