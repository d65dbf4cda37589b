# SPDX-License-Identifier: Apache-2.0
"""A loop that others wake runs at once, but not without a pause."""

import asyncio
from time import monotonic

import pytest

from cometmq.client import ConsumeFrom, Message, Producer, PushOptions
from cometmq.client.testing import MemoryCluster, eventually
from cometmq.client.turns import APART_MS, AT_ONCE, Wakeup
from cometmq.remoting.bodies.route import BrokerData
from cometmq.remoting.codes import RequestCode
from cometmq.testing.client.listening import Recorder, consumer_of

FLOOD_S = 2.0
"""Several times APART_MS."""


async def woken(wakeup: Wakeup) -> float:
    """Return when a wait ends that is woken at its beginning."""
    wakeup.set()
    assert await wakeup.wait(60_000)
    return monotonic()


@pytest.mark.load
async def test_the_first_waits_end_at_once_and_the_next_after_a_pause() -> None:
    wakeup, begin_s = Wakeup(apart_ms=100), monotonic()
    ended_s = [await woken(wakeup) for _ in range(2 * AT_ONCE)]
    assert ended_s[AT_ONCE - 1] - begin_s < 0.1
    for early, late in zip(ended_s, ended_s[AT_ONCE:], strict=False):
        assert late - early >= AT_ONCE * 0.1 - 0.002  # clocks of milliseconds


async def test_calls_during_the_pause_count_as_one() -> None:
    wakeup = Wakeup(apart_ms=50)
    for _ in range(AT_ONCE):
        await woken(wakeup)
    wakeup.set()
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(wakeup.wait(60_000))
        await asyncio.sleep(0.01)
        wakeup.set()
    assert waiting.result()
    assert not await wakeup.wait(1)


async def test_a_broker_cannot_make_a_member_rebalance_all_the_time(cluster: MemoryCluster) -> None:
    """It made the client ask for the members, and for its locks, without a pause."""
    broker, asked = cluster.broker, cluster.broker.requests
    options = PushOptions(orderly=True, consume_from=ConsumeFrom.FIRST_OFFSET)
    async with consumer_of(cluster, seen := Recorder(), options):
        codes = (RequestCode.GET_CONSUMER_LIST_BY_GROUP, RequestCode.LOCK_BATCH_MQ)
        before = [asked[code] for code in codes]
        end_s = monotonic() + FLOOD_S
        rounds = 0
        while monotonic() < end_s:
            broker.notify("cg")
            rounds += 1
            await asyncio.sleep(0.001)
        took_ms = (monotonic() - end_s + FLOOD_S) * 1000
        most = 2 + AT_ONCE + took_ms / APART_MS
        assert rounds > 2 * most
        for code, count in zip(codes, before, strict=True):
            assert 1 <= asked[code] - count <= most
        async with Producer("pg", cluster.namesrv) as producer:
            await producer.send(Message("T", b"x"))
        await eventually(lambda: seen.bodies == [b"x"])


async def test_a_broker_that_closes_each_connection_is_not_connected_to_all_the_time(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a load balancer without a backend does; it was 400 connections a second."""
    count = 0

    async def close(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        count += 1
        writer.close()

    async with await asyncio.start_server(close, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        data = BrokerData({0: f"127.0.0.1:{port}"}, "broker-a", "c")
        monkeypatch.setattr(cluster, "broker_data", lambda _: data)
        async with consumer_of(cluster, Recorder(), PushOptions(orderly=True)):
            count, begin_s = 0, monotonic()
            await asyncio.sleep(FLOOD_S)
            rounds = 1 + AT_ONCE + (monotonic() - begin_s) * 1000 / APART_MS
    assert 0 < count < 4 * rounds  # heartbeats, rebalancing and locks
