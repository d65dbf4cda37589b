# SPDX-License-Identifier: Apache-2.0
"""A check of thousands of connections is divided among turns of the loop."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from cometmq.remoting.log import NO_LOG
from cometmq.remoting.transport.flow.budget import MemoryLimit, UnsentBudget
from cometmq.remoting.transport.flow.room import Room
from cometmq.remoting.transport.flow.turns import CLOSED_PER_TURN, VISITS_PER_TURN, Walk
from cometmq.remoting.transport.stats import TransportStats

COUNT = 3 * VISITS_PER_TURN + 10


class Peer:
    """A connection that counts how often it is measured and closed in a turn."""

    is_served = True

    def __init__(self, turns: "Turns", buffered_bytes: int = 0) -> None:
        self.address = "a:1"
        self.is_open = True
        self._turns = turns
        self._buffered_bytes = buffered_bytes

    @property
    def buffered_bytes(self) -> int:
        self._turns.note("measured")
        return self._buffered_bytes

    def abort(self) -> None:
        self._turns.note("closed")
        self.is_open = False


class Turns:
    """How often something happened in each turn of the loop."""

    def __init__(self) -> None:
        self._turn = 0
        self._counts: dict[tuple[str, int], int] = {}

    def note(self, event: str) -> None:
        key = event, self._turn
        self._counts[key] = self._counts.get(key, 0) + 1

    def counts(self, event: str) -> list[int]:
        return [count for (name, _), count in self._counts.items() if name == event]

    async def pass_until(self, is_done: Callable[[], object]) -> None:
        async with asyncio.timeout(60):
            while not is_done():
                self._turn += 1
                await asyncio.sleep(0)


@pytest.fixture
def turns() -> Turns:
    return Turns()


async def test_each_connection_is_visited_once_in_some_turn(turns: Turns) -> None:
    peers = {Peer(turns) for _ in range(COUNT)}
    seen: list[Peer] = []
    done: list[int] = []

    def visit(peer: Peer) -> None:
        turns.note("visited")
        seen.append(peer)

    walk = Walk(
        asyncio.get_running_loop(),
        cast("Any", peers),
        cast("Any", visit),
        lambda: done.append(len(seen)),
    )
    for _ in range(2):  # the second time, the first walk has not ended
        walk.begin()
    await turns.pass_until(lambda: done)
    assert (done, len(set(seen))) == ([COUNT], COUNT)
    assert turns.counts("visited") == [VISITS_PER_TURN] * 3 + [10]


async def test_connections_that_have_ended_are_left_out(turns: Turns) -> None:
    peers = {Peer(turns) for _ in range(COUNT)}
    seen: list[Peer] = []
    done: list[bool] = []
    walk = Walk(
        asyncio.get_running_loop(),
        cast("Any", peers),
        cast("Any", seen.append),
        lambda: done.append(True),
    )
    walk.begin()
    peers.clear()
    await turns.pass_until(lambda: done)
    assert len(seen) == VISITS_PER_TURN


async def test_a_visit_that_fails_ends_only_its_connection(turns: Turns) -> None:
    loop, faults = asyncio.get_running_loop(), list[str]()
    loop.set_exception_handler(lambda _, context: faults.append(context["message"]))
    peers = {Peer(turns) for _ in range(5)}
    broken, *_ = peers
    done: list[bool] = []

    def visit(peer: Peer) -> None:
        if peer is broken:
            raise ValueError

    Walk(loop, cast("Any", peers), cast("Any", visit), lambda: done.append(True)).begin()
    assert (done, faults) == ([True], ["a connection cannot be checked"])
    assert [peer for peer in peers if not peer.is_open] == [broken]


def memory_limit(bytes_max: int, peers: Any, stats: TransportStats) -> MemoryLimit:
    loop: Any = asyncio.get_running_loop()
    budget = UnsentBudget(loop, bytes_max=None, drain_timeout_ms=1, stats=stats, log=NO_LOG)
    return MemoryLimit(bytes_max, loop=loop, peers=peers, budget=budget, stats=stats, log=NO_LOG)


async def test_the_memory_of_many_connections_is_measured_in_portions(turns: Turns) -> None:
    small = {Peer(turns, 10) for _ in range(COUNT)}
    large = {Peer(turns, 100) for _ in range(2 * CLOSED_PER_TURN + 5)}
    stats = TransportStats()
    limit = memory_limit(10 * COUNT + 99, small | large, stats)
    limit.check()
    await turns.pass_until(lambda: stats.overflow_closed == len(large))
    assert max(turns.counts("measured")) == VISITS_PER_TURN
    assert turns.counts("closed") == [CLOSED_PER_TURN, CLOSED_PER_TURN, 5]
    assert not any(peer.is_open for peer in large)
    assert all(peer.is_open for peer in small)
    measured = sum(turns.counts("measured"))
    assert limit.total_bytes() == 10 * COUNT + 100 * len(large)
    assert sum(turns.counts("measured")) == measured


async def test_long_frames_make_the_limit_look_between_two_checks(turns: Turns) -> None:
    peers = {Peer(turns, 100) for _ in range(20)}
    stats = TransportStats()
    limit = memory_limit(1_600, peers, stats)
    limit.note_incomplete(100)
    assert stats.overflow_closed == 0
    limit.note_incomplete(1)
    assert stats.overflow_closed == 4


class Holder:
    """A connection with unread output and waiting requests, which may be measured or paused."""

    def __init__(self, turns: Turns, held_bytes: int, waiting_bytes: int = 0) -> None:
        self.address, self.host = "a:1", bytes(8)
        self.state: dict[str, object] = {}
        self.intake = self.outlet = self
        self.waiting_bytes = waiting_bytes
        self.is_restrained = self.may_build = False
        self.taken_ms = 0
        self.served_count = 0
        self._turns = turns
        self._held_bytes = held_bytes

    @property
    def held_bytes(self) -> int:
        self._turns.note("measured")
        return self._held_bytes

    def restrain(self) -> None:
        self._turns.note("paused")
        self.is_restrained = True

    def stalled_ms(self, now_ms: int) -> int:
        self._turns.note("examined")
        return now_ms - self.taken_ms

    def abort(self) -> None:
        self._turns.note("closed")
        self._held_bytes = 0

    def resume_from(self, _reason: int) -> None:
        self.served_count += 1


def unsent_budget(holders: list[Any], bytes_max: int, stats: TransportStats) -> UnsentBudget:
    loop = asyncio.get_running_loop()
    budget = UnsentBudget(
        loop, bytes_max=bytes_max, drain_timeout_ms=1_000, stats=stats, log=NO_LOG
    )
    budget.holders.update(holders)
    return budget


async def test_unread_output_of_many_connections_is_measured_in_portions(turns: Turns) -> None:
    holders = [Holder(turns, 10) for _ in range(COUNT)]
    idle: Any = Holder(turns, 0)
    budget = unsent_budget([*holders, idle], 20 * COUNT, TransportStats())
    for _ in range(2):  # the second time, the first measurement has not ended
        budget.measure(0)
    budget.left -= 7  # written in the same turn
    assert budget.used_bytes == 7
    await turns.pass_until(lambda: budget.used_bytes > 7)
    assert budget.used_bytes == 10 * COUNT + 7
    assert max(turns.counts("measured")) == VISITS_PER_TURN
    assert idle not in budget.holders
    budget.measure(0)
    await turns.pass_until(lambda: budget.used_bytes == 10 * COUNT)
    assert budget.unsent_bytes() == 10 * COUNT
    assert sum(turns.counts("measured")) == 2 * COUNT + 1


async def test_many_connections_are_paused_in_portions(turns: Turns) -> None:
    holders = [Holder(turns, 10) for _ in range(COUNT)]
    budget = unsent_budget(list(holders), 10 * COUNT - 1, TransportStats())
    budget.measure(0)
    await turns.pass_until(lambda: budget.used_bytes)
    paused = sum(one.is_restrained for one in holders)
    assert paused == COUNT - COUNT // 2 + 1
    assert max(turns.counts("paused")) <= VISITS_PER_TURN


async def test_many_connections_that_read_nothing_are_closed_in_portions(turns: Turns) -> None:
    holders = [Holder(turns, 10) for _ in range(COUNT)]
    stats = TransportStats()
    budget = unsent_budget(list(holders), 5 * COUNT, stats)
    budget.is_wanted = True
    budget.measure(0)
    await turns.pass_until(lambda: budget.used_bytes)
    assert max(turns.counts("examined")) == VISITS_PER_TURN
    budget.measure(1_000)
    await turns.pass_until(lambda: budget.used_bytes <= 5 * COUNT)
    # An eighth of the budget and the reserve are left for the requests that wait.
    assert stats.budget_closed == sum(turns.counts("closed")) == COUNT - COUNT * 5 // 16
    assert max(turns.counts("closed")) == CLOSED_PER_TURN


async def test_many_connections_whose_requests_wait_are_visited_in_portions(turns: Turns) -> None:
    holders: list[Any] = [Holder(turns, 0, waiting_bytes=1) for _ in range(COUNT)]
    budget = unsent_budget(holders, 100 * COUNT, TransportStats())
    clock = [0.0]
    due: list[Callable[[], None]] = []

    class Loop:
        """Runs timers when the test asks for it."""

        def time(self) -> float:
            return clock[0]

        def call_later(self, delay_s: float, call: Callable[[], None]) -> Callable[[], None]:
            clock[0] += delay_s
            due.append(call)
            return call

    loop: Any = Loop()
    room = Room(budget, loop)
    for one in holders:
        room.wait(one, lambda: None)
    last = holders[-1]
    last.may_build = True
    rounds = 0
    while room.has(last):
        rounds += 1
        due.pop()()
    assert rounds == COUNT // VISITS_PER_TURN + 1
    assert last.served_count == 1
    assert clock[0] < 1
