# SPDX-License-Identifier: Apache-2.0
"""Group commit on a worker and on the native thread: nothing is answered before it is on the disk,
and a slow or failing disk never stops the loop.
"""

import asyncio
import errno
import os
import queue
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol, cast

import pytest

from cometmq.broker.native import IS_BUILT, accel
from cometmq.broker.storing.log_syncs import (
    REPEAT_MS,
    SLOW_COUNT,
    SLOW_S,
    NativeSyncs,
    SlowSyncs,
    Sync,
)
from cometmq.store.errors import DiskError
from cometmq.store.os_disk import OsDisk
from cometmq.store.results import PutResult, PutStatus
from cometmq.store.settings import FlushDiskType
from cometmq.store.upkeep.jobs import FlushJob
from cometmq.testing.broker.held_syncs import HeldSyncer
from cometmq.testing.broker.logs import RecordingLog
from cometmq.testing.broker.replicas import DEADLINE_S, Node, until
from cometmq.testing.store.builders import make_message
from cometmq.testing.store.memory_disk import MemoryDisk

OK = PutStatus.PUT_OK
SYNC_FLUSH = FlushDiskType.SYNC_FLUSH


class HeldSyncs(Protocol):
    """A disk whose syncs of the log end only when the test lets them."""

    def end(self, number: int = 0) -> None:
        """End the running sync, or the next one to begin, with an errno."""

    def release(self) -> None:
        """Let all syncs end at once from now on."""


class HeldDisk(MemoryDisk):
    """Holds syncs on the thread that runs them."""

    def __init__(self) -> None:
        super().__init__()
        self._ends: queue.Queue[int] = queue.Queue()
        self._is_held = True
        self.fault = self._hold

    def _hold(self, operation: str, path: str) -> int:
        if operation != "sync" or "/commitlog/" not in path or not self._is_held:
            return 0
        return self._ends.get(timeout=DEADLINE_S)

    def end(self, number: int = 0) -> None:
        self._ends.put(number)

    def release(self) -> None:
        self._is_held = False
        self._ends.put(0)


@asynccontextmanager
async def held_node(way: str, folder: Path) -> AsyncIterator[tuple[Node, HeldSyncs]]:
    held: Any
    if way == "worker":
        held = HeldDisk()
        node = Node(held, flush_disk_type=SYNC_FLUSH)
    else:
        held = HeldSyncer()
        node = Node(OsDisk(), syncer=held, flush_disk_type=SYNC_FLUSH, **paths(folder))
    async with node:
        try:
            yield node, held
        finally:
            held.release()


def paths(folder: Path) -> dict[str, Any]:
    return {"store_path_root_dir": str(folder / "store"), "store_path_commit_log": ""}


def put(node: Node) -> list[PutResult]:
    """Commit a message."""
    results = node.put(make_message())
    node.driver.commit()
    return results


ways = pytest.mark.parametrize("way", ["worker", "native"])


@ways
async def test_a_sync_answers_what_was_written_before_it_began(way: str, tmp_path: Path) -> None:
    async with held_node(way, tmp_path) as (node, held):
        first = put(node)
        during = [put(node) for _ in range(3)]
        assert node.driver.sends.waiting_count == 4
        held.end()
        await until(lambda: first)
        assert during == [[]] * 3
        held.end()  # one sync for the three
        await until(lambda: node.driver.sends.waiting_count == 0)
        assert [result.status for one in (first, *during) for result in one] == [OK] * 4
        assert node.store.stats().flush_count == 2
        assert node.driver.sends.head_wait_ms() == 0


@ways
async def test_a_sync_begins_before_its_messages_are_visible(way: str, tmp_path: Path) -> None:
    async with held_node(way, tmp_path) as (node, held):
        begun: list[bool] = []
        syncs = node.driver.sends.syncs
        node.store.publisher.listeners.append(lambda *_: begun.append(syncs.is_busy))
        answered = put(node)
        assert begun == [True]
        held.end()
        await until(lambda: answered)
        assert node.store.stats().flush_count == 1


@ways
async def test_a_failed_sync_refuses_what_a_later_sync_would_answer(
    way: str, tmp_path: Path
) -> None:
    async with held_node(way, tmp_path) as (node, held):
        pending = [put(node) for _ in range(3)]
        held.end(errno.EIO)
        held.end()
        await until(lambda: all(pending))
        refused = PutStatus.SERVICE_NOT_AVAILABLE
        assert [result.status for one in pending for result in one] == [refused] * 3
        assert "sync-failed" in node.store.write_state.refusals
        assert [result.status for result in put(node)] == [refused]


@ways
async def test_a_sync_that_hangs_does_not_stop_the_loop(way: str, tmp_path: Path) -> None:
    async with held_node(way, tmp_path) as (node, held):
        pending = [put(node) for _ in range(2)]
        sent: list[int] = []
        node.driver.turn.wake.connect(lambda: sent.append(len(pending[0])))
        node.clock.advance(4_900)
        node.driver.tick()
        assert pending == [[], []]
        assert node.driver.sends.head_wait_ms() == 4_900
        assert node.store.reader.max_offset("T", 0) == 2  # consumers are served
        node.rig.clock.advance(5_000)
        node.driver.tick()
        timed_out = PutStatus.FLUSH_DISK_TIMEOUT
        assert [result.status for one in pending for result in one] == [timed_out] * 2
        assert sent[-1] == 1  # the answers leave at once
        late = put(node)
        held.release()
        await until(lambda: late)
        assert [result.status for result in late] == [OK]


@ways
async def test_a_drain_waits_for_the_sync_after_the_running_one(way: str, tmp_path: Path) -> None:
    async with held_node(way, tmp_path) as (node, held):
        pending = [put(node) for _ in range(2)]
        draining = asyncio.get_running_loop().create_task(node.driver.drain())
        held.end()
        await until(lambda: pending[0])
        assert not draining.done()
        held.end()
        await draining
        assert [result.status for one in pending for result in one] == [OK] * 2


async def test_ends_are_reported_in_order_even_while_one_is_reported(tmp_path: Path) -> None:
    """A later sync that succeeded must not answer what an earlier one has lost."""
    held = HeldSyncer()
    reported: list[tuple[int | None, bool]] = []

    def report(sync: Sync, error: Exception | None) -> None:
        reported.append((sync.since_ms, error is None))
        if sync.since_ms == 1:
            held.end()  # the third
            syncs.collect()

    async with held_node("native", tmp_path) as (node, _):
        syncs = NativeSyncs(held, report)
        put(node)
        job = node.store.upkeep.flusher.plan()
        syncs.start(job, 1)
        syncs.start(job, 2)
        held.end()
        syncs.start(job, 3)
        held.end(errno.EIO)
        syncs.collect()
        await syncs.wait()
    assert reported == [(1, True), (2, False), (3, True)]


async def test_an_answer_never_waits_for_an_earlier_sync_than_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the files of its sync cannot be opened, the next sync answers."""

    class Answers:
        def __init__(self) -> None:
            self.writes: list[FlushJob] = []

        def write(self) -> bool:
            self.writes.append(job)
            return True

    held, answers = HeldSyncer(), Answers()
    errors: list[Exception | None] = []
    async with held_node("native", tmp_path) as (node, _):
        syncs = NativeSyncs(held, lambda _, error: errors.append(error))
        put(node)
        job = node.store.upkeep.flusher.plan()
        syncs.start(job, None)
        held.end()
        await syncs.wait()
        with monkeypatch.context() as patch:
            refusal = DiskError("open", "log", errno.EMFILE)
            patch.setattr(job, "refused", refusal)
            syncs.start(job, None)
            syncs.lend(cast("Any", answers), is_all=True)
            await syncs.wait()
        assert not answers.writes
        syncs.start(job, None)
        held.end()
        assert answers.writes == [job]
        await syncs.wait()
    assert errors == [None, refusal, None]


async def test_a_file_that_cannot_be_opened_is_synced_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with held_node("native", tmp_path) as (node, held):
        put(node)
        refused: list[str] = []

        def refuse(path: str, *_: object) -> int:
            refused.append(path)
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)

        with monkeypatch.context() as patch:
            patch.setattr("os.open", refuse)
            late = put(node)  # it must open the folder, which has a new file
            await asyncio.sleep(0)
        assert [Path(path).name for path in refused] == ["commitlog"]
        assert not late
        held.release()
        node.rig.clock.advance(1_000)
        node.driver.tick()
        await until(lambda: late)
        assert [result.status for result in late] == [OK]


@pytest.mark.skipif(not IS_BUILT, reason="cometmq-accel is built only with cargo")
async def test_the_native_thread_completes_puts(tmp_path: Path) -> None:
    """Also across files of the log, whose folder must be synced."""
    syncer = accel.LogSyncer()
    node = Node(OsDisk(), syncer=syncer, flush_disk_type=SYNC_FLUSH, **paths(tmp_path))
    async with node:
        pending = []
        for _ in range(40):
            pending += [node.put(make_message(body=bytes(2_000))) for _ in range(3)]
            await asyncio.sleep(0)
        await until(lambda: all(pending))
        assert {result.status for one in pending for result in one} == {OK}
        assert node.store.upkeep.flusher.flushed_offset == node.end
        assert len(node.store.commit_log.files.files) > 1
        assert node.driver.sends.sync_seconds.count > 0


def test_a_slow_disk_is_reported_once_a_minute() -> None:
    log = RecordingLog()
    slow = SlowSyncs(log)
    for seconds in [SLOW_S] * (SLOW_COUNT - 1) + [0.001] + [SLOW_S] * (SLOW_COUNT - 1):
        slow.note(seconds, now_ms=0)
    assert not log.named("sync.slow")  # a disk may stall now and then
    for _ in range(5):
        slow.note(0.2, now_ms=1_000)
    (line,) = log.named("sync.slow")
    assert line["elapsed_ms"] == 200
    slow.note(0.2, now_ms=1_000 + REPEAT_MS)
    assert len(log.named("sync.slow")) == 2
