# SPDX-License-Identifier: Apache-2.0
"""Flushes and checkpoints both notice a failed writeback of their bytes, whichever syncs first."""

import errno
from random import Random
from typing import Any

import pytest

from cometmq.peers.long_forms import seeds
from cometmq.store.errors import DiskError
from cometmq.store.recovery.checkpoint import Progress
from cometmq.store.results import PutStatus
from cometmq.store.settings import FlushDiskType
from cometmq.testing.store.builders import StoreRig, make_message, small_settings
from cometmq.testing.store.memory_disk import MemoryDisk

SYNC_FLUSH = small_settings(flush_disk_type=FlushDiskType.SYNC_FLUSH)
NOTES = "/store/deletions"


class Run:
    """A store whose flusher and checkpoints run as on two threads."""

    def __init__(self) -> None:
        self.disk = MemoryDisk()
        self.rig = StoreRig(self.disk, SYNC_FLUSH)
        self.results: list[Any] = []
        self.flush: Any = None
        self.checkpoint: Any = None
        self.lost_from: int | None = None

    def put(self) -> None:
        self.rig.store.writer.put(make_message(body=bytes(600)), self.results.append)
        self.rig.store.writer.commit()

    def plan_flush(self) -> None:
        if self.flush is None:
            job = self.rig.store.upkeep.flusher.job(self.rig.clock.advance(10))
            self.flush = None if job is None else [job, "planned"]

    def plan_checkpoint(self) -> None:
        for _ in range(4 if self.checkpoint is None else 0):
            for job in self.rig.store.jobs(self.rig.clock.advance(2_000)):
                if job.name == "checkpoint":
                    self.checkpoint = [job, "planned"]
                    return
                job.run()
                job.done(None)

    def run(self, planned: Any) -> None:
        if planned is not None and planned[1] == "planned":
            planned[1] = None
            try:
                planned[0].run()
            except DiskError as error:
                planned[1] = error

    def end_flush(self) -> None:
        if self.flush is not None and self.flush[1] != "planned":
            (job, error), self.flush = self.flush, None
            self.rig.store.upkeep.flusher.done(job, error)

    def end_checkpoint(self) -> None:
        if self.checkpoint is not None and self.checkpoint[1] != "planned":
            (job, error), self.checkpoint = self.checkpoint, None
            job.done(error)

    def lose(self, random: Random) -> None:
        """Let the writeback of one file of the log fail, if it has bytes that are not synced."""
        files = self.rig.store.commit_log.files
        file = random.choice(files.files) if files.files else None
        if file is None or self.lost_from is not None:
            return
        data = self.disk.contents[file.path]
        durable = self.disk.durable.get(file.path, b"").ljust(len(data), b"\0")
        if data != durable:
            self.disk.lose_writeback(file.path)
            start = files.first + files.files.index(file) * files.file_size
            pairs = enumerate(zip(data, durable, strict=True))
            self.lost_from = start + next(at for at, (new, old) in pairs if new != old)

    def check(self) -> None:
        if self.lost_from is None:
            return
        acknowledged = [it.physical_offset for it in self.results if it.status is PutStatus.PUT_OK]
        assert max(acknowledged, default=-1) < self.lost_from
        progress = Progress.decode(bytes(self.disk.contents["/store/progress"]))
        assert progress is None or progress.offset <= self.lost_from


@seeds(40, long=150)
def test_nobody_vouches_for_lost_bytes(seed):
    random, run = Random(seed), Run()
    steps = [
        run.put, run.put, run.plan_flush, run.plan_checkpoint,
        lambda: run.run(run.flush), lambda: run.run(run.checkpoint),
        run.end_flush, run.end_checkpoint,
    ]  # fmt: skip
    for number in range(120):
        random.choice(steps)()
        if number > 30 and random.random() < 0.1:
            run.lose(random)
        run.check()
    if run.lost_from is not None and random.random() < 0.5:
        run.rig.store.close()
        assert run.disk.exists("/store/abort")
        run.check()


@pytest.mark.parametrize("is_checkpoint_first", [True, False])
@pytest.mark.parametrize("part", ["commitlog", NOTES])
def test_both_syncers_report_a_failed_writeback(part, is_checkpoint_first):
    run = Run()
    run.put()
    run.rig.store.delete_topic("T")
    run.put()
    run.plan_flush()
    run.plan_checkpoint()
    path = next(path for path in run.disk.contents if part in path)
    run.disk.lose_writeback(path)
    order = [run.checkpoint, run.flush] if is_checkpoint_first else [run.flush, run.checkpoint]
    for planned in order:
        run.run(planned)
    assert [str(error) for _, error in order] == [f"cannot sync {path}: EIO"] * 2
    run.end_checkpoint()
    run.end_flush()
    assert [it.status for it in run.results] == [PutStatus.SERVICE_NOT_AVAILABLE] * 2
    assert not any(run.disk.contents["/store/progress"])


def test_a_file_that_cannot_be_opened_apart_is_synced_later():
    run = Run()
    run.disk.fault = lambda operation, _: errno.EMFILE if operation == "open" else 0
    run.put()
    run.plan_flush()
    run.run(run.flush)
    run.end_flush()
    run.plan_checkpoint()
    run.run(run.checkpoint)
    run.end_checkpoint()
    assert not run.results
    assert "sync-failed" not in run.rig.store.stats().refusals
    run.disk.fault = None
    run.rig.work(3)
    assert [it.status for it in run.results] == [PutStatus.PUT_OK]
    assert run.rig.store.write_state.is_writable
