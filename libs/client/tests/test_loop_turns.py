# SPDX-License-Identifier: Apache-2.0
"""The event loop gets a turn between the calls to a listener that blocks it."""

import asyncio
import time
from collections import Counter

import msgspec
import pytest

from cometmq.client import MessageExt
from cometmq.client import turns as loop_turns
from cometmq.client.testing import MemoryCluster, eventually
from cometmq.client.turns import TURN_MS, LoopTurns
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.testing.client.listening import FIRST, consumer_of, send, texts

COUNT = 12


def block() -> None:
    time.sleep(TURN_MS * 2 / 1000)


class Turns:
    """Counts the turns of the loop."""

    def __init__(self) -> None:
        self.number = 0
        self._next()

    def _next(self) -> None:
        self.number += 1
        self._handle = asyncio.get_running_loop().call_soon(self._next)

    def stop(self) -> None:
        self._handle.cancel()


@pytest.mark.parametrize("is_orderly", [False, True])
async def test_one_turn_has_one_call_of_a_blocking_listener(
    cluster: MemoryCluster, is_orderly: bool
) -> None:
    for queue_id in (0, 1):
        await send(cluster, *texts(COUNT), queue=MessageQueue("T", "broker-a", queue_id))
    turns, calls = Turns(), Counter[int]()

    async def listener(_: list[MessageExt]) -> None:
        calls[turns.number] += 1
        block()

    options = msgspec.structs.replace(FIRST, orderly=is_orderly)
    async with consumer_of(cluster, listener, options):
        await eventually(lambda: calls.total() == 2 * COUNT)
    turns.stop()
    assert set(calls.values()) == {1}


async def test_short_calls_share_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    now_ms = 1_000
    monkeypatch.setattr(loop_turns, "monotonic_ms", lambda: now_ms)
    turns, shared = Turns(), LoopTurns()
    await shared.share()
    first = turns.number
    now_ms += TURN_MS - 1
    await shared.share()
    assert turns.number == first
    now_ms += 1
    await shared.share()
    assert turns.number > first
    turns.stop()


async def test_callers_wait_in_the_order_of_their_calls() -> None:
    """Otherwise the first task would take all turns, and the message of the second would wait."""
    shared, order = LoopTurns(), list[str]()

    async def work(name: str) -> None:
        for _ in range(3):
            await shared.share()
            order.append(name)
            block()

    async with asyncio.TaskGroup() as group:
        for name in "abc":
            group.create_task(work(name))
    assert order == list("abcabcabc")
