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

import struct
from bisect import bisect_left
from typing import Final, NamedTuple

from cometmq.remoting.types import Buffer
from cometmq.store.disk import DiskFile, Piece, write_in_turn
from cometmq.store.log.file_sequence import FileSequence
from cometmq.store.queues.record_check import topic_field
from cometmq.store.reads import Lookup, Read
from cometmq.store.settings import CQ_ENTRY_BYTES

ENTRY: Final = struct.Struct(">qiq")
FILLER_SIZE: Final = 0x7FFFFFFF
FILLER: Final = ENTRY.pack(0, FILLER_SIZE, 0)
_BLOCK_COUNT: Final = 200  # below this, reading all is cheaper than further bisection

_pack = ENTRY.pack


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
        """Return the entries; None if reading would block and `may_block` is false."""
        if not self.pieces:
            return self.tail
        parts: list[Buffer] = []
        for file, position, count in self.pieces:
            if may_block:
                parts.append(file.read(position, count))
                continue
            part = file.read_cached(position, count)
            if part is None:
                return None
            parts.append(part)
        if len(parts) == 1 and not self.tail:
            return parts[0]
        return b"".join((*parts, self.tail))

    def entries(self) -> Lookup[bytes]:
        """Find the bytes of the entries; an incomplete last entry is left out."""
        parts: list[Buffer] = []
        for file, position, count in self.pieces:
            part = yield Read(file, position, count)
            parts.append(part)
        data = b"".join((*parts, self.tail))
        return data[: len(data) - len(data) % CQ_ENTRY_BYTES]


def _counts(entry: tuple[int, int, int], log_end: int) -> bool:
    return entry[1] > 0 and 0 <= entry[0] < log_end


def _count_in(file: DiskFile, per_file: int, log_end: int) -> int:
    low, high = 0, min(per_file, -(-file.data_end() // CQ_ENTRY_BYTES))
    while high - low > _BLOCK_COUNT:
        middle = (low + high) // 2
        data = file.read(middle * CQ_ENTRY_BYTES, CQ_ENTRY_BYTES).ljust(CQ_ENTRY_BYTES, b"\0")
        if _counts(ENTRY.unpack(data), log_end):
            low = middle + 1
        else:
            high = middle
    data = file.read(low * CQ_ENTRY_BYTES, (high - low) * CQ_ENTRY_BYTES)
    for entry in ENTRY.iter_unpack(data[: len(data) - len(data) % CQ_ENTRY_BYTES]):
        if not _counts(entry, log_end):
            break
        low += 1
    return low


class ConsumeQueue:
    """The consume queue of one topic and queue id."""

    __slots__ = (
        "_held",
        "_staged",
        "_tail",
        "delay_ms",
        "files",
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
        self, topic: str, queue_id: int, files: FileSequence, delay_ms: int | None = None
    ) -> None:
        self.topic = topic
        self.topic_field = topic_field(topic)
        self.queue_id = queue_id
        self.files = files
        self.delay_ms = delay_ms
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

        Return whether this is the first entry staged since the last publish. Entries of delayed
        messages hold the delivery time instead of the tag code.
        """
        staged = self._staged
        is_first = not staged
        if not isinstance(staged, bytearray):
            staged = self._staged = bytearray(staged)
        # RocketMQ delivers by this time and keeps the tag code in the record's properties.
        if self.delay_ms is not None:
            tag_code = store_timestamp + self.delay_ms
        staged += _pack(physical_offset, size, tag_code)
        self.next_offset += 1
        return is_first

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
        """Make the staged entries visible; nothing is held."""
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

    def last_entry(self) -> QueueEntry | None:
        """Return the newest entry; None if the queue is empty."""
        if self.max_offset <= self.min_offset:
            return None
        return self.entry(self.max_offset - 1)

    def entry(self, queue_offset: int) -> QueueEntry | None:
        """Return one entry; None for a filler entry or an offset outside the queue."""
        if not self.min_offset <= queue_offset < self.max_offset:
            return None
        data = self.plan(queue_offset, 1).read(may_block=True)
        if data is None or len(data) < CQ_ENTRY_BYTES:
            return None
        entry = QueueEntry(*ENTRY.unpack(data))
        return None if entry.size in {0, FILLER_SIZE} else entry

    def read_entries(self, queue_offset: int, count: int) -> list[tuple[int, int, int]]:
        """Return up to `count` raw entries, starting at this offset; may block."""
        if not self.min_offset <= queue_offset < self.max_offset:
            return []
        data = self.plan(queue_offset, count).read(may_block=True) or b""
        whole = len(data) - len(data) % CQ_ENTRY_BYTES
        return list(ENTRY.iter_unpack(memoryview(data)[:whole]))

    def plan(self, queue_offset: int, count: int) -> QueuePlan:
        """Locate up to `count` entries, starting at this offset."""
        end = min(queue_offset + count, self.max_offset)
        written = self.written_offset
        if queue_offset >= written:
            start = (queue_offset - written) * CQ_ENTRY_BYTES
            return QueuePlan((), bytes(self._tail[start : (end - written) * CQ_ENTRY_BYTES]))
        tail = bytes(self._tail[: max(0, end - written) * CQ_ENTRY_BYTES])
        return QueuePlan(self._pieces(queue_offset, min(end, written)), tail)

    def _pieces(self, start: int, end: int) -> tuple[tuple[DiskFile, int, int], ...]:
        files, file_size = self.files, self.files.file_size
        position = max(start * CQ_ENTRY_BYTES, files.first) - files.first
        stop = end * CQ_ENTRY_BYTES - files.first
        index, in_file = divmod(position, file_size)
        if index < len(files.files) and position < stop <= position - in_file + file_size:
            return ((files.files[index], in_file, stop - position),)  # the usual case
        stop = min(stop, len(files.files) * file_size)
        pieces = []
        while position < stop:
            index, in_file = divmod(position, file_size)
            count = min(stop - position, file_size - in_file)
            pieces.append((files.files[index], in_file, count))
            position += count
        return tuple(pieces)

    def place_in_files(self, queue_offset: int) -> tuple[DiskFile, int]:
        """Return the file of a written entry, and the entry's position in it."""
        ((file, position, _),) = self._pieces(queue_offset, queue_offset + 1)
        return file, position

    def unwritten(self) -> bytes:
        """Return a copy of the entries that exist only in memory, for `pieces`."""
        return bytes(self._tail)

    def pieces(self, queue_offset: int, entries: bytes) -> list[Piece]:
        """Return where to write entries, creating the files they need; may run on a worker
        thread.
        """
        files, position = self.files, queue_offset * CQ_ENTRY_BYTES
        self._make_first_file(position)
        in_file = (position - files.first) % files.file_size
        if position < files.end and in_file + len(entries) <= files.file_size:
            return [(files.file_at(position), in_file, entries)]  # the usual case
        found, start = [], 0
        while start < len(entries):
            if position >= files.end:
                files.create_next()
            in_file = (position - files.first) % files.file_size
            part = entries[start : start + files.file_size - in_file]
            found.append((files.file_at(position), in_file, part))
            position += len(part)
            start += len(part)
        return found

    def mark_written(self, queue_offset: int) -> None:
        """Release the entries before this offset, which are now in the files."""
        count = queue_offset - self.written_offset
        if count > 0:
            del self._tail[: count * CQ_ENTRY_BYTES]

    def write_tail(self) -> None:
        """Write the entries that exist only in memory; blocks."""
        if self._tail:
            write_in_turn(self.pieces(self.written_offset, bytes(self._tail)))
            self._tail = bytearray()

    def _make_first_file(self, position: int) -> None:
        """Create the first file when the first entry arrives, with fillers before that entry.

        Compatibility: RocketMQ fills the start of such a file with the same fillers.
        """
        files = self.files
        if files.files:
            return
        files.begin_at(position - position % files.file_size)
        file = files.create_next()
        missing = (position - files.first) // CQ_ENTRY_BYTES
        if missing:
            file.write(0, [FILLER * missing])

    def skip_to(self, queue_offset: int) -> None:
        """Continue an empty queue at this offset after the start of the log was lost."""
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

        If the log was cut, the last fillers do not stay: their records may come again.
        """
        files = self.files
        files.pad_last()
        self.measure(log_first, log_end)
        if not keeps_fillers:
            end = self.max_offset
            while end > self.min_offset and self._file_entry(end - 1)[1] == FILLER_SIZE:
                end -= 1
            self.max_offset = self.next_offset = self.loaded_end = end
        position = self.max_offset * CQ_ENTRY_BYTES
        if files.has_data_from(position):
            files.clear_from(position)

    def measure(self, log_first: int, log_end: int) -> None:
        """Find the entries that point into the given range of the log; change no file.

        Valid entries come first, in log order; all entries after them are zero or point past the
        log's end. Bisection therefore finds the last valid entry in every state that a crash can
        leave.
        """
        files = self.files
        per_file = files.file_size // CQ_ENTRY_BYTES
        first = end = files.first // CQ_ENTRY_BYTES
        low, high = 0, len(files.files)  # number of files whose first entry is valid
        while low < high:
            middle = (low + high) // 2
            if _counts(self._file_entry(first + middle * per_file), log_end):
                low = middle + 1
            else:
                high = middle
        if low:
            end = first + (low - 1) * per_file + _count_in(files.files[low - 1], per_file, log_end)
        self._held = b""
        self._tail.clear()
        self.max_offset = self.next_offset = self.loaded_end = end
        self.min_offset = first
        self.min_offset = self.first_at(log_first)

    def first_at(self, log_first: int) -> int:
        """Return the first offset whose record is still in the log, looking only at the files."""
        low, high = self.min_offset, self.written_offset
        middle = low  # usually nothing has expired
        while low < high:
            offset, size, _ = self._file_entry(middle)
            if size == FILLER_SIZE or offset < log_first:
                low = middle + 1
            else:
                high = middle
            middle = (low + high) // 2
        return low

    def offsets_between(self, start: int, end: int) -> range:
        """Return the offsets whose records overlap a range of the log.

        Like `first_at`, this reads only files, so it may run on a worker thread.
        """
        low, stop = self.first_at(start), self.written_offset
        if low > self.min_offset:
            offset, size, _ = self._file_entry(low - 1)
            if size != FILLER_SIZE and offset + size > start:
                low -= 1
        high = low
        while high < stop and self._file_entry(high)[0] < end:
            high += 1
        return range(low, high)

    def unwritten_between(self, start: int, end: int) -> range:
        """Return the offsets of entries in memory whose records overlap a range of the log."""
        found = [
            queue_offset
            for queue_offset, (offset, size, _) in enumerate(
                ENTRY.iter_unpack(bytes(self._tail)), self.written_offset
            )
            if offset < end and offset + size > start and size != FILLER_SIZE
        ]
        return range(found[0], found[-1] + 1) if found else range(0)

    def trim(self, queue_offset: int) -> list[str]:
        """Set the first offset; return the paths of the files before it."""
        self.min_offset = max(self.min_offset, queue_offset)
        files = self.files
        return files.forget_first(
            (self.min_offset * CQ_ENTRY_BYTES - files.first) // files.file_size
        )

    def trim_tail(self, log_first: int) -> None:
        """Skip the entries in memory whose records are no longer in the log.

        Files of the log may be deleted before a checkpoint writes the entries that point into
        them, and `first_at` looks only at files.
        """
        tail, written = self._tail, self.written_offset
        if self.min_offset < written:
            return

        def is_in_log(queue_offset: int) -> bool:
            entry = ENTRY.unpack_from(tail, (queue_offset - written) * CQ_ENTRY_BYTES)
            return bool(entry[1] != FILLER_SIZE and entry[0] >= log_first)

        self.min_offset += bisect_left(range(self.min_offset, self.max_offset), True, key=is_in_log)

    def _file_entry(self, queue_offset: int) -> tuple[int, int, int]:
        files = self.files
        position = queue_offset * CQ_ENTRY_BYTES
        file = files.file_at(position)
        data = file.read((position - files.first) % files.file_size, CQ_ENTRY_BYTES)
        return ENTRY.unpack(data.ljust(CQ_ENTRY_BYTES, b"\0"))  # a short last file ends in zeros

    def truncate(self, queue_offset: int) -> None:
        """Truncate the queue at this offset; zero the rest of its file."""
        assert not self._staged
        self.life += 1
        self.write_tail()
        if self.files.files:
            self.files.clear_from(max(queue_offset * CQ_ENTRY_BYTES, self.files.first))
        self.max_offset = self.next_offset = queue_offset
        self.min_offset = min(self.min_offset, queue_offset)
