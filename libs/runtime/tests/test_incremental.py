# SPDX-License-Identifier: Apache-2.0
"""A long job yields to the loop between its steps, and only one job runs at a time."""

import asyncio
from typing import Any

import pytest

from cometmq.runtime.incremental import IncrementalRunner, finish


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
