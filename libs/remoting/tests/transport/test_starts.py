# SPDX-License-Identifier: Apache-2.0
"""Owners take turns to start slow handlers, which are refused if they wait too long."""

import asyncio
from typing import Any

import pytest

from cometmq.remoting.errors import SystemBusy
from cometmq.remoting.transport.flow import turns as module
from cometmq.remoting.transport.flow.turns import Turns

FLOOD = 300


class Peer:
    def __init__(self, host: int) -> None:
        self.host = bytes([10, 0, 0, host, 0, 0, 0, 0])
        self.state: dict[str, object] = {}


async def test_many_slow_handlers_of_one_owner_do_not_delay_those_of_another() -> None:
    starts = Turns(asyncio.get_running_loop(), 64)
    order: list[Any] = []

    async def handler(peer: Any) -> None:
        await starts.admitted(peer)
        order.append(peer)

    flood = [Peer(1) for _ in range(30)]
    other = Peer(2)
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        for number in range(FLOOD):
            tasks.create_task(handler(flood[number % len(flood)]))
        tasks.create_task(handler(other))
    assert len(order) == FLOOD + 1
    assert order.index(other) <= 17, "16 started at once, and one more could come before it"


async def test_a_handler_that_is_cancelled_while_it_waits_takes_no_place() -> None:
    starts = Turns(asyncio.get_running_loop(), 64)
    order: list[int] = []

    async def handler(number: int) -> None:
        await starts.admitted(peer)
        order.append(number)

    peer: Any = Peer(1)
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        made = [tasks.create_task(handler(number)) for number in range(20)]
        await asyncio.sleep(0)
        made[17].cancel()
    assert order == [number for number in range(20) if number != 17]


async def test_a_handler_that_waits_too_long_to_start_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "WAIT_S_MAX", 0.01)
    monkeypatch.setattr(module, "_SHORT_TURN_S", -1.0)  # all turns count as long
    monkeypatch.setattr(module, "_LONG_TURN_S", -1.0)
    starts, outcomes = Turns(asyncio.get_running_loop(), 64), list[bool]()
    peer: Any = Peer(1)

    async def handler() -> None:
        try:
            await starts.admitted(peer)
        except SystemBusy:
            outcomes.append(False)
        else:
            outcomes.append(True)

    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        for _ in range(40):
            tasks.create_task(handler())
    assert 16 <= sum(outcomes) < 40
