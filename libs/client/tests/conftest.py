# SPDX-License-Identifier: Apache-2.0
import gc
from asyncio import base_events
from collections.abc import AsyncIterator, Iterator
from time import thread_time
from typing import Any

import pytest

from cometmq.client import AdminClient, Producer
from cometmq.client.sync.loop import loop_thread
from cometmq.client.testing import MemoryCluster
from cometmq.remoting.bodies.route import TopicRoute


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    async with MemoryCluster() as cluster:
        cluster.create_topic("T")
        yield cluster


@pytest.fixture
async def pair() -> AsyncIterator[MemoryCluster]:
    """Start two brokers, each with two queues of the topic."""
    async with MemoryCluster(["broker-a", "broker-b"]) as cluster:
        cluster.create_topic("T", queue_count=2)
        yield cluster


@pytest.fixture
def served() -> Iterator[MemoryCluster]:
    """Run the cluster on the loop that blocking clients share."""
    cluster = MemoryCluster()
    cluster.create_topic("T")
    loop_thread().run(cluster.start())
    yield cluster
    loop_thread().run(cluster.stop())


@pytest.fixture
def lookups(cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the topics whose routes were looked up."""
    found: list[str] = []
    route = cluster.route

    def counted(topic: str) -> TopicRoute | None:
        found.append(topic)
        return route(topic)

    monkeypatch.setattr(cluster, "route", counted)
    return found


@pytest.fixture
async def admin(cluster: MemoryCluster) -> AsyncIterator[AdminClient]:
    async with AdminClient(cluster.namesrv) as admin:
        yield admin


@pytest.fixture
async def producer(cluster: MemoryCluster) -> AsyncIterator[Producer]:
    async with Producer("pg", cluster.namesrv) as producer:
        yield producer


@pytest.fixture
def turns_s(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """Return the processor time of each turn of the loop, without the garbage collector's."""
    found: list[float] = []
    run_once: Any = base_events.BaseEventLoop._run_once  # type: ignore[attr-defined]

    def timed(loop: Any) -> None:
        begun_s = thread_time()
        run_once(loop)
        found.append(thread_time() - begun_s)

    monkeypatch.setattr(base_events.BaseEventLoop, "_run_once", timed)
    gc.disable()
    yield found
    gc.enable()
