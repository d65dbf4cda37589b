# SPDX-License-Identifier: Apache-2.0
"""Strangers share a bounded part of the time, and floods delay nobody else."""

import asyncio
import heapq
import socket
from dataclasses import dataclass, field
from itertools import count

import pytest

from cometmq.control.pace import (
    BURST_S,
    ENTRY_SHARE,
    FADE_S,
    HOSTS_MAX,
    LITTLE_S,
    SHARE,
    Pace,
)

COST_S = 0.0003
FLOOD = "10.0.0.66"


class Clock:
    """A time that passes only from one timer to the next."""

    def __init__(self):
        self.now_s = 0.0
        self._timers = []
        self._numbers = count()

    def call_later(self, pause_s, call):
        assert pause_s > 0
        heapq.heappush(self._timers, (self.now_s + pause_s, next(self._numbers), call))

    async def run(self, seconds):
        end_s = self.now_s + seconds
        await settle()
        while self._timers and self._timers[0][0] <= end_s:
            self.now_s, _, call = heapq.heappop(self._timers)
            call()
            await settle()
        self.now_s = end_s


async def settle():
    for _ in range(4):
        await asyncio.sleep(0)


@dataclass(eq=False)
class Guest:
    address: str
    is_served: bool = False
    number: int = 0
    turns: int = 0
    host: bytes = field(init=False)

    def __post_init__(self):
        self.host = socket.inet_aton(self.address) + bytes(4)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def pace(clock):
    return Pace(lambda: clock.now_s, clock.call_later)


@pytest.fixture
async def enter(pace):
    """Return a function that opens connections which always want another turn."""

    async def go_on(guest, turns):
        while turns is None or guest.turns < turns:
            await pace.turn(guest, COST_S)
            guest.turns += 1

    def opened(address, *, turns=None):
        guest = Guest(address)
        pace.may_enter(guest, COST_S)
        tasks.append(group.create_task(go_on(guest, turns)))
        return guest

    tasks: list[asyncio.Task[None]] = []
    async with asyncio.TaskGroup() as group:
        yield opened
        for task in tasks:
            task.cancel()


async def test_all_strangers_together_take_a_part_of_the_time(clock, enter):
    guests = [enter(f"10.0.{number % 7}.1") for number in range(200)]
    await clock.run(5)
    before = sum(guest.turns for guest in guests)
    await clock.run(100)
    taken_s = (sum(guest.turns for guest in guests) - before) * COST_S
    assert 0.9 * SHARE <= taken_s / 100 <= 2 * SHARE + 0.01 * BURST_S


async def test_hosts_share_it_evenly(clock, enter):
    many, few = [enter("10.0.0.1") for _ in range(100)], enter("10.0.0.2")
    await clock.run(200)
    assert sum(guest.turns for guest in many) == pytest.approx(few.turns, rel=0.1)


async def test_another_host_does_not_wait_for_a_flood(clock, enter):
    for _ in range(250):
        enter(FLOOD)
    await clock.run(30)
    elector = enter("10.0.0.1", turns=8)
    await clock.run(0.001)
    assert elector.turns == 8


async def test_the_newest_connection_of_a_host_is_first(clock, enter):
    for _ in range(250):
        enter(FLOOD)
    await clock.run(30)
    elector = enter(FLOOD, turns=8)
    await clock.run(0.3)
    assert elector.turns == 8


async def test_a_known_host_precedes_a_flood_of_new_ones(clock, pace, enter):
    pace.note_known(Guest("10.0.0.1"))
    for number in range(250):
        enter(f"10.1.0.{number}")
    await clock.run(1)
    elector = enter("10.0.0.1", turns=8)
    await clock.run(0.3)
    assert elector.turns == 8


async def test_a_host_that_floods_opens_few_connections(clock, pace):
    opened = 0
    for _ in range(100_000):
        clock.now_s += 0.0001
        opened += pace.may_enter(Guest(FLOOD), COST_S)
    allowed_s = ENTRY_SHARE * 10 + BURST_S + 2 * LITTLE_S
    assert 0.5 * allowed_s < opened * COST_S < 1.1 * allowed_s
    assert pace.may_enter(Guest("10.0.0.1"), COST_S)


async def test_calls_delay_floods_until_they_are_admitted(clock, pace, enter):
    flood = enter(FLOOD)
    await clock.run(20)
    pace.note_calls(100, 0.001)
    before = flood.turns
    await clock.run(4.5)
    assert flood.turns - before <= 1
    elector = enter("10.0.0.1", turns=8)
    await clock.run(0.001)
    assert elector.turns == 8
    await clock.run(5)
    before = flood.turns
    pace.note_calls(100, 0.001)
    pace.note_calls(-100, 0.001)
    await clock.run(1)
    assert flood.turns - before > 10


async def test_a_connection_that_ends_while_it_waits_takes_nothing(clock, pace, enter):
    flood = enter(FLOOD)
    await clock.run(30)
    pace.note_calls(1, 0.001)
    async with asyncio.TaskGroup() as group:
        gone = [group.create_task(pace.turn(Guest(FLOOD), 1_000)) for _ in range(5)]
        await settle()
        for task in gone:
            task.cancel()
    before = flood.turns
    await clock.run(1)
    assert flood.turns > before


async def test_hosts_are_forgotten(clock, pace):
    for number in range(1_000):
        guest = Guest(f"10.{number >> 8}.{number & 255}.1")
        pace.may_enter(guest, COST_S)
        pace.note_known(guest)
    clock.now_s += 10 * FADE_S
    pace.may_enter(Guest("10.0.0.1"), COST_S)
    assert len(pace._spent_s) == 1
    assert len(pace._known) == HOSTS_MAX
