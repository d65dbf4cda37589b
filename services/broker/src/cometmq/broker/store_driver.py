# SPDX-License-Identifier: Apache-2.0
"""Drives the pure store: one commit per turn of the loop, and slow disk work on named threads.

Invariants: only the loop calls the store. Threads run only closures that the store provides (flush,
retention, cold reads), and their results are handled on the loop. Searches read data in memory on
the loop. The number of reads per turn is bounded for all searches together; searches above the
bound continue in later turns, one at a time.

Hot path: `put` is one call and one test per message; everything else is done per batch.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from cometmq.broker.statistics.latencies import latency_buckets
from cometmq.broker.statistics.put_times import PutTimes
from cometmq.remoting.command import Call, Peer
from cometmq.remoting.errors import Overloaded, ServerError, SystemBusy
from cometmq.remoting.log import Log
from cometmq.remoting.message.new_message import NewMessage
from cometmq.remoting.transport.tasks import describe
from cometmq.remoting.types import Buffer
from cometmq.runtime.clock import Clock
from cometmq.runtime.worker import Worker
from cometmq.store.message_store import MessageStore
from cometmq.store.reads import Lookup
from cometmq.store.results import PutDone
from cometmq.store.upkeep.flush import FlushJob
from cometmq.store.upkeep.jobs import Job
from cometmq.store.writing.runs import RunSource

T = TypeVar("T")

STAGED_BYTES_MAX: Final = 1 << 20  # a larger batch is written before the loop's turn ends
TICK_INTERVAL_MS: Final = 100
IDLE_INTERVAL_MS: Final = 500
"""At most `flushIntervalCommitLog`, so that the first message after a pause is synced in time."""
TURN_READS_MAX: Final = 32  # for all searches together: about 1 ms with testing the records
TURN_BYTES_MAX: Final = 1 << 20


class Workers(NamedTuple):
    """The threads of a broker, each for one kind of disk work."""

    flush: Worker  # fsync of the commit log: senders wait for it
    store: Worker  # checkpoints, retention, deletion
    read: Worker  # cold reads of consumers that catch up
    replicate: Worker  # cold reads of slaves that catch up
    config: Worker  # config tables
    scrub: Worker  # comparing the log with its checksums: yields the disk to the others

    @classmethod
    def start(cls) -> "Workers":
        """Create the workers; each thread starts with its first job."""
        return cls(
            *(Worker(f"cometmq-{name}", has_idle_io=name == "scrub") for name in cls._fields)
        )

    def close(self) -> None:
        """Wait for submitted jobs; blocks."""
        for worker in self:
            worker.close()


class _Search(NamedTuple):
    lookup: Lookup[Any]
    done: Callable[[Any], None]
    failed: Callable[[Exception], None]
    peer: Peer | None
    is_part_of_put: bool


class StoreDriver:
    """The only caller of the store's writing half."""

    def __init__(
        self,
        store: MessageStore,
        *,
        workers: Workers,
        clock: Clock,
        log: Log,
    ) -> None:
        self._store = store
        self._workers = workers
        self._clock = clock
        self._log = log
        self.after_commit: Callable[[], None] = lambda: None  # set by `connect_arrivals`
        self.log_grew: Callable[[], None] = lambda: None  # set by replication
        self.truncated: Callable[[], None] = lambda: None  # set by the broker
        self.job_ended: Callable[[], None] = lambda: None  # set by a follower
        self._loop = asyncio.get_running_loop()
        self._is_scheduled = False
        self._is_in_turn = False
        self._is_committing = False
        self._is_truncating = False
        self._ticked_end = -1  # of the log, at the last tick
        self._flushing: asyncio.Future[None] | None = None
        self._reads: set[asyncio.Future[Any]] = set()
        self._jobs: set[asyncio.Future[None]] = set()
        self._waiting: deque[tuple[_Search, Buffer, asyncio.Future[Any]]] = deque()
        self._reads_left = TURN_READS_MAX
        self._bytes_left = TURN_BYTES_MAX
        self.commit_count = 0
        self.put_times = PutTimes(lambda: store.put_count)
        self.put_seconds = latency_buckets()
        """Time from a put to its answer; each message of a commit counts with the time of the
        oldest one.
        """
        self.sync_seconds = latency_buckets()
        self._sync_began_s = 0.0
        self._staged_s = 0.0  # when the first put of the next commit was staged
        self.waiting_count = 0
        """Number of sends that wait for the disk or a slave, as of the last commit, flush or
        acknowledgement.
        """
        self._waiting_since_ms: int | None = None  # the oldest send that no running sync covers
        self._flushing_since_ms: int | None = None  # the oldest send that the running sync covers

    @property
    def store(self) -> MessageStore:
        return self._store

    def put(self, message: NewMessage, done: PutDone) -> None:
        """Stage a message for this turn's commit; `done` is called when its outcome is known."""
        staged_bytes = self._store.put(message, done)
        if not self._is_scheduled or staged_bytes > STAGED_BYTES_MAX:
            self._schedule()

    def put_run(self, source: RunSource, first: int, count: int, staged_bytes: int) -> None:
        """Store requests of a source, from number `first` on; see `cometmq.store.writing.runs`."""
        staged_bytes = self._store.put_run(source, first, count, staged_bytes)
        if not self._is_scheduled or staged_bytes > STAGED_BYTES_MAX:
            self._schedule()

    def put_batch(self, messages: Sequence[NewMessage], done: PutDone) -> None:
        """Store all messages contiguously, or none; they may be for different queues."""
        self._store.put_batch(messages, done)
        self._schedule()

    def commit(self) -> None:
        """Write the staged messages, wake held pulls, and send the answers."""
        self._is_scheduled = self._is_in_turn = False
        self.commit_count += 1
        self._is_committing = True
        try:
            batch = self._store.commit()
        finally:
            self._is_committing = False
        self.waiting_count = self._store.waiting_put_count
        if self.waiting_count:
            if self._waiting_since_ms is None:
                self._waiting_since_ms = self._clock.monotonic_ms()
        elif batch is not None:
            self.put_seconds.observe(time.perf_counter() - self._staged_s, batch.message_count)
            elapsed_ms = self._clock.now_ms() - batch.store_timestamp
            if elapsed_ms > 0:
                self.put_times.add(elapsed_ms, batch.message_count)
        self.after_commit()
        if batch is not None:
            self.log_grew()
        # The tick would start this sync up to 100 ms later.
        if self.waiting_count:
            self._flush()

    def append(self, offset: int, data: Buffer) -> None:
        """Append a piece of the master's log to our own, and wake held pulls and our own slaves.

        Raise StoreError if the bytes do not fit, DiskError if the write fails.
        """
        try:
            self._store.append_raw(offset, data)
        finally:  # a failed append may have completed the last file
            self.after_commit()
            self.log_grew()

    def note_replicated(self, offset: int) -> None:
        """Answer the sends that were waiting for a slave to have the log up to this offset."""
        before_count = self._store.waiting_put_count
        self._store.note_replicated(offset)
        self.waiting_count = self._store.waiting_put_count
        if self.waiting_count == before_count:
            return
        if self._flushing is None and self._waiting_since_ms is not None:
            elapsed_ms = self._clock.monotonic_ms() - self._waiting_since_ms
            self._count_waited(elapsed_ms, before_count - self.waiting_count)
            self._waiting_since_ms = self._clock.monotonic_ms() if self.waiting_count else None
        self.after_commit()

    def _count_waited(self, elapsed_ms: int, count: int) -> None:
        """Count sends that were answered after a wait for the disk or a slave."""
        self.put_times.add(elapsed_ms, count)
        if count > 0:
            self.put_seconds.observe(elapsed_ms / 1000, count)

    def confirm(self, offset: int) -> None:
        """Make the log visible to readers up to this offset, wake held pulls, and answer the sends
        that were waiting for it.
        """
        self._store.confirm(offset)
        self.note_replicated(offset)
        self.after_commit()

    def forget_unconfirmed(self) -> None:
        """Refuse the pending sends; call this when the broker is no longer the master."""
        self._store.forget_unconfirmed()
        self.waiting_count, self._waiting_since_ms = 0, None
        self.after_commit()

    async def truncate(self, offset: int) -> None:
        """Truncate the log at a record boundary; raise DiskError.

        The broker must not be a master, and must not serve reads while this runs. Searches that are
        still running for clients are refused.
        """
        assert not self._store.role_writable
        self.forget_unconfirmed()
        self._is_truncating = True
        try:
            await self.drain()
            await self._workers.store.submit(partial(self._store.truncate, offset))
        finally:
            self._is_truncating = False
        self.truncated()

    def read(self, call: Call[Any], job: Callable[[], T], done: Callable[[T], None]) -> None:
        """Run a job on the read thread, where it may block; pass its result to `done` on the loop.

        If the read fails, the call is answered with the error. Raise SystemBusy if too many reads
        are pending.
        """
        future = self._submit(job)
        self._reads.add(future)
        future.add_done_callback(self._reads.discard)
        future.add_done_callback(partial(self._read, call, done))

    def _read(self, call: Call[Any], done: Callable[[T], None], future: asyncio.Future[T]) -> None:
        error = _error(future)
        if error is None:
            done(future.result())
            return
        self._log.warning("read.failed", code=call.code, error=describe(error))
        call.fail(ServerError(describe(error)))

    def run(
        self, job: Callable[[], T], done: Callable[[T], None], failed: Callable[[Exception], None]
    ) -> None:
        """Run a job of the broker on the read thread, then call `done` or `failed` on the loop."""

        def ended(future: asyncio.Future[T]) -> None:
            error = _error(future)
            if error is None:
                done(future.result())
            else:
                failed(error)

        try:
            future = self._submit(job)
        except SystemBusy as error:
            failed(error)
            return
        self._reads.add(future)
        future.add_done_callback(self._reads.discard)
        future.add_done_callback(ended)

    def look_up(
        self,
        lookup: Lookup[T],
        done: Callable[[T], None],
        failed: Callable[[Exception], None],
        *,
        peer: Peer | None = None,
        is_part_of_put: bool = False,
    ) -> None:
        """Run a search; `done` is called on the loop, immediately if all its reads are in memory.

        A search for a `peer` ends silently if its connection closes. `failed` receives the error of
        a read, or SystemBusy if too many reads are pending. A search that is part of a put reads a
        single message and is limited like a put, so it does not count towards the turn's bound.
        """
        self._advance(_Search(lookup, done, failed, peer, is_part_of_put), None)

    def _advance(self, search: _Search, data: Buffer | None) -> None:
        """Continue until the search ends, waits for the disk, or exceeds the turn's bound."""
        lookup = search.lookup
        try:
            self._check_readable()
            read = next(lookup) if data is None else lookup.send(data)
            cached = read.cached()
            while cached is not None and (search.is_part_of_put or self._has_share(len(cached))):
                read = lookup.send(cached)
                cached = read.cached()
            future: asyncio.Future[Any]
            if cached is not None:
                future = self._postpone(search, cached)
            else:
                future = self._submit(read.load)
                future.add_done_callback(partial(self._advanced, search))
        except StopIteration as end:
            found = end.value
        except Exception as error:  # noqa: BLE001  # like a job's error: its caller must get it
            search.failed(error)
            return
        else:
            self._reads.add(future)
            future.add_done_callback(self._reads.discard)
            return
        search.done(found)

    def _advanced(self, search: _Search, future: asyncio.Future[Buffer]) -> None:
        if _is_abandoned(search):
            future.exception()  # mark the error as retrieved: asyncio would report it
            return
        error = _error(future)
        if error is not None:
            search.lookup.close()
            search.failed(error)
        else:
            self._advance(search, future.result())

    def _submit(self, job: Callable[[], T]) -> asyncio.Future[T]:
        self._check_readable()
        try:
            return self._workers.read.submit(job)
        except Overloaded as error:
            raise SystemBusy(f"[OVERLOAD]too many cold reads, {error}") from error

    def _check_readable(self) -> None:
        if self._is_truncating:
            raise SystemBusy("the log is being truncated; try again, or ask the master")

    def _has_share(self, size: int) -> bool:
        """Count one read towards this turn's bound; return False if the bound is reached."""
        # The first read of a turn arranges the reset, so an idle driver schedules nothing.
        if self._reads_left == TURN_READS_MAX:
            self._loop.call_soon(self._next_turn)
        if self._reads_left <= 0 or self._bytes_left <= 0:
            return False
        self._reads_left -= 1
        self._bytes_left -= size
        return True

    def _postpone(self, search: _Search, data: Buffer) -> asyncio.Future[Any]:
        """Continue the search with these bytes in a later turn of the loop."""
        future: asyncio.Future[Any] = self._loop.create_future()
        self._waiting.append((search, data, future))
        return future

    def _next_turn(self) -> None:
        """Reset the bound, and continue the search that has been postponed the longest."""
        self._bytes_left = TURN_BYTES_MAX
        if not self._waiting:
            self._reads_left = TURN_READS_MAX
            return
        self._reads_left = TURN_READS_MAX - 1  # the continued search already has its first read
        self._loop.call_soon(self._next_turn)
        search, data, future = self._waiting.popleft()
        future.set_result(None)
        if not _is_abandoned(search):
            self._advance(search, data)

    def tick_interval_ms(self) -> int:
        """Return the pause until the next tick; it is longer while nothing is being written."""
        store, before = self._store, self._ticked_end
        self._ticked_end = end = store.commit_log.end
        is_busy = end != before or self._jobs or self._flushing is not None or self.waiting_count
        return TICK_INTERVAL_MS if is_busy or store.has_pages_to_flush else IDLE_INTERVAL_MS

    def tick(self) -> None:
        """Start any flush and housekeeping that are due."""
        if self._is_truncating:
            return
        self._flush()
        now_ms = self._clock.now_ms()
        for job in self._store.jobs(now_ms):
            self._start(job, self._workers.store)
        scrub = self._store.scrub_job(now_ms)
        if scrub is not None:
            self._start(scrub, self._workers.scrub)

    def _start(self, job: Job, worker: Worker) -> None:
        future = worker.submit(job.run)
        self._jobs.add(future)
        future.add_done_callback(self._jobs.discard)
        future.add_done_callback(partial(self._job_ended, job))

    @property
    def read_count(self) -> int:
        return len(self._reads)

    def head_wait_ms(self) -> int:
        """Return how long the oldest send has waited for the disk."""
        since_ms = self._flushing_since_ms
        if since_ms is None:
            since_ms = self._waiting_since_ms
        return 0 if since_ms is None else self._clock.monotonic_ms() - since_ms

    async def drain(self) -> None:
        """Write all staged messages, and wait until reads and pending sends are answered.

        Afterwards no job is running, so the store may be closed on a thread.
        """
        self.commit()
        while self._flushing is not None or self._reads or self._jobs:
            flushing = [] if self._flushing is None else [self._flushing]
            await asyncio.wait([*flushing, *self._reads, *self._jobs])
            if self._is_scheduled:  # by a finished read
                self.commit()

    async def settle(self) -> None:
        """Flush everything, unless the disk has failed."""
        await self.drain()
        self._flush(is_forced=True)
        await self.drain()

    def begin_turn(self) -> None:
        """Schedule no commit until `end_turn`, which handles what is staged in between."""
        if not self._is_scheduled:
            self._is_scheduled = self._is_in_turn = True
            self._staged_s = time.perf_counter()

    def end_turn(self) -> None:
        """Commit the request staged since `begin_turn`; schedule the commit of several requests.

        A lone sender waits for its answer, while several requests gain from a larger commit.
        """
        if not self._is_in_turn:
            return
        self._is_in_turn = False
        count = self._store.staged_count
        if count == 1:
            self.commit()
        elif count:
            self._loop.call_soon(self.commit)
        else:
            self._is_scheduled = False

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._staged_s = time.perf_counter()
            # The loop first serves the other sockets that are readable now, so that their messages
            # share this commit.
            self._loop.call_soon(self.commit)
        # Nothing else bounds what one turn stages.
        elif self._store.staged_bytes > STAGED_BYTES_MAX and not self._is_committing:
            self.commit()

    def _flush(self, *, is_forced: bool = False) -> None:
        """Start a flush if one is due and none is running; sends that arrive during a flush share
        the next one.
        """
        if self._flushing is not None or self._is_truncating:
            return
        job = self._store.flush_job(self._clock.now_ms(), is_forced=is_forced)
        self.waiting_count = self._store.waiting_put_count  # without the sends that timed out
        if not self.waiting_count:
            self._waiting_since_ms = None
        if job is not None:
            # This sync covers every send so far; sends from now on wait for the next one.
            self._flushing_since_ms, self._waiting_since_ms = self._waiting_since_ms, None
            self._sync_began_s = time.perf_counter()
            self._flushing = self._workers.flush.submit(job.run)
            self._flushing.add_done_callback(partial(self._flushed, job))

    def _flushed(self, job: FlushJob, future: asyncio.Future[None]) -> None:
        self._flushing = None
        self.sync_seconds.observe(time.perf_counter() - self._sync_began_s)
        waiting_count = self.waiting_count
        self._store.flush_done(job, _error(future))
        self.waiting_count = self._store.waiting_put_count
        if self._flushing_since_ms is not None:
            elapsed_ms = self._clock.monotonic_ms() - self._flushing_since_ms
            self._count_waited(elapsed_ms, waiting_count - self.waiting_count)
            self._flushing_since_ms = None
        self.after_commit()
        if self.waiting_count:
            self._flush()

    def _job_ended(self, job: Job, future: asyncio.Future[None]) -> None:
        error = _error(future)
        if error is not None:
            self._log.error("store.job_failed", job=job.name, error=describe(error))
        job.done(error)
        self.job_ended()


def _is_abandoned(search: _Search) -> bool:
    """Return whether the peer of a search has disconnected; if so, end the search."""
    if search.peer is None or search.peer.is_open:
        return False
    search.lookup.close()
    return True


def _error(future: asyncio.Future[T]) -> Exception | None:
    """Return the error of a job; anything that is not an Exception ends the process."""
    error = future.exception()
    if error is not None and not isinstance(error, Exception):
        raise error
    return error
