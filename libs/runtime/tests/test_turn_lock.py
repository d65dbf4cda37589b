# SPDX-License-Identifier: Apache-2.0

import asyncio

import pytest

from cometmq.remoting.transport.flow.fair_queue import Requester
from cometmq.runtime.incremental import TurnExpired, TurnLock


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
