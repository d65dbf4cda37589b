# SPDX-License-Identifier: Apache-2.0
"""When the lookups that senders wait for are made, with a fake clock."""

import asyncio
import selectors

import pytest

from cometmq.client.cluster.renewals import Renewals
from cometmq.client.errors import ClientStateError
from cometmq.remoting.log import NO_LOG
from cometmq.remoting.transport.tasks import TaskSet


class SkippedTime(selectors.DefaultSelector):
    """Does not wait for timers, but moves a clock forward to the next one."""

    def __init__(self):
        super().__init__()
        self.now_s = 1_000.0

    def select(self, timeout=None):
        self.now_s += timeout or 0
        return super().select(0)


class World:
    def __init__(self, selector):
        self._selector = selector
        self._began_ms = self.now_ms()
        self.renewals = Renewals(TaskSet(NO_LOG))
        self.lookups_ms = []
        self.found_after_ms = None

    def now_ms(self):
        return round(self._selector.now_s * 1000)

    def elapsed_ms(self):
        return self.now_ms() - self._began_ms

    def is_found(self):
        return self.found_after_ms is not None and self.elapsed_ms() >= self.found_after_ms

    async def look_up(self):
        self.lookups_ms.append(self.elapsed_ms())

    async def share(self, *, wait_ms=5_000):
        return await self.renewals.share(
            "key", self.look_up, is_found=self.is_found, wait_ms=wait_ms
        )


@pytest.fixture
def run(monkeypatch):
    def run_in_skipped_time(body):
        selector = SkippedTime()
        loop = asyncio.SelectorEventLoop(selector)
        monkeypatch.setattr(loop, "time", lambda: selector.now_s)
        world = World(selector)
        monkeypatch.setattr("cometmq.client.cluster.renewals.monotonic_ms", world.now_ms)
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(body(world))

    return run_in_skipped_time


def test_intervals_double_up_to_a_second(run):
    async def body(world):
        for _ in range(7):
            assert await world.share()
        assert world.lookups_ms == [0, 100, 300, 700, 1500, 2500, 3500]

    run(body)


def test_callers_share_lookups(run):
    async def body(world):
        async with asyncio.TaskGroup() as group:
            for _ in range(100):
                group.create_task(world.share())
        assert world.lookups_ms == [0]

    run(body)


def test_a_caller_does_not_wait_for_a_lookup_that_is_too_late(run):
    async def body(world):
        assert await world.share()
        assert not await world.share(wait_ms=99)
        assert world.elapsed_ms() == 0
        assert await world.share(wait_ms=101)
        assert world.lookups_ms == [0, 100]

    run(body)


@pytest.mark.parametrize(("idle_ms", "gaps_ms"), [(1_000, (200, 400)), (1_200, (100, 200))])
def test_after_a_second_without_callers_the_intervals_start_again(run, idle_ms, gaps_ms):
    async def body(world):
        await world.share()
        await asyncio.sleep(idle_ms / 1000)
        for _ in range(3):
            await world.share()
        first, second, third = world.lookups_ms[1:]
        assert first == idle_ms
        assert (second - first, third - second) == gaps_ms

    run(body)


def test_a_hung_lookup_uses_the_last_one_for_a_second(run):
    async def body(world):
        assert await world.share()
        world.look_up = asyncio.Event().wait
        assert not await world.share(wait_ms=300)
        await asyncio.sleep(0.6)
        assert not await world.share(wait_ms=300)
        with pytest.raises(TimeoutError):
            await world.share(wait_ms=300)

    run(body)


def test_a_successor_found_otherwise_ends_the_wait(run):
    async def body(world):
        await world.share()
        world.found_after_ms = 0
        assert await world.share()
        assert world.lookups_ms == [0]

    run(body)


def test_the_error_of_a_lookup_reaches_all_its_callers(run):
    async def body(world):
        async def fail():
            raise ClientStateError("closed")

        async def share():
            with pytest.raises(ClientStateError, match="closed"):
                await world.share()

        world.look_up = fail
        async with asyncio.TaskGroup() as group:
            group.create_task(share())
            group.create_task(share())

    run(body)
