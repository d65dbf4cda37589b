# SPDX-License-Identifier: Apache-2.0
"""A long job yields to the loop between its steps, and only one job runs at a time."""

import asyncio
from typing import Any

import pytest

from cometmq.remoting.transport.flow.fair_queue import Requester
from cometmq.runtime.incremental import IncrementalRunner, LaterSteps, TurnExpired, TurnLock, finish


def work(name, parts, seen):
    for part in range(parts):
        seen.append(f"{name}{part}")
        yield
    return name


def test_finish_runs_all_parts_at_once():
    seen: list[Any] = []
    assert finish(work("a", 2, seen)) == "a"
    assert seen == ["a0", "a1"]


async def test_others_have_their_turn_between_the_parts_and_works_do_not_add_up():
    runner, seen = IncrementalRunner(), []

    async def other():
        for number in range(3):
            seen.append(f"-{number}")
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        first = group.create_task(runner.run(work("a", 2, seen)))
        group.create_task(runner.run(work("b", 1, seen)))
        group.create_task(other())
    assert first.result() == "a"
    assert seen.index("a0") < seen.index("-0") < seen.index("a1") < seen.index("b0")


async def test_work_that_nobody_waits_for_any_more_is_ended_and_the_next_one_begins():
    runner, ended = IncrementalRunner(), []

    def endless():
        try:
            while True:
                yield
        finally:
            ended.append(True)

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await runner.run(endless())
    assert ended == [True]
    assert await runner.run(work("b", 1, [])) == "b"


async def test_an_error_of_work_reaches_its_caller():
    def broken():
        yield
        raise ValueError("x")

    with pytest.raises(ValueError, match="x"):
        await IncrementalRunner().run(broken())


async def test_later_steps_begin_at_once_and_take_turns():
    later, seen = LaterSteps(), list[Any]()
    later.start(work("a", 3, seen))
    later.start(work("b", 0, seen))
    later.start(work("c", 2, seen))
    assert (seen, len(later)) == (["a0", "c0"], 2)
    while later:  # noqa: ASYNC110  # no event
        await asyncio.sleep(0)
    assert seen == ["a0", "c0", "a1", "c1", "a2"]


def test_a_job_of_one_step_needs_no_loop():
    later, seen = LaterSteps(), list[Any]()
    later.start(work("a", 0, seen))
    assert not later


async def test_a_job_may_start_another_one_in_any_step():
    later, seen = LaterSteps(), list[Any]()

    def starting():
        for _ in range(2):
            later.start(work("b", 2, seen))
            yield

    later.start(starting())
    while later:  # noqa: ASYNC110  # no event
        await asyncio.sleep(0)
    assert sorted(seen) == ["b0", "b0", "b1", "b1"]


async def test_a_later_step_that_fails_does_not_end_other_jobs():
    later, seen, faults = LaterSteps(), list[Any](), list[Any]()
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: faults.append(context["exception"])
    )

    def failing():
        yield
        raise ValueError

    later.start(failing())
    later.start(work("a", 3, seen))
    while later:  # noqa: ASYNC110  # no event
        await asyncio.sleep(0)
    assert seen == ["a0", "a1", "a2"]
    assert [type(fault) for fault in faults] == [ValueError]


class Rig:
    def __init__(self) -> None:
        self.lock = TurnLock()
        self.served: list[str] = []

    async def work(self, name: str) -> None:
        async with self.lock.hold(Requester(name[0])):
            await asyncio.sleep(0)
            self.served.append(name)


async def test_keys_take_turns_and_each_keeps_its_order():
    rig = Rig()
    async with asyncio.TaskGroup() as tasks:
        for name in ("a1", "a2", "a3", "a4", "b1", "b2", "c1"):
            tasks.create_task(rig.work(name))
    assert rig.served == ["a1", "a2", "b1", "c1", "a3", "b2", "a4"]
    assert not rig.lock.is_held


async def test_a_waiter_that_gives_up_is_left_out():
    rig = Rig()
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(rig.work(name)) for name in ("a1", "b1", "c1")]
        await asyncio.sleep(0)
        tasks[1].cancel()
    assert rig.served == ["a1", "c1"]
    assert not rig.lock.is_held


async def test_a_waiter_that_gives_up_at_its_turn_passes_it_on():
    rig = Rig()
    async with asyncio.TaskGroup() as group:
        async with rig.lock.hold(Requester("a")):
            tasks = [group.create_task(rig.work(name)) for name in ("b1", "c1")]
            await asyncio.sleep(0)
        tasks[0].cancel()
    assert rig.served == ["c1"]
    assert not rig.lock.is_held


async def test_a_waiter_whose_turn_does_not_come_leaves_the_queue():
    lock = TurnLock()

    async def wait() -> None:
        with pytest.raises(TurnExpired):
            async with lock.hold(Requester("a"), 0.02):
                raise AssertionError("it is held")

    async with lock.hold(Requester("b")):
        async with asyncio.TaskGroup() as tasks:
            for _ in range(20):
                tasks.create_task(wait())
        assert lock.waiting_count == 0
    assert not lock.is_held


async def test_a_holder_that_fails_with_a_timeout_is_not_taken_for_a_waiter():
    lock = TurnLock()
    with pytest.raises(TimeoutError):
        async with lock.hold(Requester("a"), 60):
            raise TimeoutError
    assert not lock.is_held
