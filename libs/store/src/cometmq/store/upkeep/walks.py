# SPDX-License-Identifier: Apache-2.0
"""The walks that compare entries of queues and index with the log, at an even rate.

Readers do not notice all damage: one that filters by tag skips an entry with a different tag code
without looking at the record. The scrubber therefore walks through the records of the sealed log
and compares the size and the tag code of their entries; `EntryRepair` rebuilds the suspects. It
ignores entries that refer to another physical offset: readers notice damage to these, and the
queues of a topic that was deleted and created again refer to later records of the same names.

The walk through the index compares its entries with their records (`index_check.py`). A walk takes
as many rounds of the scrubber as it needs.
"""

from collections.abc import Callable
from copy import copy
from itertools import islice
from typing import Final

from cometmq.remoting.message.record import Scan
from cometmq.store.errors import DiskError
from cometmq.store.log.file_sequence import FileSequence
from cometmq.store.log.log_scanner import records_in
from cometmq.store.parts import Parts, no_pause
from cometmq.store.queues.consume_queue import ConsumeQueue
from cometmq.store.queues.queue_files import ENTRY, FILLER_SIZE
from cometmq.store.queues.queue_table import QueueTable
from cometmq.store.upkeep.index_rebuild import IndexRepair
from cometmq.store.upkeep.jobs import Job, with_result
from cometmq.store.upkeep.sealer import Sealer
from cometmq.store.writing.append import UNQUEUED
from cometmq.store.writing.dispatcher import tag_and_keys

READ_BYTES: Final = 256 << 10
"""The size of the first read of a step; later ones are larger. One of 4 MiB would mostly be wasted.
"""

RECORDS_PER_PAUSE: Final = 64
"""A walk pauses after this number of records, which take 0.4 ms; see `Parts.pause`."""

BLOCK_BYTES: Final = 200 * ENTRY.size
BLOCKS_MAX: Final = 1_000
"""Maximum number of blocks of entries that a step keeps in memory, one for each queue."""

SUSPECTS_MAX: Final = 1_000
"""Maximum number of suspects that a step returns; the next round finds the others."""

_EXTENDED_TAG_END: Final = -(1 << 31)
"""Smaller tag codes are addresses of extended entries, which no filter skips."""

Suspects = dict[ConsumeQueue, list[int]]


def fits_tags(queue: ConsumeQueue, code: int, properties: bytes) -> bool:
    """Return whether an entry's tag code belongs to a record with these properties.

    Always true in the queues of delay levels: their entries hold delivery times, which depend on
    earlier settings.
    """
    if queue.delay_ms is not None or code < _EXTENDED_TAG_END:
        return True
    return code == tag_and_keys(properties)[0]


class EntryWalk:
    """The walk through one store's log; only one thread at a time uses it."""

    def __init__(self, pause: Callable[[], None] = no_pause) -> None:
        self._pause = pause
        self._offset = 0
        self.has_ended = True
        """Whether the entries of all records before the end have been compared."""

    def begin(self, offset: int) -> None:
        """Begin with the first record at or after an offset of the log."""
        self._offset, self.has_ended = offset, False

    def step(self, files: FileSequence, queues: QueueTable, end: int, count_max: int) -> Suspects:
        """Compare up to `count_max` entries of records before `end`; return those that differ.
        Blocks.
        """
        suspects, entries = Suspects(), _Entries()
        records = records_in(files, self._offset, end, first_bytes=READ_BYTES)
        count = 0
        for count, scan in enumerate(islice(records, count_max), 1):
            self._offset = scan.physical_offset + scan.size
            if count % RECORDS_PER_PAUSE == 0:
                self._pause()
            queue = _queue_of_wrong(queues, scan, entries)
            if queue is not None and sum(map(len, suspects.values())) < SUSPECTS_MAX:
                suspects.setdefault(queue, []).append(scan.queue_offset)
        self.has_ended = count < count_max or self._offset >= end
        return suspects


class _Entries:
    """Reads queue entries from files that the loop may delete at the same time.

    Entries are read in blocks, because after each read the thread has to wait for the interpreter
    lock, and then the loop for the thread.
    """

    def __init__(self) -> None:
        self._blocks: dict[ConsumeQueue, tuple[int, bytes]] = {}

    def at(self, queue: ConsumeQueue, queue_offset: int) -> tuple[int, int, int] | None:
        """Return an entry; None if it cannot be read."""
        position = queue_offset * ENTRY.size
        begin, data = self._blocks.get(queue, (0, b""))
        if not begin <= position <= begin + len(data) - ENTRY.size:
            if len(self._blocks) >= BLOCKS_MAX:
                self._blocks.clear()
            begin, data = self._blocks[queue] = position, _block(queue, position)
        at = position - begin
        return ENTRY.unpack_from(data, at) if at + ENTRY.size <= len(data) else None


def _block(queue: ConsumeQueue, position: int) -> bytes:
    """Return the bytes of entries from a position; nothing if they cannot be read."""
    files = queue.files
    first, known = files.first, files.files
    index, in_file = divmod(position - first, files.file_size)
    if not 0 <= index < len(known):
        return b""
    try:
        return known[index].read(in_file, min(BLOCK_BYTES, files.file_size - in_file))
    except DiskError:
        return b""


def _queue_of_wrong(queues: QueueTable, scan: Scan, entries: _Entries) -> ConsumeQueue | None:
    """Return the queue of a record whose entry has another size or tag code."""
    queue = None if scan.sys_flag & UNQUEUED else queues.get(scan.topic, scan.queue_id)
    entry = None if queue is None else entries.at(queue, scan.queue_offset)
    if queue is None or entry is None:
        return None
    physical_offset, size, code = entry
    if physical_offset != scan.physical_offset or size in {0, FILLER_SIZE}:
        return None
    is_right = size == scan.size and fits_tags(queue, code, scan.properties)
    return None if is_right else queue


ENTRIES_PER_S: Final = 1_000
"""The rate of each walk. An entry takes 5 to 6 us (bench/micro/bench_index_check.py), so both walks
together take 1 to 2 % of one core.
"""
STEP_ENTRIES_MIN: Final = 1_000
STEP_ENTRIES_MAX: Final = 4_000


class Walks:
    """The walks through one store, for the thread that owns the store."""

    def __init__(self, parts: Parts, sealer: Sealer) -> None:
        self._parts = parts
        self._sealer = sealer
        self._queues = EntryWalk(parts.pause)
        self._end = 0
        self._last_ms: int | None = None
        self.index = IndexRepair(parts)
        self.on_suspects: Callable[[Suspects], None] = lambda _found: None
        """Receives entries of queues that do not fit their records."""

    def begin(self, offset: int, end: int) -> None:
        """Begin the walks that have ended; that of the queues begins at an offset of the log.

        Both end at `end`: a walk that also compared all new entries would never end.
        """
        self._end = end
        if self._queues.has_ended:
            self._queues.begin(offset)
        if self.index.has_ended:
            self.index.begin()

    def step(self, now_ms: int) -> Job | None:
        """Return the next step; None if the walks have ended, or until it is due."""
        if self._queues.has_ended and self.index.has_ended:
            self._last_ms = None
            return None
        if self._last_ms is None or now_ms < self._last_ms:
            self._last_ms = now_ms
        count = (now_ms - self._last_ms) * ENTRIES_PER_S // 1000
        if count < STEP_ENTRIES_MIN:
            return None
        self._last_ms = now_ms
        count = min(count, STEP_ENTRIES_MAX)
        end = min(self._end, self._sealer.offset)
        parts = self._parts
        index = self.index.step(end, count)
        files, queues = copy(parts.commit_log.files), parts.queues

        def compare() -> Suspects:
            found = self._queues.step(files, queues, end, count)
            index.run()
            return found

        def take(found: Suspects | None, error: Exception | None) -> None:
            index.done(error)
            self.on_suspects(found or {})

        return with_result("compare-entries", compare, take)
