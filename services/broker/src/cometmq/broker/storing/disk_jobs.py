# SPDX-License-Identifier: Apache-2.0
"""The threads for disk work, and the store's jobs that run on them."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

from cometmq.broker.turn import Signal
from cometmq.remoting.log import Log
from cometmq.remoting.transport.tasks import describe
from cometmq.runtime.worker import Worker, error_of
from cometmq.store.message_store import MessageStore
from cometmq.store.upkeep.jobs import Job


class Workers(NamedTuple):
    """The threads of a broker, each for one kind of disk work."""

    flush: Worker  # fsync of the commit log: senders wait for it
    writeback: Worker  # starting to write the log to the disk
    store: Worker  # checkpoints, retention, deletion
    read: Worker  # cold reads of consumers that catch up
    replicate: Worker  # cold reads of slaves that catch up
    config: Worker  # config tables
    scrub: Worker  # comparing the log with its checksums: yields the disk to the others

    @classmethod
    def start(cls) -> "Workers":
        """Create the workers; raise NoThread if the system allows no more threads."""
        return cls(
            *(Worker(f"cometmq-{name}", has_idle_io=name == "scrub") for name in cls._fields)
        )

    def close(self) -> None:
        """Wait for submitted jobs; blocks."""
        for worker in self:
            worker.close()


class DiskJobs:
    """Starts the jobs that are due."""

    def __init__(
        self, store: MessageStore, workers: Workers, *, log: Log, ended: Signal[[]]
    ) -> None:
        self._store = store
        self._log = log
        self._job_ended = ended
        self.workers = workers
        self.running: set[asyncio.Future[object]] = set()

    def start_due(self, now_ms: int) -> None:
        """Start housekeeping and scrubbing if they are due."""
        for job in self._store.jobs(now_ms):
            self._start(job, self.workers.store)
        scrub = self._store.upkeep.scrubber.job(now_ms)
        if scrub is not None:
            self._start(scrub, self.workers.scrub)

    def write_back(self) -> None:
        """Start to write the log from the page cache to the disk, if enough of it is unwritten."""
        job = self._store.upkeep.flusher.writeback_job()
        if job is not None:
            self._start(job, self.workers.writeback)

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count the work in this context, of one or more turns, as a running job."""
        future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self.running.add(future)
        try:
            yield
        finally:
            self.running.discard(future)
            future.set_result(None)

    def _start(self, job: Job, worker: Worker) -> None:
        future = worker.submit(job.run)
        self.running.add(future)
        future.add_done_callback(self.running.discard)
        future.add_done_callback(partial(self._ended, job))

    def _ended(self, job: Job, future: asyncio.Future[object]) -> None:
        error = error_of(future)
        if error is not None:
            self._log.error("store.job_failed", job=job.name, error=describe(error))
        job.done(error)
        self._job_ended()
