# SPDX-License-Identifier: Apache-2.0
"""When watches of a status send it: after events, at intervals, and when they must end."""

import asyncio
import contextlib

import pytest

from cometmq.control import watches as module
from cometmq.control.controlled import lasting
from cometmq.control.watches import CHECK_MS, Watch, Watches
from cometmq.ha.role import Role
from cometmq.remoting.transport.tasks import TaskSet
from cometmq.testing.control.scripted import ScriptedMember

DEADLINE_S = 60


class Looked(ScriptedMember):
    """Counts its reports."""

    def __init__(self):
        super().__init__()
        self.report_count = 0

    def report(self):
        self.report_count += 1
        return super().report()


@pytest.fixture
async def watched():
    """Yield a member and its watches, of which the loop looks after those that are entered."""
    member = Looked()
    watches = Watches(member.report, member.changed)
    tasks = TaskSet()
    tasks.spawn(watches.run(), name="watches")
    yield member, watches
    await tasks.close()


def opened(watches, stack, member, *, interval_ms=10_000, must_end=lambda: False):
    watch = Watch(interval_ms, must_end)
    stack.enter_context(watches.entered(watch))
    watch.sent(member.now, asyncio.get_running_loop().time())
    return watch


async def test_an_event_is_sent_at_once_over_all_watches_after_one_look(watched, monkeypatch):
    """The looks at the report, 20 a second for each elector, were most of the processor time of an
    idle member.
    """
    monkeypatch.setattr(module, "CHECK_MS", 1_000 * DEADLINE_S)
    member, watches = watched
    with contextlib.ExitStack() as stack:
        every = [opened(watches, stack, member) for _ in range(32)]
        await asyncio.sleep(0)  # the loop begins to wait for an event
        await asyncio.sleep(0)
        member.becomes(role=Role.MASTER)
        async with asyncio.timeout(DEADLINE_S):
            for watch in every:
                await watch.due.wait()
    assert member.report_count == 1


async def test_a_change_without_an_event_is_sent_after_a_look(watched):
    member, watches = watched
    with contextlib.ExitStack() as stack:
        watch = opened(watches, stack, member)
        member.now = type(member.now)(group="other", status=member.now.status)
        async with asyncio.timeout(DEADLINE_S):
            await watch.due.wait()


async def test_a_watch_that_must_end_is_woken(watched):
    member, watches = watched
    with contextlib.ExitStack() as stack:
        watch = opened(watches, stack, member, must_end=lambda: True)
        async with asyncio.timeout(DEADLINE_S):
            await watch.due.wait()


async def test_nothing_is_looked_at_without_a_watch(watched):
    member, watches = watched
    with contextlib.ExitStack() as stack:
        opened(watches, stack, member)
        await asyncio.sleep(0)  # the loop waits for an event
    before = member.report_count
    member.becomes(role=Role.MASTER)
    await asyncio.sleep(3 * CHECK_MS / 1000)
    assert member.report_count == before


@pytest.mark.parametrize("first_s", [0.0, 0.02, 0.3])
@pytest.mark.parametrize("early_s", [-0.001, 0.0, 0.04])
def test_a_status_without_changes_is_sent_at_the_ends_of_intervals(first_s, early_s):
    watch = Watch(500, lambda: False)
    report = ScriptedMember().report()
    watch.sent(lasting(report), 100 + first_s)
    sent_s = []
    for look in range(1, 21):
        now_s = 100 + look * CHECK_MS / 1000 + early_s
        if now_s > 100 + first_s:
            watch.look(lasting(report), now_s)
        if watch.due.is_set():
            sent_s.append(round(now_s - early_s, 3))
            watch.sent(report, now_s)
    assert sent_s == [100.5, 101.0, 101.5, 102.0]
