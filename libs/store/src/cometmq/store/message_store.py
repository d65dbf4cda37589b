# SPDX-License-Identifier: Apache-2.0
"""The store: open, close, delete and trim. `writer` stores messages, `reader` reads them, `upkeep`
supplies jobs.

All methods run on one thread. Apart from `open`, `close` and methods documented as blocking, none
of them waits for the disk. Slow work is returned as jobs; the caller runs them in order on one
worker thread and then completes them. Writeback (`upkeep.flusher`) and scrubbing
(`upkeep.scrubber`) may run at the same time as any other job, so they have workers of their own.
"""

from collections.abc import Callable, Mapping
from typing import Self

from cometmq.remoting.log import NO_LOG, Log
from cometmq.store.disk import Disk
from cometmq.store.errors import DiskError
from cometmq.store.folder import StoreFolder, refuse_foreign
from cometmq.store.opening import Upkeep, start
from cometmq.store.parts import NO_NATIVE_CODE, NativeCode, Parts, build_parts, no_pause
from cometmq.store.queues.pulls import Pulls
from cometmq.store.reader import Reader
from cometmq.store.results import Counters, PutDone, PutResult, PutStatus, StoreStats
from cometmq.store.settings import BrokerRole, StoreSettings
from cometmq.store.upkeep.entry_repair import EntryRepair
from cometmq.store.upkeep.jobs import Job
from cometmq.store.upkeep.withheld import message_count
from cometmq.store.writer import Writer
from cometmq.store.writing.append import Batch
from cometmq.store.writing.marks import deletion_mark, trim_mark
from cometmq.store.writing.write_state import Refusal

MEMORY_BYTES_DEFAULT = 8 << 30


def _ignore(_result: PutResult) -> None: ...


class MessageStore:
    """One broker's messages: the parts of a store, and the operations that need several of them."""

    def __init__(
        self, parts: Parts, folder: StoreFolder, pulls: Pulls, counters: Counters, upkeep: Upkeep
    ) -> None:
        self._parts = parts
        self._folder = folder
        self.repair = EntryRepair(parts, pulls)
        upkeep.scrubber.walks.on_suspects = self.repair.suspect
        self.counters = counters
        self.commit_log = parts.commit_log
        self.layout = parts.layout
        self.publisher = upkeep.publisher
        self.pulls = pulls
        self.reader = Reader(parts, pulls)
        self.replica = upkeep.replica
        self.upkeep = upkeep
        """The components that maintain the store after its recovery."""
        self.write_state = parts.write_state
        self.write_state.role_writable = parts.settings.broker_role is not BrokerRole.SLAVE
        self.writer = Writer(parts, upkeep, counters)

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
        pause: Callable[[], None] = no_pause,
    ) -> Self:
        """Lock, load and recover a store; blocks. Raise StoreError.

        - `boot_id` changes with every boot of the host. Without it, every kill is treated as a
          crash of the host, after which the last files are compared with their checksums.
        - `has_copies` means that other brokers have the messages. Without them, a log that has lost
          synced messages at its end is refused.
        - `monotonic_ms` is a clock that never jumps, for the timeouts of puts and to notice jumps
          of the other clock.
        - `pause` is called often by jobs that compute for long, to let other threads run.
        """
        parts = build_parts(
            settings,
            disk=disk,
            clock_ms=clock_ms,
            monotonic_ms=monotonic_ms,
            log=log,
            native=native,
            pause=pause,
        )
        counters = Counters()
        pulls = Pulls(
            settings, parts.commit_log, parts.queues,
            counters=counters, memory_bytes=memory_bytes, log=log,
        )  # fmt: skip
        refuse_foreign(disk, parts.layout)
        folder = StoreFolder(disk, parts.layout)
        folder.claim()
        try:
            upkeep = start(parts, folder, boot_id, has_copies=has_copies, on_damage=pulls.forget)
        except BaseException:
            folder.release()
            raise
        return cls(parts, folder, pulls, counters, upkeep)

    def jobs(self, now_ms: int) -> list[Job]:
        """Return the jobs that are due; run them in order on one worker and call `done` on each."""
        repair = self.repair.job()
        return [*self.upkeep.housekeeping.jobs(now_ms), *([] if repair is None else [repair])]

    def deletion_ends(self) -> Mapping[str, int]:
        """Return, for each topic that was deleted since the last checkpoint, the end of the log at
        that time.
        """
        return self._parts.deletions.ends()

    def delete_topic(self, topic: str, done: PutDone = _ignore) -> Batch | None:
        """Drop the queues of a topic; the log keeps its messages until they expire.

        A mark in the log drops the queues on all copies; `done` receives the result of storing the
        mark. If the mark cannot be stored and puts wait for other copies, the queues are kept.
        Return the commit of the mark, or None if no mark was stored.
        """
        # Messages that are still staged would create the queues again.
        self.writer.commit()
        is_known = topic in self._parts.queues.counts or topic in self._parts.deletions.ends()
        if not is_known:
            done(PutResult(PutStatus.PUT_OK))
            return None
        self.upkeep.publisher.forget_topic(topic)
        self.writer.put(deletion_mark(topic, self._parts.clock_ms()), done)
        batch = self.writer.commit()
        if batch is not None or not self.writer.needs_replicas:
            self.upkeep.housekeeping.delete_topic(topic, self.commit_log.end)
        return batch

    def trim_queue(
        self, topic: str, queue_id: int, queue_offset: int, done: PutDone = _ignore
    ) -> Batch | None:
        """Delete the messages of a queue before an offset; the log keeps them until they expire.

        A mark in the log deletes them on all copies, on each as soon as its readers may see the
        mark; `done` receives the result of storing the mark. Repeating a trim stores another mark,
        because the first may not have reached all copies. Return the commit of the mark, or None if
        no mark was stored.
        """
        self.writer.commit()
        queue = self._parts.queues.get(topic, queue_id)
        if queue is None or queue_offset < queue.min_offset + (not queue.floors):
            done(PutResult(PutStatus.PUT_OK))
            return None
        assert queue_offset <= queue.max_offset, "the mark must follow all messages it deletes"
        mark = trim_mark(topic, queue_id, queue_offset, self._parts.clock_ms())
        self.writer.put(mark, done)
        self.publisher.trimming = topic, queue_id, queue_offset
        try:
            return self.writer.commit()
        finally:
            self.publisher.trimming = None

    def truncate(self, offset: int) -> None:
        """Truncate log, queues and index at this record boundary; blocks.

        Raise DiskError if that fails; the store then refuses writes until a restart. Before the
        next put, `publisher.confirm(None)` has to dispatch the unconfirmed records.
        """
        self.writer.forget_unconfirmed()
        try:
            self.upkeep.replica.truncate(offset, self._parts.clock_ms())
        except DiskError as error:
            self.upkeep.flusher.fail(error)
            raise
        self.pulls.forget()

    def apply(self, settings: StoreSettings) -> None:
        """Use settings that were changed at run time."""
        self._parts.settings = settings
        self.pulls.apply(settings)
        self._parts.appender.apply(settings)

    def stats(self) -> StoreStats:
        """Return a snapshot of all counters."""
        counters = self.counters
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
            message_count(self.upkeep.scrubber.losses.messages),
            counters.damaged_count,
            self.pulls.suspects.repaired_count,
            self.upkeep.scrubber.repairs.repaired_count,
            self.upkeep.scrubber.walks.index.repaired_count,
            str(self.upkeep.scrubber.losses),
            self.upkeep.scrubber.losses.spared_count,
        )

    def close(self) -> None:
        """Commit, write everything to the disk and release the lock; blocks.

        If that fails, the abort file is kept, and the next start recovers the store.
        """
        if not self._folder.is_claimed:
            return
        self.writer.commit()
        # The abort file may be removed only after everything is on the disk: its absence makes the
        # next start skip most checks.
        is_clean = self.upkeep.housekeeping.finish()
        self.upkeep.scrubber.finish()
        self.write_state.set(Refusal.CLOSED, holds=True)
        if is_clean:
            self._folder.mark_clean()
        self._folder.release()
