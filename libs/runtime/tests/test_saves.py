# SPDX-License-Identifier: Apache-2.0
"""Saves are coalesced: while one is running, at most one more is pending, and not yet encoded."""

import asyncio
import errno
import gc
import threading
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from pathlib import Path

import pytest

from cometmq.runtime.incremental import Steps
from cometmq.runtime.saves import Saver
from cometmq.runtime.worker import Worker

PATH = Path("table.json")


class Table:
    """A counter and its file; writes block on a gate and may fail."""

    def __init__(self) -> None:
        self.value = 0
        self.written: list[int] = []
        self.encoded_count = 0
        self.error: OSError | None = None
        self.gate = threading.Event()
        self.gate.set()
        self.is_writing = threading.Event()

    def begin(self) -> Callable[[], None]:
        self.encoded_count += 1
        return partial(self._write, self.value)

    def begin_in_parts(self) -> Steps[Callable[[], None]]:
        yield
        return self.begin()

    def _write(self, value: int) -> None:
        self.is_writing.set()
        assert self.gate.wait(60)
        if self.error is not None:
            raise self.error
        self.written.append(value)


@pytest.fixture
def table() -> Iterator[Table]:
    table = Table()
    yield table
    table.gate.set()


@pytest.fixture
def worker(table: Table) -> Iterator[Worker]:
    worker = Worker("test-saves")
    yield worker
    table.gate.set()
    worker.close()


@pytest.fixture
def saver(worker: Worker) -> Saver:
    return Saver(worker)


async def hold(saver: Saver, table: Table, group: asyncio.TaskGroup) -> asyncio.Task[str]:
    """Start a save that stays in flight until the gate opens."""
    table.gate.clear()
    table.is_writing.clear()
    task = group.create_task(outcome(saver.save(PATH, table.begin)))
    await asyncio.to_thread(table.is_writing.wait, 10)
    return task


async def outcome(save: Coroutine[None, None, None]) -> str:
    """Return a save's error message, or an empty string if it succeeded."""
    try:
        await save
    except OSError as error:
        return error.strerror or ""
    return ""


async def test_changes_of_one_turn_share_one_save(saver: Saver, table: Table) -> None:
    async def change() -> None:
        table.value += 1
        await saver.save(PATH, table.begin)

    async with asyncio.TaskGroup() as group:
        for _ in range(1_000):
            group.create_task(change())

    assert table.written == [1_000]


async def test_a_burst_during_a_save_costs_one_more(saver: Saver, table: Table) -> None:
    async with asyncio.TaskGroup() as group:
        await hold(saver, table, group)
        pending = []
        for value in range(1, 1_001):
            table.value = value
            pending.append(group.create_task(saver.save(PATH, table.begin)))
            await asyncio.sleep(0)
        assert table.encoded_count == 1
        assert not any(task.done() for task in pending)
        table.gate.set()

    assert table.written == [0, 1_000]


async def test_a_caller_waits_for_a_save_that_began_after_its_change(
    saver: Saver, table: Table
) -> None:
    """The running save has older content, so its completion must not release the caller."""

    def begin() -> Callable[[], None]:
        table.gate.clear()
        return table.begin()

    async with asyncio.TaskGroup() as group:
        running = await hold(saver, table, group)
        table.value = 7
        later = group.create_task(saver.save(PATH, begin))
        await asyncio.sleep(0)
        table.gate.set()

        await running
        assert table.written == [0]
        assert not later.done()
        table.gate.set()
    assert table.written == [0, 7]


async def test_a_failure_reaches_all_callers_and_is_repeated_with_the_newest_content(
    saver: Saver, table: Table
) -> None:
    async with asyncio.TaskGroup() as group:
        callers = [await hold(saver, table, group)]
        table.error = OSError(errno.ENOSPC, "No space left on device")
        table.value = 1
        saves = [outcome(saver.save(PATH, table.begin)) for _ in range(3)]
        callers += [group.create_task(save) for save in saves]
        await asyncio.sleep(0)
        table.gate.set()

    assert [task.result() for task in callers] == ["No space left on device"] * 4
    assert not saver.is_healthy
    assert saver.failed_count == 2

    table.error, table.value = None, 2
    saver.retry()
    await saver.drain()

    assert saver.is_healthy
    assert table.written == [2]
    saver.retry()
    await saver.drain()
    assert table.written == [2]


async def test_an_error_of_the_encoder_reaches_the_caller(saver: Saver, table: Table) -> None:
    def begin() -> Callable[[], None]:
        raise ValueError("lone surrogate")

    with pytest.raises(ValueError, match="surrogate"):
        await saver.save(PATH, begin)
    await saver.save(PATH, table.begin)
    assert saver.is_healthy


async def test_a_cancelled_caller_leaves_the_others_waiting(saver: Saver, table: Table) -> None:
    async with asyncio.TaskGroup() as group:
        await hold(saver, table, group)
        first = group.create_task(saver.save(PATH, table.begin))
        group.create_task(saver.save(PATH, table.begin))
        await asyncio.sleep(0)
        first.cancel()
        table.gate.set()

    assert first.cancelled()
    assert table.written == [0, 0]


async def test_two_files_are_saved_each_by_its_own_content(saver: Saver, table: Table) -> None:
    other = Table()
    saver.request(PATH, table.begin_in_parts)
    saver.request(Path("other.json"), other.begin)
    await saver.drain()
    assert (table.written, other.written) == ([0], [0])


async def test_requests_without_waiters_hold_no_memory(saver: Saver, table: Table) -> None:
    async with asyncio.TaskGroup() as group:
        await hold(saver, table, group)
        saver.request(PATH, table.begin)
        gc.collect()
        before = len(gc.get_objects())
        for _ in range(10_000):
            saver.request(PATH, table.begin)
        gc.collect()
        assert len(gc.get_objects()) - before < 100
        table.gate.set()

    await saver.drain()
    assert table.written == [0, 0]
    assert saver.done_count == 2
