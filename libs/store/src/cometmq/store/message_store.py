# SPDX-License-Identifier: Apache-2.0
"""The store: put, commit, read, and the jobs that maintain it.

All methods run on one thread. Apart from `open`, `close` and methods documented as blocking, none
of them waits for the disk. Slow work is returned as jobs; the caller runs them in order on one
worker thread and then completes them. Searches are `Lookup`s; the caller performs their reads.

The path of a message: `put` stages it (`writing/append.py`). `commit` writes all staged messages
with one write, makes them visible in their queues, adds their keys to the index and calls the
listeners. It then answers the puts, or leaves them pending until the next sync (SYNC_FLUSH) and
until replicas have the messages (`note_replicated`).
"""

import errno
from collections.abc import Callable, Sequence
from typing import Final, Self

from cometmq.remoting.log import NO_LOG, Log
from cometmq.remoting.message.new_message import NewMessage
from cometmq.remoting.message.record import MessageRecord
from cometmq.remoting.types import Buffer
from cometmq.store.disk import Disk
from cometmq.store.errors import DiskError
from cometmq.store.folder import StoreFolder
from cometmq.store.lookups import Lookups
from cometmq.store.native_code import NO_NATIVE_CODE, NativeCode
from cometmq.store.opening import Running, start
from cometmq.store.parts import Parts, build_parts
from cometmq.store.publishing import ArrivalListener
from cometmq.store.queues.consume_queue import ConsumeQueue
from cometmq.store.queues.matching_reader import WHOLE_BLOCK, BlockSize, RecordTest
from cometmq.store.queues.pulls import Pulls
from cometmq.store.reads import Lookup
from cometmq.store.results import (
    BoundaryType,
    GetResult,
    PutDone,
    PutResult,
    PutStatus,
    QueryResult,
    TagFilter,
)
from cometmq.store.settings import BrokerRole, StoreSettings
from cometmq.store.stats import Counters, StoreStats
from cometmq.store.upkeep.entry_repair import EntryRepair
from cometmq.store.upkeep.flush import FlushJob
from cometmq.store.upkeep.jobs import Job
from cometmq.store.writing.append import Batch
from cometmq.store.writing.deletion_mark import deletion_mark
from cometmq.store.writing.pending_puts import Condition, Conditions
from cometmq.store.writing.placing import Placing, StoreSteps, parts_to_write
from cometmq.store.writing.runs import RunSource
from cometmq.store.writing.write_state import Refusal

MEMORY_BYTES_DEFAULT = 8 << 30
_NO_CONDITION: Final[Conditions] = ()
_FLUSHED: Final = (Condition.FLUSHED,)
_REPLICATED: Final = (Condition.REPLICATED,)


def _ignore(_result: PutResult) -> None: ...


class MessageStore:
    """One broker's messages."""

    def __init__(
        self, parts: Parts, folder: StoreFolder, pulls: Pulls, counters: Counters, running: Running
    ) -> None:
        self._parts = parts
        self._folder = folder
        self._clock_ms = parts.clock_ms
        self._monotonic_ms = parts.monotonic_ms
        self._appender = parts.appender
        self._queues = parts.queues
        self._lookups = Lookups(parts)
        self._counters = counters
        self._pending = running.pending
        self._flusher = running.flusher
        self._sealer = running.sealer
        self._checkpointer = running.checkpointer
        self._housekeeping = running.housekeeping
        self._scrubber = running.scrubber
        self.block_repairs = running.scrubber.repairs
        self._replica = running.replica
        self._publisher = running.publisher
        self._repair = EntryRepair(parts, pulls)
        self._scrubber.on_suspects = self._repair.suspect
        self.placing: Placing | None = None
        """The large unit that is being placed."""
        self.pulls = pulls
        self.layout = parts.layout
        self.commit_log = parts.commit_log
        self.write_state = parts.write_state
        self.recovered = running.recovered
        # Replication sets both: whether puts wait for `note_replicated`, and whether a slave is
        # close enough to a commit's end for its puts to wait.
        self.needs_replicas = False
        self.may_replicate: Callable[[int], bool] = lambda _end: True
        self.role_writable = parts.settings.broker_role is not BrokerRole.SLAVE

    @classmethod
    def open(  # noqa: PLR0913  # the parts of the world that a store uses
        cls,
        settings: StoreSettings,
        *,
        disk: Disk,
        clock_ms: Callable[[], int],
        monotonic_ms: Callable[[], int] | None = None,
        log: Log = NO_LOG,
        memory_bytes: int = MEMORY_BYTES_DEFAULT,
        boot_id: str = "",
        native: NativeCode = NO_NATIVE_CODE,
        has_copies: bool = False,
    ) -> Self:
        """Lock, load and recover a store; blocks. Raise LockHeld, CorruptStore or DiskError.

        `boot_id` changes with every boot of the host. Without it, every kill is treated as a crash
        of the host, after which the last files are compared with their checksums. A log that has
        lost synced messages at its end is refused, unless other brokers have them (`has_copies`).
        By `monotonic_ms`, a clock that never jumps, pending puts time out and jumps are noticed.
        """
        parts = build_parts(
            settings,
            disk=disk,
            clock_ms=clock_ms,
            monotonic_ms=monotonic_ms,
            log=log,
            native=native,
        )
        counters = Counters()
        pulls = Pulls(
            settings, parts.commit_log, parts.queues,
            counters=counters, memory_bytes=memory_bytes, log=log,
        )  # fmt: skip
        folder = StoreFolder(disk, parts.layout)
        folder.claim()
        try:
            running = start(parts, folder, boot_id, has_copies=has_copies, on_damage=pulls.forget)
        except BaseException:
            folder.release()
            raise
        return cls(parts, folder, pulls, counters, running)

    # Writing

    def put(self, message: NewMessage, done: PutDone) -> int:
        """Stage one message; `done` receives its result.

        Return the number of bytes staged for the commit.
        """
        return self._appender.put(message, done)

    def put_batch(self, messages: Sequence[NewMessage], done: PutDone) -> None:
        """Stage messages for any queues as a unit: either all are stored, contiguously, or none."""
        self._appender.put_batch(messages, done)

    def put_large(self, messages: Sequence[NewMessage], done: PutDone) -> Placing:
        """Begin to store a unit in steps, which the caller runs; other puts are staged meanwhile.

        `commit` first runs the steps that remain. Afterwards, `put_more_index` adds the keys.
        """
        self.commit()
        self.placing = Placing(self._storing(messages, done))
        return self.placing

    def _storing(self, messages: Sequence[NewMessage], done: PutDone) -> StoreSteps:
        batch = yield from self._appender.place_alone(messages, done)
        if batch is None or self.write_state.refusals:
            self.placing = None
            return self._store(batch)
        # From here on, the batch counts as written: records may not be left behind the log's end.
        try:
            for offset, records in parts_to_write(batch):
                self.commit_log.write(offset, records)
                yield
        except DiskError as error:
            self._fail_write(error, batch)
            return None
        finally:
            self.placing = None
        return self._complete(batch)

    @property
    def is_index_behind(self) -> bool:
        """Whether `put_more_index` should be called in a later turn."""
        return self._parts.index.is_behind

    def put_more_index(self) -> bool:
        """Add some of the queued keys to the index; return whether more can be added."""
        return self._housekeeping.put_more_index()

    def put_run(self, source: RunSource, first: int, count: int, staged_bytes: int) -> int:
        """Stage requests that a source holds (see `runs.py`); return the number of staged bytes."""
        return self._appender.put_run(source, first, count, staged_bytes)

    @property
    def staged_bytes(self) -> int:
        """The number of bytes staged for the next commit."""
        return self._appender.staged_bytes

    def commit(self) -> Batch | None:
        """Store all staged messages and answer their puts; return None if nothing was stored.

        An answer may stage messages for the next commit, but may not call this method: its own
        message is not visible yet.
        """
        if self.placing is not None:
            self.placing.finish()
        return self._store(self._appender.take())

    def _store(self, batch: Batch | None) -> Batch | None:
        if batch is None:
            return None
        if self.write_state.refusals:
            self._fail(batch)
            return None
        try:
            self._write(batch)
        except DiskError as error:
            self._fail_write(error, batch)
            return None
        self._complete(batch)
        if self._flusher.is_sync:
            self._flusher.zeros_ahead.write()  # no large unit is being written behind the end
        return batch

    def _complete(self, batch: Batch) -> Batch:
        """Make written messages part of the log, and answer their puts."""
        self.commit_log.advance(batch.end)
        counters = self._counters
        counters.commit_count += 1
        counters.put_count += batch.message_count
        counters.put_bytes += batch.end - batch.start
        # Senders wait for the answers. No consumer can ask for a message before this call returns.
        try:
            self._answer(batch)
        finally:
            self._publisher.publish(batch)
        return batch

    def _write(self, batch: Batch) -> None:
        for offset, records in batch.segments:
            if records:
                self.commit_log.write(offset, records)

    def _answer(self, batch: Batch) -> None:
        needs = _FLUSHED if self._flusher.is_sync else _NO_CONDITION
        if self.needs_replicas:
            if self.may_replicate(batch.end):
                needs += _REPLICATED
            else:
                _mark_unreplicated(batch)
        if not needs:
            for done, _, result in batch.results:
                done(result)
            return
        now_ms = self._monotonic_ms()
        for done, is_waiting, result in batch.results:
            if is_waiting:
                self._pending.add(batch.end, needs, now_ms, done, result)
            else:
                done(result)

    def _fail_write(self, error: DiskError, batch: Batch) -> None:
        self._housekeeping.note_write_failed(error, batch)  # before the answers
        self._fail(batch)

    def _fail(self, batch: Batch) -> None:
        batch.undo()
        self._counters.failed_put_count += batch.message_count
        for done, _, result in batch.results:
            result.status = PutStatus.SERVICE_NOT_AVAILABLE
            done(result)

    def add_arrival_listener(self, listener: ArrivalListener) -> None:
        """Register a listener, called once per commit, after the puts are answered."""
        self._publisher.listeners.append(listener)

    # Jobs

    def flush_job(self, now_ms: int | None = None, *, is_forced: bool = False) -> FlushJob | None:
        """Return the sync that is due or forced; run it on a worker, then call `flush_done`."""
        if now_ms is None:
            now_ms = self._monotonic_ms()
        return self._flusher.job(now_ms, is_forced=is_forced)

    def flush_done(self, job: FlushJob, error: Exception | None = None) -> None:
        """Complete the puts that were waiting for this sync."""
        self._flusher.done(job, error)

    def lone_put(self) -> PutDone | None:
        """Return the callback of the only put that waits, if it waits only for a sync."""
        return self._pending.lone()

    def writeback_job(self) -> Job | None:
        """Return the writeback of the log that is due now, or None.

        It may run at the same time as any other job, so it has its own worker.
        """
        return self._flusher.writeback_job()

    def jobs(self, now_ms: int) -> list[Job]:
        """Return the jobs that are due; run them in order on one worker and call `done` on each."""
        repair = self._repair.job()
        return [*self._housekeeping.jobs(now_ms), *([] if repair is None else [repair])]

    def scrub_job(self, now_ms: int) -> Job | None:
        """Return the check of the log against its checksums that is due now, or None.

        The check may run at the same time as any other job, so it has its own worker.
        """
        return self._scrubber.job(now_ms)

    def clean_expired(self) -> None:
        """Delete expired files at the next opportunity, whatever the hour."""
        self._housekeeping.cleaner.ask()

    def clean_queues(self) -> None:
        """Trim the queue entries of deleted messages at the next opportunity."""
        self._housekeeping.cleaner.ask_trim()

    # Reading

    def get_messages(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        count_max: int,
        *,
        accept: TagFilter | None = None,
        bytes_max: int | None = None,
        joined: bool = False,
    ) -> GetResult:
        """Return messages of a queue, starting at this offset; see `GetResult` for cold reads.

        `joined` allows one buffer with all records, for callers that concatenate them anyway.
        """
        return self.pulls.get(topic, queue_id, offset, count_max, accept, bytes_max, joined=joined)

    def note_loaded(self, topic: str, queue_id: int, offset: int, result: GetResult) -> None:
        """Log the damaged records that a cold read on a worker thread has left out."""
        queue = self._queues.get(topic, queue_id)
        if queue is not None and result.damaged_count:
            self.pulls.note_damaged(queue, offset, result)

    def find_messages(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        count_max: int,
        test: RecordTest,
        *,
        block: BlockSize = WHOLE_BLOCK,
    ) -> Lookup[GetResult]:
        """Find messages of a queue whose records pass a test, starting at this offset.

        `block` is the number of records tested per read.
        """
        return self.pulls.find(topic, queue_id, offset, count_max, test, block)

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return a queue; None if it has never held a message."""
        return self._queues.get(topic, queue_id)

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Return the first offset of a queue; 0 if the queue does not exist."""
        queue = self._queues.get(topic, queue_id)
        return 0 if queue is None else queue.min_offset

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Return the offset of a queue's next message; 0 if the queue does not exist."""
        queue = self._queues.get(topic, queue_id)
        return 0 if queue is None else queue.max_offset

    def offset_by_time(
        self,
        topic: str,
        queue_id: int,
        timestamp: int,
        boundary: BoundaryType | None = None,
    ) -> Lookup[int]:
        """Find the offset of the message stored nearest to a time."""
        return self._lookups.offset_by_time(topic, queue_id, timestamp, boundary)

    def place(self, topic: str, queue_id: int, offset: int) -> Lookup[int]:
        """Find a message's physical offset; -1 if the message does not exist."""
        return self._lookups.place(topic, queue_id, offset)

    def store_time(self, topic: str, queue_id: int, offset: int) -> Lookup[int]:
        """Find a message's store time; -1 if the message does not exist."""
        return self._lookups.store_time(topic, queue_id, offset)

    def earliest_store_time(self, topic: str, queue_id: int) -> Lookup[int]:
        """Find the store time of a queue's oldest message; -1 if the queue is empty."""
        return self.store_time(topic, queue_id, self.min_offset(topic, queue_id))

    def read_record(self, physical_offset: int) -> Lookup[MessageRecord | None]:
        """Find the record at a physical offset supplied by a client; the offset may be wrong."""
        return self._lookups.read_record(physical_offset)

    def record_bytes(self, physical_offset: int) -> Lookup[bytes | None]:
        """Find the bytes from a physical offset on that are a record if one begins there."""
        return self._lookups.record_bytes(physical_offset)

    def newest_record(self) -> Lookup[MessageRecord | None]:
        """Find the last message in the log that a queue refers to; None if there is none."""
        return self._lookups.newest_record()

    def read_span(self, physical_offset: int, size: int) -> Lookup[Buffer | None]:
        """Find the bytes of a range of the log that lies within one file.

        Return None if readers may not have the whole range.
        """
        return self._lookups.read_span(physical_offset, size)

    def query(
        self, topic: str, key: str, count_max: int, begin_ms: int, end_ms: int
    ) -> Lookup[QueryResult]:
        """Find the newest messages with this key that were stored in this period."""
        count_max = min(count_max, self._parts.settings.max_msgs_num_batch)
        return self._lookups.query(topic, key, count_max, begin_ms, end_ms)

    def topics(self) -> set[str]:
        """Return the topics that have at least one queue."""
        return {topic for topic, _ in self._queues.queues}

    def delete_topic(self, topic: str, done: PutDone = _ignore) -> Batch | None:
        """Drop the queues of a topic; the log keeps its messages until they expire.

        A mark in the log deletes them on all copies; `done` receives the result of storing it. If
        it cannot be stored and puts wait for other copies, the queues stay. Return the commit of
        the mark, or None.
        """
        # Messages that are still staged would create the queues again.
        self.commit()
        is_known = topic in self._queues.counts or topic in self._parts.deletions.ends()
        if not is_known:
            done(PutResult(PutStatus.PUT_OK))
            return None
        self._publisher.forget_topic(topic)
        self._appender.put(deletion_mark(topic, self._clock_ms()), done)
        batch = self.commit()
        if batch is not None or not self.needs_replicas:
            self._housekeeping.delete_topic(topic, self.commit_log.end)
        return batch

    # Replication

    @property
    def bounds(self) -> tuple[int, int]:
        """The physical offsets between which readers can see the log."""
        return self.commit_log.min_offset, self.commit_log.confirm_offset

    @property
    def confirm_offset(self) -> int:
        """The physical offset up to which readers can see the log."""
        return self.commit_log.confirm_offset

    def confirm(self, offset: int | None) -> None:
        """Set the offset up to which readers see the log; None removes the bound.

        A commit becomes visible as a whole. A lower offset does not hide messages that are already
        visible.
        """
        self._publisher.confirm(offset)

    def note_replicated(self, offset: int) -> None:
        """Record that the replicas have the log up to `offset`, and answer the waiting puts."""
        self._pending.advance(Condition.REPLICATED, min(offset, self.commit_log.end))

    def append_raw(self, offset: int, data: Buffer) -> None:
        """Append bytes of the master's log exactly at the end of this log.

        Whole records become visible once they are confirmed. If a write fails, raise DiskError; the
        bytes written before it, which end at a file boundary, remain in the log.
        """
        if self.write_state.has(Refusal.LOG_WRITE_FAILED):  # the probe would overwrite them
            raise DiskError("write", self._parts.layout.commit_log, errno.EAGAIN)
        self._publisher.drop()
        try:
            self._replica.append(offset, data)
        finally:
            # If the bytes span two files and the second cannot be created, only the first part is
            # written. A slave follows its master only while all records in its log are visible.
            self._publisher.dispatch()

    @property
    def is_catching_up(self) -> bool:
        """Whether this is a follower's store that is too far behind its master to be in sync."""
        return self._checkpointer.is_catching_up

    @property
    def is_crowded(self) -> bool:
        """Whether a follower that is catching up should pause until a checkpoint has ended."""
        return self._checkpointer.is_crowded

    def note_distance(self, behind_bytes: int) -> None:
        """Record how far this follower's log is behind its master's."""
        self._checkpointer.note_distance(behind_bytes)

    def forget_unconfirmed(self) -> None:
        """Refuse the pending puts, because this broker is no longer the master.

        Before the next put, `confirm(None)` has to dispatch the unconfirmed records.
        """
        self.commit()
        self._publisher.drop()
        self._pending.fail()

    def truncate(self, offset: int) -> None:
        """Truncate log, queues and index at this record boundary; blocks.

        Raise DiskError if that fails; the store then refuses writes until a restart. Before the
        next put, `confirm(None)` has to dispatch the unconfirmed records.
        """
        self.forget_unconfirmed()
        try:
            self._replica.truncate(offset, self._clock_ms())
        except DiskError as error:
            self._flusher.fail(error)
            raise
        self._sealer.note_truncated(offset)
        self._scrubber.note_truncated(offset)
        self.pulls.forget()

    # State

    @property
    def staged_count(self) -> int:
        """The number of requests staged for the next commit."""
        return self._appender.staged_count

    @property
    def role_writable(self) -> bool:
        """Whether the broker's role allows it to accept messages."""
        return not self.write_state.has(Refusal.ROLE)

    @role_writable.setter
    def role_writable(self, value: bool) -> None:
        self.write_state.set(Refusal.ROLE, holds=not value)

    @property
    def is_writable(self) -> bool:
        """Whether puts are accepted now."""
        return self.write_state.is_writable

    @property
    def put_count(self) -> int:
        """The number of messages stored since startup."""
        return self._counters.put_count

    @property
    def waiting_put_count(self) -> int:
        """The number of puts waiting for a sync."""
        return len(self._pending)

    @property
    def flushed_offset(self) -> int:
        """The offset up to which the log is synced."""
        return self._flusher.flushed_offset

    @property
    def has_pages_to_flush(self) -> bool:
        """Whether enough is unsynced for the next sync to come after `flushIntervalCommitLog`."""
        return self._flusher.has_pages

    @property
    def disk_used_percent(self) -> int:
        """How full the disk was when it was last measured."""
        return self._housekeeping.cleaner.used_percent

    def queue_count(self, topic: str) -> int:
        """Return the number behind the highest queue id that has held messages of a topic."""
        return self._queues.counts.get(topic, 0)

    def queue_ids(self) -> list[tuple[str, int]]:
        """Return the topic and id of every queue."""
        return list(self._queues.queues)

    def apply(self, settings: StoreSettings) -> None:
        """Adopt changed settings."""
        self._parts.settings = settings
        self.pulls.apply(settings)
        self._appender.apply(settings)

    def stats(self) -> StoreStats:
        """Return a snapshot of all counters."""
        counters = self._counters
        return StoreStats(
            counters.put_count,
            counters.put_bytes,
            counters.failed_put_count,
            counters.commit_count,
            counters.get_count,
            counters.get_message_count,
            counters.cold_get_count,
            self._flusher.flush_count,
            len(self._pending),
            self.commit_log.min_offset,
            self.commit_log.end,
            self._flusher.flushed_offset,
            self._checkpointer.offset,
            len(self._queues.queues),
            len(self._parts.index.files),
            self.write_state.is_writable,
            tuple(sorted(self.write_state.refusals)),
            self.disk_used_percent,
            len(self.commit_log.files.files),
            self._scrubber.scrubbed_bytes,
            self._scrubber.damaged_bytes,
            self._scrubber.damaged_message_count,
            counters.damaged_count,
            self._repair.repaired_count,
            self.block_repairs.repaired_count,
        )

    def close(self) -> None:
        """Commit, write everything to the disk and release the lock; blocks.

        If that fails, the abort file is kept, and the next start recovers the store.
        """
        if not self._folder.is_claimed:
            return
        self.commit()
        # The abort file may be removed only after everything is on the disk: its absence makes the
        # next start skip most checks.
        is_clean = self._housekeeping.finish()
        self._scrubber.finish()
        self.write_state.set(Refusal.CLOSED, holds=True)
        if is_clean:
            self._folder.mark_clean()
        self._folder.release()


def _mark_unreplicated(batch: Batch) -> None:
    """Mark the puts that need replication as SLAVE_NOT_AVAILABLE: no slave is close enough."""
    for _, is_waiting, result in batch.results:
        if is_waiting and result.status is PutStatus.PUT_OK:
            result.status = PutStatus.SLAVE_NOT_AVAILABLE
