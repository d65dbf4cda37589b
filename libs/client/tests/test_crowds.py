# SPDX-License-Identifier: Apache-2.0
"""Tens of thousands of concurrent sends: the cost per send does not grow with their number."""

import asyncio
from collections.abc import Callable, Coroutine
from time import process_time
from typing import Any

import pytest

from cometmq.client.cluster.renewals import Renewals
from cometmq.client.turns import Room
from cometmq.remoting.log import NO_LOG
from cometmq.remoting.transport.tasks import TaskSet

FEW, MANY = 1_000, 16_000
GROWTH_MAX = 5
"""A cost that grows with the number of others would grow by a factor of MANY / FEW."""


Call = Callable[[], Coroutine[Any, Any, None]]


async def cost_each(calls: Callable[[int], Call], count: int) -> float:
    """Return the processor time per call of `count` concurrent calls."""
    call = calls(count)
    begin = process_time()
    async with asyncio.TaskGroup() as group:
        for _ in range(count):
            group.create_task(call())
    return (process_time() - begin) / count


async def growth(calls: Callable[[int], Call]) -> float:
    """Return the factor by which a call among MANY costs more than a call among FEW.

    The pace of a shared machine changes within seconds, so only neighbours in time are compared,
    up to three times; the least factor counts.
    """
    factors = []
    for _ in range(3):
        before = await cost_each(calls, FEW)
        many = await cost_each(calls, MANY)
        factors.append(many / max(before, await cost_each(calls, FEW)))
        if factors[-1] < GROWTH_MAX:
            break
    return min(factors)


@pytest.mark.load
async def test_waiting_for_room_costs_the_same_in_a_crowd() -> None:
    def sends(count: int) -> Call:
        room = Room(count // 2)  # so that half of the sends end in the same turn of the loop

        async def send() -> None:
            async with room:
                await asyncio.sleep(0)

        return send

    assert await growth(sends) < GROWTH_MAX


@pytest.mark.load
async def test_waiting_in_vain_for_a_lookup_costs_the_same_in_a_crowd() -> None:
    background = TaskSet(NO_LOG)
    renewals = Renewals(background)
    never = asyncio.Event()

    async def send() -> None:
        for _ in range(2):  # senders wait again for as long as the loop was late
            with pytest.raises(TimeoutError):
                await renewals.share("T", never.wait, is_found=lambda: False, wait_ms=200)

    assert await growth(lambda _: send) < GROWTH_MAX
    await background.close()


async def test_room_serves_its_waiters_in_their_order() -> None:
    room, order, running = Room(2), list[int](), list[int]()

    async def send(number: int) -> None:
        async with room:
            order.append(number)
            running.append(room.count)
            await asyncio.sleep(0.001)

    async with asyncio.TaskGroup() as group:
        for number in range(7):
            group.create_task(send(number))
    assert order == list(range(7))
    assert max(running) == 2
    assert room.count == 0
    await room.wait_empty()


@pytest.mark.parametrize("is_late", [False, True])
async def test_a_cancelled_waiter_loses_no_room(*, is_late: bool) -> None:
    """`is_late` means that the waiter is cancelled in the same loop turn in which it gets room."""
    room, done = Room(1), list[int]()

    async def send(number: int) -> None:
        async with room:
            done.append(number)

    async with asyncio.TaskGroup() as group:
        async with room:
            waiting = [group.create_task(send(number)) for number in range(3)]
            await asyncio.sleep(0)
            if not is_late:
                waiting[0].cancel()
                await asyncio.sleep(0)
        if is_late:
            waiting[0].cancel()
        closing = group.create_task(room.wait_empty())
    assert done == [1, 2]
    assert closing.done()
    assert room.count == 0
