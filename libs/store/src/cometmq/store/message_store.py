# SPDX-License-Identifier: Apache-2.0
"""The store: put, commit, replicate, open and close. `reader` reads; `upkeep` has the jobs.

All methods run on one thread. Apart from `open`, `close` and methods documented as blocking, none
of them waits for the disk. Slow work is returned as jobs; the caller runs them in order on one
worker thread and then completes them. Writeback (`upkeep.flusher`) and scrubbing
(`upkeep.scrubber`) may run at the same time as any other job, so they have workers of their own.

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
from cometmq.remoting.types import Buffer
from cometmq.store.disk import Disk
from cometmq.store.errors import DiskError
from cometmq.store.folder import StoreFolder
from cometmq.store.native_code import NO_NATIVE_CODE, NativeCode
from cometmq.store.opening import Upkeep, start
from cometmq.store.parts import Parts, build_parts
from cometmq.store.publishing import ArrivalListener
from cometmq.store.queues.pulls import Pulls
from cometmq.store.reader import Reader
from cometmq.store.results import (
    PutDone,
    PutResult,
    PutStatus,
)
from cometmq.store.settings import BrokerRole, StoreSettings
from cometmq.store.stats import Counters, StoreStats
from cometmq.store.upkeep.entry_repair import EntryRepair
from cometmq.store.upkeep.jobs import Job
from cometmq.store.writing.append import Batch
from cometmq.store.writing.deletion_mark import deletion_mark
from cometmq.store.writing.pending_puts import Condition, Conditions
from cometmq.store.writing.placing import Placing, StoreSteps, parts_to_write
from cometmq.store.writing.write_state import Refusal

MEMORY_BYTES_DEFAULT = 8 << 30
_NO_CONDITION: Final[Conditions] = ()
_FLUSHED: Final = (Condition.FLUSHED,)
_REPLICATED: Final = (Condition.REPLICATED,)


def _ignore(_result: PutResult) -> None: ...


class MessageStore:
    """One broker's messages."""

    def __init__(
        self, parts: Parts, folder: StoreFolder, pulls: Pulls, counters: Counters, upkeep: Upkeep
    ) -> None:
        self._parts = parts
        self._folder = folder
        self._clock_ms = parts.clock_ms
        self._monotonic_ms = parts.monotonic_ms
        self._appender = parts.appender
        self._counters = counters
        self.reader = Reader(parts, pulls)
        self.upkeep = upkeep
        """What maintains the store after its recovery."""
        self.block_repairs = upkeep.scrubber.repairs
        # Called for each message, so without a method in between
        self.put = parts.appender.put
        self.put_batch = parts.appender.put_batch
        self.put_run = parts.appender.put_run
        self._repair = EntryRepair(parts, pulls)
        upkeep.scrubber.on_suspects = self._repair.suspect
        self.placing: Placing | None = None
        """The large unit that is being placed."""
        self.pulls = pulls
        self.layout = parts.layout
        self.commit_log = parts.commit_log
        self.write_state = parts.write_state
        self.recovered = upkeep.recovered
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
            upkeep = start(parts, folder, boot_id, has_copies=has_copies, on_damage=pulls.forget)
        except BaseException:
            folder.release()
            raise
        return cls(parts, folder, pulls, counters, upkeep)

    # Writing

    def put_large(self, messages: Sequence[NewMessage], done: PutDone) -> Placing:
        """Begin to store a unit in steps, which the caller runs; other puts are staged meanwhile.

        `commit` first runs the steps that remain. Afterwards, the housekeeping adds the keys
        (`put_more_index`).
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
        if not self.write_state.is_writable:
            self._fail(batch)
            return None
        try:
            for offset, records in batch.segments:
                if records:
                    self.commit_log.write(offset, records)
        except DiskError as error:
            self._fail_write(error, batch)
            return None
        self._complete(batch)
        if self.upkeep.flusher.is_sync:
            self.upkeep.flusher.zeros_ahead.write()  # no large unit is being written behind the end
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
            self.upkeep.publisher.publish(batch)
        return batch

    def _answer(self, batch: Batch) -> None:
        needs = _FLUSHED if self.upkeep.flusher.is_sync else _NO_CONDITION
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
                self.upkeep.pending.add(batch.end, needs, now_ms, done, result)
            else:
                done(result)

    def _fail_write(self, error: DiskError, batch: Batch) -> None:
        self.upkeep.housekeeping.note_write_failed(error, batch)  # before the answers
        self._fail(batch)

    def _fail(self, batch: Batch) -> None:
        batch.undo()
        self._counters.failed_put_count += batch.message_count
        for done, _, result in batch.results:
            result.status = PutStatus.SERVICE_NOT_AVAILABLE
            done(result)

    def add_arrival_listener(self, listener: ArrivalListener) -> None:
        """Register a listener, called once per commit, after the puts are answered."""
        self.upkeep.publisher.listeners.append(listener)

    # Jobs

    def jobs(self, now_ms: int) -> list[Job]:
        """Return the jobs that are due; run them in order on one worker and call `done` on each."""
        repair = self._repair.job()
        return [*self.upkeep.housekeeping.jobs(now_ms), *([] if repair is None else [repair])]

    def delete_topic(self, topic: str, done: PutDone = _ignore) -> Batch | None:
        """Drop the queues of a topic; the log keeps its messages until they expire.

        A mark in the log deletes them on all copies; `done` receives the result of storing it. If
        it cannot be stored and puts wait for other copies, the queues stay. Return the commit of
        the mark, or None.
        """
        # Messages that are still staged would create the queues again.
        self.commit()
        is_known = topic in self._parts.queues.counts or topic in self._parts.deletions.ends()
        if not is_known:
            done(PutResult(PutStatus.PUT_OK))
            return None
        self.upkeep.publisher.forget_topic(topic)
        self._appender.put(deletion_mark(topic, self._clock_ms()), done)
        batch = self.commit()
        if batch is not None or not self.needs_replicas:
            self.upkeep.housekeeping.delete_topic(topic, self.commit_log.end)
        return batch

    # Replication

    @property
    def confirm_offset(self) -> int:
        """The physical offset up to which readers can see the log."""
        return self.commit_log.confirm_offset

    def confirm(self, offset: int | None) -> None:
        """Set the offset up to which readers see the log; None removes the bound.

        A commit becomes visible as a whole. A lower offset does not hide messages that are already
        visible.
        """
        self.upkeep.publisher.confirm(offset)

    def note_replicated(self, offset: int) -> None:
        """Record that the replicas have the log up to `offset`, and answer the waiting puts."""
        self.upkeep.pending.advance(Condition.REPLICATED, min(offset, self.commit_log.end))

    def append_raw(self, offset: int, data: Buffer) -> None:
        """Append bytes of the master's log exactly at the end of this log.

        Whole records become visible once they are confirmed. If a write fails, raise DiskError; the
        bytes written before it, which end at a file boundary, remain in the log.
        """
        if self.write_state.has(Refusal.LOG_WRITE_FAILED):  # the probe would overwrite them
            raise DiskError("write", self._parts.layout.commit_log, errno.EAGAIN)
        self.upkeep.publisher.drop()
        try:
            self.upkeep.replica.append(offset, data)
        finally:
            # If the bytes span two files and the second cannot be created, only the first part is
            # written. A slave follows its master only while all records in its log are visible.
            self.upkeep.publisher.dispatch()

    def forget_unconfirmed(self) -> None:
        """Refuse the pending puts, because this broker is no longer the master.

        Before the next put, `confirm(None)` has to dispatch the unconfirmed records.
        """
        self.commit()
        self.upkeep.publisher.drop()
        self.upkeep.pending.fail()

    def truncate(self, offset: int) -> None:
        """Truncate log, queues and index at this record boundary; blocks.

        Raise DiskError if that fails; the store then refuses writes until a restart. Before the
        next put, `confirm(None)` has to dispatch the unconfirmed records.
        """
        self.forget_unconfirmed()
        try:
            self.upkeep.replica.truncate(offset, self._clock_ms())
        except DiskError as error:
            self.upkeep.flusher.fail(error)
            raise
        self.upkeep.sealer.note_truncated(offset)
        self.upkeep.scrubber.note_truncated(offset)
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
    def flushed_offset(self) -> int:
        """The offset up to which the log is synced."""
        return self.upkeep.flusher.flushed_offset

    @property
    def waiting_put_count(self) -> int:
        """The number of puts that wait for a sync or for other copies."""
        return len(self.upkeep.pending)

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
            self.upkeep.flusher.flush_count,
            len(self.upkeep.pending),
            self.commit_log.min_offset,
            self.commit_log.end,
            self.upkeep.flusher.flushed_offset,
            self.upkeep.checkpointer.offset,
            len(self._parts.queues.queues),
            len(self._parts.index.files),
            self.write_state.is_writable,
            tuple(sorted(self.write_state.refusals)),
            self.upkeep.cleaner.used_percent,
            len(self.commit_log.files.files),
            self.upkeep.scrubber.scrubbed_bytes,
            self.upkeep.scrubber.damaged_bytes,
            self.upkeep.scrubber.damaged_message_count,
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
        is_clean = self.upkeep.housekeeping.finish()
        self.upkeep.scrubber.finish()
        self.write_state.set(Refusal.CLOSED, holds=True)
        if is_clean:
            self._folder.mark_clean()
        self._folder.release()


def _mark_unreplicated(batch: Batch) -> None:
    """Mark the puts that need replication as SLAVE_NOT_AVAILABLE: no slave is close enough."""
    for _, is_waiting, result in batch.results:
        if is_waiting and result.status is PutStatus.PUT_OK:
            result.status = PutStatus.SLAVE_NOT_AVAILABLE
