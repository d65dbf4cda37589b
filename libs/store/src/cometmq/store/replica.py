# SPDX-License-Identifier: Apache-2.0
"""Append bytes of another broker's log at the end of this one, and dispatch their records.

The bytes arrive in pieces of any size, so the log may end inside a record. The confirm offset
remains at the end of the last whole record, and a restart truncates the rest. In a broker group,
the master announces the offset up to which records are confirmed; later records remain in the log
without being dispatched.
"""

from cometmq.remoting.types import Buffer
from cometmq.store.errors import StoreError
from cometmq.store.log.log_scanner import LogScanner
from cometmq.store.parts import Parts
from cometmq.store.queues.consume_queue import ConsumeQueue
from cometmq.store.upkeep.checkpointer import Checkpointer
from cometmq.store.upkeep.flush import Flusher
from cometmq.store.writing.dispatcher import Dispatcher


class Replica:
    """Appends and truncates replicated bytes."""

    __slots__ = ("_checkpointer", "_checksums", "_commit_log", "_deletions", "_dispatcher",
                 "_flusher", "_index", "_queues")  # fmt: skip

    def __init__(self, parts: Parts, *, flusher: Flusher, checkpointer: Checkpointer) -> None:
        self._commit_log = parts.commit_log
        self._checksums = parts.checksums
        self._queues = parts.queues
        self._deletions = parts.deletions
        self._index = parts.index
        self._flusher = flusher
        self._checkpointer = checkpointer
        is_indexing = parts.settings.message_index_enable
        self._dispatcher = Dispatcher(
            parts.queues,
            is_indexing=is_indexing,
            may_begin_again=True,
            read_range=parts.read_range,
        )

    def append(self, offset: int, data: Buffer) -> None:
        """Append bytes without making them visible."""
        log = self._commit_log
        # An empty slave may start in the middle of the master's log, whose head has expired.
        if not log.files.files and not log.end:
            log.files.begin_at(offset - offset % log.files.file_size)
            log.set_end(offset)
            self._checkpointer.dispatched_offset = offset
        if offset != log.end:
            raise StoreError(f"cannot append bytes of offset {offset}: the log ends at {log.end}")
        view = memoryview(data)
        while view:
            left = log.files.file_size - (log.end - log.files.first) % log.files.file_size
            part = view[:left]
            log.write(log.end, [part])
            log.advance(log.end + len(part))
            view = view[len(part) :]

    def dispatch(self, limit: int | None) -> set[ConsumeQueue]:
        """Make whole records up to `limit` visible; return the queues that got messages."""
        log, dispatcher = self._commit_log, self._dispatcher
        dispatcher.keyed = []  # a failed dispatch is repeated, with its keys
        count = dispatcher.record_count
        start = self._checkpointer.dispatched_offset
        end = log.end if limit is None else min(limit, log.end)
        if start >= end:
            return set()
        # Only zeros follow the end; reading them would take as long as everything else.
        scanner = LogScanner(log.files, start, check_crc=False, end=end, take=dispatcher.taker)
        for scan in scanner:
            # All earlier records were dispatched. If a queue still lacks entries, their records
            # were never in this log, which may begin later than its queues.
            dispatcher.dispatch(scan, is_from_head=True)
        reached = scanner.offset
        touched = set(dispatcher.touched)
        log.confirm(reached)
        dispatcher.publish()
        keyed, dispatcher.keyed = dispatcher.keyed, []
        timestamp = dispatcher.store_timestamp
        self._checkpointer.note_dispatched(
            touched, reached, timestamp, dispatcher.record_count - count
        )
        self._index.remember(keyed)
        return touched

    def truncate(self, offset: int, now_ms: int) -> None:
        """Truncate log, queues and index at a record boundary."""
        log = self._commit_log
        visible = min(log.confirm_offset, offset)
        self._checkpointer.save_all(now_ms)
        for queue in self._queues.queues.values():
            queue.recover(log.min_offset, offset, keeps_fillers=False)
        self._index.recover(name="", written_count=0, offset_end=offset)
        self._checksums.truncate(log.files, offset)
        # The progress moves back before the log does, because a log that ends before its progress
        # counts as having lost synced records.
        self._checkpointer.note_truncated(min(self._checkpointer.dispatched_offset, offset))
        self._checkpointer.save_all(now_ms)
        log.truncate(offset)
        self._deletions.clip(offset)
        log.confirm_offset = visible
        self._flusher.note_truncated(offset)
