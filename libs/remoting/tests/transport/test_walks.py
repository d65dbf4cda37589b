# SPDX-License-Identifier: Apache-2.0
"""A look at thousands of connections is divided among turns of the loop."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from cometmq.remoting.log import NO_LOG
from cometmq.remoting.transport.flow.budget import UnsentBudget
from cometmq.remoting.transport.flow.memory import CLOSED_PER_TURN, MemoryLimit
from cometmq.remoting.transport.flow.walk import VISITS_PER_TURN, Walk
from cometmq.remoting.transport.stats import TransportStats

COUNT = 3 * VISITS_PER_TURN + 10


class Peer:
    """A connection that counts how often it is measured and closed in a turn."""

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

    walk = Walk(asyncio.get_running_loop(), peers, visit, lambda: done.append(len(seen)))
    for _ in range(2):  # the second time, the first walk has not ended
        walk.begin()
    await turns.pass_until(lambda: done)
    assert (done, len(set(seen))) == ([COUNT], COUNT)
    assert turns.counts("visited") == [VISITS_PER_TURN] * 3 + [10]


async def test_a_few_connections_are_visited_at_once(turns: Turns) -> None:
    peers = {Peer(turns) for _ in range(VISITS_PER_TURN - 1)}
    seen: list[Peer] = []
    done: list[int] = []
    walk = Walk(asyncio.get_running_loop(), peers, seen.append, lambda: done.append(len(seen)))
    for _ in range(2):
        walk.begin()
    assert done == [len(peers), 2 * len(peers)]


async def test_connections_that_have_ended_are_left_out(turns: Turns) -> None:
    peers = {Peer(turns) for _ in range(COUNT)}
    seen: list[Peer] = []
    done: list[bool] = []
    walk = Walk(asyncio.get_running_loop(), peers, seen.append, lambda: done.append(True))
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

    Walk(loop, peers, visit, lambda: done.append(True)).begin()
    assert (done, faults) == ([True], ["a connection cannot be checked"])
    assert [peer for peer in peers if not peer.is_open] == [broken]


def memory_limit(bytes_max: int, peers: set[Peer], stats: TransportStats) -> MemoryLimit:
    budget = UnsentBudget(bytes_max=None, drain_timeout_ms=1, stats=stats, log=NO_LOG)
    loop: Any = asyncio.get_running_loop()
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
