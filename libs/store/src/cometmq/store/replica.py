# SPDX-License-Identifier: Apache-2.0
"""Append bytes of another broker's log at the end of this one, and dispatch their records.

The bytes arrive in pieces of any size, so the log may end inside a record. The confirm offset
remains at the end of the last whole record, and a restart truncates the rest. In a broker group,
the master announces the offset up to which records are confirmed; later records remain in the log
without being dispatched.

A truncation may cut off the mark of a deleted topic (`writing/deletion_mark.py`), for example if
this broker was the master and no other copy got the mark. The topic then lives on, and its queues
are rebuilt from the whole log.
"""

from collections.abc import Collection

from cometmq.remoting.types import Buffer
from cometmq.store.errors import StoreError
from cometmq.store.log.log_scanner import LogScanner
from cometmq.store.parts import Parts
from cometmq.store.queues.consume_queue import ConsumeQueue
from cometmq.store.upkeep.checkpointer import Checkpointer
from cometmq.store.upkeep.flush import Flusher
from cometmq.store.upkeep.housekeeping import Housekeeping
from cometmq.store.writing.dispatcher import Dispatcher


class Replica:
    """Appends and truncates replicated bytes."""

    __slots__ = ("_checkpointer", "_checksums", "_commit_log", "_deletions", "_dispatcher",
                 "_flusher", "_housekeeping", "_index", "_parts", "_queues")  # fmt: skip

    def __init__(
        self,
        parts: Parts,
        *,
        flusher: Flusher,
        checkpointer: Checkpointer,
        housekeeping: Housekeeping,
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
        is_indexing = parts.settings.message_index_enable
        self._dispatcher = Dispatcher(
            parts.queues,
            is_indexing=is_indexing,
            on_deletion=housekeeping.delete_topic,
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
        restored = self._deletions.beyond(offset)
        self._housekeeping.cleaner.remove_at_end()  # a checkpoint may create the same files
        self._checkpointer.save_all(now_ms)
        for queue in self._queues.queues.values():
            queue.recover(log.min_offset, offset, keeps_fillers=False)
        self._index.recover(name="", written_count=0, offset_end=offset)
        self._checksums.truncate(log.files, offset)
        # The progress moves back before the log does, because a log that ends before its progress
        # counts as having lost synced records.
        self._checkpointer.note_truncated(min(self._checkpointer.dispatched_offset, offset))
        self._rebuild(restored)
        self._checkpointer.save_all(now_ms)
        log.truncate(offset)
        self._deletions.undo(offset)
        log.confirm_offset = visible
        self._flusher.note_truncated(offset)

    def restore_topics(self, now_ms: int) -> None:
        """At the start of a copy, rebuild the queues of topics whose mark the log has lost."""
        end = self._commit_log.end
        topics = self._deletions.beyond(end)
        if topics:
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
            self._queues,
            is_indexing=False,
            only=topics,
            on_deletion=delete,
            read_range=self._parts.read_range,
        )
        end = checkpointer.dispatched_offset
        scanner = LogScanner(
            log.files, log.min_offset, check_crc=False, end=end, take=dispatcher.taker
        )
        for scan in scanner:
            dispatcher.dispatch(scan, is_from_head=True)
        touched = set(dispatcher.touched)
        dispatcher.publish()
        checkpointer.note_dispatched(touched, end, 0, 0)

    def _remove(self, topic: str) -> None:
        for queue in self._queues.of_topic(topic):
            self._checkpointer.forget(queue)
        for path in self._queues.remove_topic(topic):
            self._parts.disk.remove_tree(path)
