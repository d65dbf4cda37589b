# SPDX-License-Identifier: Apache-2.0
"""Helpers for tests of how long the loop is held."""

import asyncio
import json
import tempfile
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from cometmq.broker.native import IS_BUILT
from cometmq.testing.broker.holds import HOLD_S_MAX, adjusted
from cometmq.testing.broker.scripted import Connected, ScriptedBroker

ATTEMPTS = 8
CHUNK_BYTES = 256 << 10
native = pytest.mark.skipif(not IS_BUILT, reason="no native path")
lanes = pytest.mark.parametrize("lane", [False, pytest.param(True, marks=native)])


async def check(measure: Callable[[], Awaitable[float]], *, hold_s_max: float = HOLD_S_MAX) -> None:
    """Measure again if a hold was too long, because caches and imports need time once."""
    holds: list[float] = []
    while not holds or holds[-1] >= hold_s_max:
        assert len(holds) < ATTEMPTS, holds
        await asyncio.sleep(0)  # what `adjusted` took is no part of the next measurement
        holds.append(adjusted(await measure()))


async def answered_later(connected: Connected, holds: Any, chunk: bytes) -> None:
    """Pass a chunk to a connection, and measure that."""
    holds.measure(lambda: connected.peer.data_received(chunk))
    await asyncio.sleep(0)


def run_broker(lane: bool, work: Any) -> None:
    async def main(root: str) -> None:
        broker = ScriptedBroker(
            storePathRootDir=root,
            brokerIP1="10.1.2.3",
            enablePropertyFilter="true",
            nativeLaneEnable=str(lane).lower(),
            # The disk is in memory: files of the default sizes take 2 GB.
            mappedFileSizeCommitLog=str(32 << 20),
            maxHashSlotNum="100000",
            maxIndexNum="400000",
        )
        broker.broker.tables.topics.create("T", queue_nums=4)
        await work(broker)

    with tempfile.TemporaryDirectory() as root:
        asyncio.run(main(root))


def json_of(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def subscriptions(count: int, **fields: Any) -> list[dict[str, Any]]:
    return [{"topic": f"t{number}", "subString": "*", **fields} for number in range(count)]


def consumer(name: str, wanted: list[dict[str, Any]]) -> dict[str, Any]:
    return {"groupName": name, "subscriptionDataSet": wanted}
