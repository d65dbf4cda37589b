# SPDX-License-Identifier: Apache-2.0
"""Append bytes of another broker's log at the end of this one, and dispatch their records.

The bytes arrive in pieces of any size, so the log may end inside a record. The confirm offset
remains at the end of the last whole record, and a restart truncates the rest. In a broker group,
the master announces the offset up to which records are confirmed; later records remain in the log
without being dispatched.

A truncation may remove the mark of a deleted topic (`writing/marks.py`) or of a trimmed
queue, for example if this broker was the master and no other copy got the mark. The messages then
exist again, and the topic's queues are rebuilt from the whole log.
"""

import errno
from collections.abc import Collection

from cometmq.remoting.types import Buffer
from cometmq.store.errors import DiskError, StoreError
from cometmq.store.log.log_scanner import LogScanner
from cometmq.store.parts import Parts
from cometmq.store.publishing import Publisher
from cometmq.store.recovery.replay import Spills
from cometmq.store.upkeep.checkpointer import Checkpointer
from cometmq.store.upkeep.flush import Flusher
from cometmq.store.upkeep.housekeeping import Housekeeping
from cometmq.store.upkeep.scrubber import Scrubber
from cometmq.store.upkeep.sealer import Sealer
from cometmq.store.writing.dispatcher import Dispatcher
from cometmq.store.writing.write_state import Refusal


class Replica:
    """Appends and truncates replicated bytes."""

    def __init__(
        self,
        parts: Parts,
        *,
        flusher: Flusher,
        checkpointer: Checkpointer,
        housekeeping: Housekeeping,
        publisher: Publisher,
        sealer: Sealer,
        scrubber: Scrubber,
    ) -> None:
        self._parts = parts
        self._housekeeping = housekeeping
        self._commit_log = parts.commit_log
        self._checksums = parts.checksums
        self._queues = parts.queues
        self._deletions = parts.deletions
        self._index = parts.index
        self._flusher = flusher
        self._checkpointer = checkpointer
        self._publisher = publisher
        self._sealer = sealer
        self._scrubber = scrubber

    def append(self, offset: int, data: Buffer) -> None:
        """Append bytes of the master's log exactly at the end of this log.

        Whole records become visible once they are confirmed. If a write fails, raise DiskError; the
        bytes written before it, which end at a file boundary, remain in the log.
        """
        if self._parts.write_state.has(Refusal.LOG_WRITE_FAILED):  # the probe would overwrite them
            raise DiskError("write", self._parts.layout.commit_log, errno.EAGAIN)
        self._publisher.drop()
        try:
            self._write(offset, data)
        finally:
            # If the bytes span two files and the second cannot be created, only the first part is
            # written. A slave follows its master only while all records in its log are visible.
            self._publisher.dispatch()

    def _write(self, offset: int, data: Buffer) -> None:
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

    def truncate(self, offset: int, now_ms: int) -> None:
        """Truncate log, queues and index at a record boundary."""
        log = self._commit_log
        visible = min(log.confirm_offset, offset)
        floors = self._queues.floors
        restored = self._deletions.beyond(offset) | floors.beyond(offset)
        self._housekeeping.cleaner.remove_at_end()  # a checkpoint may create the same files
        self._checkpointer.save_all(now_ms)
        self._checksums.truncate(log.files, offset)  # ends repairs that write to the index
        for queue in self._queues.queues.values():
            queue.recover(log.min_offset, offset, keeps_fillers=False)
        self._index.recover(name="", written_count=0, offset_end=offset)
        # The progress moves back before the log does, because a log that ends before its progress
        # counts as having lost synced records.
        self._checkpointer.note_truncated(min(self._checkpointer.dispatched_offset, offset))
        floors.undo(offset)
        self._rebuild(restored)
        self._checkpointer.save_all(now_ms)
        log.truncate(offset)
        self._deletions.undo(offset)
        log.confirm_offset = visible
        self._flusher.note_truncated(offset)
        self._sealer.note_truncated(offset)
        self._scrubber.note_truncated(offset)

    def restore_topics(self, now_ms: int) -> None:
        """At the start, rebuild the queues of topics whose mark the log has lost."""
        end, floors = self._commit_log.end, self._queues.floors
        topics = self._deletions.beyond(end) | floors.beyond(end)
        if topics:
            floors.undo(end)
            self._rebuild(topics)
            self._checkpointer.save_all(now_ms)
            self._deletions.undo(end)

    def _rebuild(self, topics: Collection[str]) -> None:
        """Build all queues of these topics again, as far as records are visible; blocks."""
        if not topics:
            return
        log, checkpointer = self._commit_log, self._checkpointer
        self._parts.log.warning("topics.restored", count=len(topics), first=min(topics))
        for topic in topics:
            self._remove(topic)

        def delete(topic: str, _end: int) -> None:
            if topic in topics:
                self._remove(topic)

        dispatcher = Dispatcher(
            table=self._queues,
            is_indexing=False,
            only=topics,
            on_deletion=delete,
            read_range=self._parts.read_range,
        )
        spills = Spills(dispatcher, checkpointer.unsaved, self._parts.disk)
        end = checkpointer.dispatched_offset
        scanner = LogScanner(log.files, log.min_offset, check_crc=False, end=end, take=spills.taker)
        for scan in scanner:
            dispatcher.dispatch(scan, is_from_head=True)
            spills.advance()
        spills.publish()
        checkpointer.note_dispatched((), end, 0, 0)

    def _remove(self, topic: str) -> None:
        for queue in self._queues.of_topic(topic):
            self._checkpointer.forget(queue)
        for path in self._queues.remove_topic(topic):
            self._parts.disk.remove_tree(path)
