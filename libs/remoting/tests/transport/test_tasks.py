# SPDX-License-Identifier: Apache-2.0
"""Background tasks end with their owner and never fail silently."""

import asyncio
import contextlib

import pytest

from cometmq.remoting.transport import tasks as transport_tasks
from cometmq.remoting.transport.tasks import TaskSet, due_on_grid


class RecordingLog:
    def __init__(self):
        self.events = []

    def debug(self, event, /, **facts):
        self.events.append(("debug", event, facts))

    def info(self, event, /, **facts):
        self.events.append(("info", event, facts))

    def warning(self, event, /, **facts):
        self.events.append(("warning", event, facts))

    def error(self, event, /, **facts):
        self.events.append(("error", event, facts))


async def fails():
    raise ValueError("no")


async def ends():
    return None


async def forever():
    await asyncio.Event().wait()


async def test_the_end_of_each_task_is_logged_by_name():
    log = RecordingLog()
    tasks = TaskSet(log)
    failed = tasks.spawn(fails(), name="a", is_endless=True)
    ended = tasks.spawn(ends(), name="b", is_endless=True)
    cancelled = tasks.spawn(forever(), name="c", is_endless=True)
    await asyncio.wait([failed, ended])
    cancelled.cancel()
    await asyncio.wait([cancelled])
    tasks.spawn(forever(), name="closed", is_endless=True)
    await tasks.close()
    assert [(level, event, facts["task"]) for level, event, facts in log.events] == [
        ("error", "task.failed", "a"),
        ("warning", "task.ended", "b"),
        ("debug", "task.cancelled", "c"),
    ]
    assert log.events[0][2]["error"] == "ValueError: no"


async def test_work_that_may_end_ends_without_a_log_line():
    log = RecordingLog()
    tasks = TaskSet(log)
    await tasks.spawn(ends(), name="b")
    assert (log.events, len(tasks)) == ([], 0)


async def test_background_work_ends_with_its_owner_and_errors_are_logged():
    log = RecordingLog()
    tasks = TaskSet(log)
    started, ended = asyncio.Event(), []

    async def works():
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    never_begun = TaskSet(log)
    never_begun.spawn(fails(), name="never")
    await never_begun.close()
    tasks.spawn(fails(), name="fails")
    tasks.spawn(works(), name="works")
    await started.wait()
    await asyncio.sleep(0)  # the failure is noted by a callback
    await tasks.close()
    assert ended == [True]
    assert {event for _, event, _ in log.events} == {"task.failed"}


async def test_a_task_may_close_its_own_set():
    tasks = TaskSet()
    other = tasks.spawn(forever(), name="other")
    await tasks.spawn(tasks.close(), name="closes")
    assert other.cancelled()


async def test_draining_waits_and_then_cancels():
    tasks = TaskSet()
    event = asyncio.Event()

    async def waits():
        await event.wait()

    in_time = tasks.spawn(waits(), name="in-time")
    late = tasks.spawn(forever(), name="late")
    event.set()
    await tasks.drain(0.01)
    assert (in_time.cancelled(), late.cancelled(), len(tasks)) == (False, True, 0)


async def test_a_loop_that_fails_runs_again(monkeypatch):
    monkeypatch.setattr(transport_tasks, "RESTART_MS", 0)
    rounds: list[int] = []

    async def work():
        rounds.append(len(rounds))
        if len(rounds) < 3:
            raise ValueError("a bug")

    await TaskSet().keep(work, name="loop")
    assert rounds == [0, 1, 2]


async def test_a_loop_that_cancels_its_own_task_runs_again(monkeypatch):
    monkeypatch.setattr(transport_tasks, "RESTART_MS", 0)
    log = RecordingLog()
    rounds: list[int] = []

    async def work():
        rounds.append(len(rounds))
        task = asyncio.current_task()
        if len(rounds) < 3 and task is not None:
            task.cancel()
            await asyncio.sleep(0)

    await TaskSet(log).keep(work, name="loop")
    assert rounds == [0, 1, 2]
    assert [(level, event) for level, event, _ in log.events] == [("error", "task.cancelled")] * 2


async def test_the_cancellation_of_a_loop_waits_for_its_round(monkeypatch):
    monkeypatch.setattr(transport_tasks, "RESTART_MS", 0)
    log = RecordingLog()
    began, steps = asyncio.Event(), []

    async def work():
        began.set()
        try:
            await forever()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            steps.append("ended")
            raise ValueError("late") from None

    tasks = TaskSet(log)
    task = tasks.keep(work, name="loop")
    await began.wait()
    await tasks.close()
    assert (steps, task.cancelled()) == (["ended"], True)
    assert [facts["error"] for _, _, facts in log.events] == ["ValueError: late"]


async def test_a_loop_may_close_its_own_set():
    tasks = TaskSet()
    other = tasks.spawn(forever(), name="other")
    await tasks.keep(tasks.close, name="closes")
    assert other.cancelled()


async def test_a_bounded_close_leaves_tasks_that_suppress_their_cancellation() -> None:
    may_end, began = asyncio.Event(), asyncio.Event()

    async def stubborn() -> None:
        began.set()
        while not may_end.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await may_end.wait()

    tasks = TaskSet()
    task = tasks.spawn(stubborn(), name="stubborn")
    other = tasks.spawn(asyncio.sleep(3_600), name="other")
    await began.wait()
    assert await tasks.close_within(0.05) == 1
    assert other.cancelled()
    assert not task.done()
    may_end.set()
    await task
    assert await tasks.close_within(0.05) == 0


@pytest.mark.parametrize(
    ("now_s", "pause_s", "due_s"),
    [
        (7.03, 0.1, 7.1),
        (7.08, 0.1, 7.2),
        (7.3, 10.0, 17.0),
        (7.7, 10.0, 18.0),
        (7.0, 1.0, 8.0),
        (7.001, 0.5, 7.5),  # woken up late
        (7.3, 0, 7.3),
    ],
)
def test_periodic_work_falls_due_together(now_s, pause_s, due_s):
    assert due_on_grid(now_s, pause_s) == pytest.approx(due_s)
