# SPDX-License-Identifier: Apache-2.0
"""A loop survives errors, or ends on the first one if declared fatal, but never fails silently."""

import asyncio

import pytest

from cometmq.runtime.tasks import Alarm, every
from cometmq.testing.broker.logs import RecordingLog


class FakeSleep:
    """Returns immediately a given number of times, then ends the loop by cancellation."""

    def __init__(self, count):
        self.left = count
        self.waits = []

    async def __call__(self, seconds):
        self.waits.append(seconds)
        self.left -= 1
        if self.left < 0:
            raise asyncio.CancelledError


async def test_the_step_runs_after_the_first_wait_and_then_at_the_interval():
    steps, sleep = [], FakeSleep(3)
    with pytest.raises(asyncio.CancelledError):
        await every(10_000, lambda: steps.append(1), name="scan", first_ms=5000, sleep=sleep)
    assert sleep.waits == [5.0, 10.0, 10.0, 10.0]
    assert len(steps) == 3


async def test_an_idle_step_may_run_less_often():
    steps: list[int] = []
    sleep = FakeSleep(3)
    with pytest.raises(asyncio.CancelledError):
        await every(
            lambda: 100 if len(steps) == 1 else 500,
            lambda: steps.append(1),
            name="scan",
            sleep=sleep,
        )
    assert sleep.waits == [0.5, 0.1, 0.5, 0.5]


async def test_loops_with_different_phases_run_their_steps_in_the_same_turns():
    now_s, loop = [], asyncio.get_running_loop()
    async with asyncio.TaskGroup() as group:
        loops = []
        for _ in range(3):
            loops.append(group.create_task(every(20, lambda: now_s.append(loop.time()), name="x")))
            await asyncio.sleep(0.003)
        await asyncio.sleep(0.1)
        for one in loops:
            one.cancel()
    turns = {round(one / 0.02) for one in now_s}
    assert len(now_s) >= 2 * len(turns)


async def test_coroutine_steps_are_awaited():
    steps = []

    async def step():
        await asyncio.sleep(0)
        steps.append(1)

    with pytest.raises(asyncio.CancelledError):
        await every(1, step, name="scan", sleep=FakeSleep(2))
    assert len(steps) == 2


async def test_a_failed_step_is_logged_and_the_loop_goes_on():
    log = RecordingLog()
    with pytest.raises(asyncio.CancelledError):
        await every(1, lambda: 1 // 0, name="scan", log=log, sleep=FakeSleep(2))
    assert [facts["task"] for facts in log.named("task.failed")] == ["scan"] * 2


async def test_a_fatal_loop_ends_with_its_error():
    with pytest.raises(ZeroDivisionError):
        await every(1, lambda: 1 // 0, name="scan", sleep=FakeSleep(9), is_fatal=True)


async def test_an_alarm_ends_a_pause_unless_it_ends_earlier():
    alarm = Alarm(lambda: 1_000, least_ms=0)
    alarm.ring_at(1_000)  # before the first pause, which is the loop's own
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        group.create_task(alarm.sleep(3_600))
        await asyncio.sleep(0)
        for time_ms in (10**9, 1_001, 10**7):
            alarm.ring_at(time_ms)


async def test_an_alarm_between_two_pauses_ends_the_second():
    alarm = Alarm(lambda: 1_000, least_ms=0)
    await alarm.sleep(0.001)
    alarm.ring_at(900)
    await asyncio.wait_for(alarm.sleep(3_600), 60)


async def test_an_alarm_leaves_a_pause_its_least_length():
    alarm, loop = Alarm(lambda: 1_000, least_ms=30), asyncio.get_running_loop()
    await alarm.sleep(0.001)
    began_s = loop.time()
    alarm.ring_at(0)
    await asyncio.wait_for(alarm.sleep(3_600), 60)
    assert loop.time() - began_s >= 0.03


async def test_a_cancelled_pause_leaves_no_timer():
    alarm = Alarm(lambda: 1_000, least_ms=0)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.001):
            await alarm.sleep(3_600)
    alarm.ring_at(1_001)
    await asyncio.wait_for(alarm.sleep(3_600), 60)
