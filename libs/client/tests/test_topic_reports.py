# SPDX-License-Identifier: Apache-2.0
"""Consumers warn about subscribed topics that do not exist or that they may not read."""

import logging
from typing import Any

import pytest

from cometmq.client import LitePullConsumer, PullConsumer, PushConsumer
from cometmq.client.cluster import outages
from cometmq.client.testing import MemoryCluster, eventually
from cometmq.client.testing.broker import READ_WRITE
from cometmq.remoting.message.flags import Perm
from cometmq.testing.client.listening import logged


@pytest.fixture(autouse=True)
def at_info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


def consumer_of(kind: type[Any], cluster: MemoryCluster, topic: str) -> Any:
    consumer = kind("cg", cluster.namesrv, **({"listener": print} if kind is PushConsumer else {}))
    (consumer.register if kind is PullConsumer else consumer.subscribe)(topic)
    return consumer


@pytest.mark.parametrize("kind", [PushConsumer, LitePullConsumer])
async def test_an_unknown_topic_is_reported_once_with_the_fix(
    cluster: MemoryCluster,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    kind: type[Any],
) -> None:
    monkeypatch.setattr(outages, "UNKNOWN_GRACE_MS", 100)
    async with consumer_of(kind, cluster, "Nowhere") as consumer:
        assert logged(caplog, "topic.unknown") == []  # the next line may create it
        await eventually(lambda: logged(caplog, "topic.unknown"))
        await consumer._running().routes.refresh_all(["Nowhere", "%RETRY%cg"])
        cluster.create_topic("Nowhere")
        await eventually(lambda: bool(consumer.queues))
    (line,) = logged(caplog, "topic.unknown")
    assert "topic=Nowhere" in line
    assert "cometmq topic create Nowhere" in line


@pytest.mark.parametrize("kind", [PushConsumer, LitePullConsumer, PullConsumer])
async def test_a_topic_without_read_permission_is_reported_once_with_the_fix(
    pair: MemoryCluster, caplog: pytest.LogCaptureFixture, kind: type[Any]
) -> None:
    for broker in pair.brokers:
        broker.queues.configure("T", 2, perm=int(Perm.WRITE))
    async with consumer_of(kind, pair, "T") as consumer:
        routes = consumer._running().routes
        await eventually(lambda: logged(caplog, "topic.unreadable"))
        await routes.refresh_all(["T", "%RETRY%cg"])
        assert consumer.queues == []
        (line,) = logged(caplog, "topic.unreadable")
        assert "topic=T" in line
        assert "broker-a" in line
        assert "broker-b" in line
        assert "cometmq topic alter T --perm rw" in line

        for broker in pair.brokers:  # one readable queue is enough
            broker.queues.configure("T", 2, perm=READ_WRITE)
            await routes.refresh_all(["T"])
            await eventually(lambda: bool(consumer.queues))
        assert len(logged(caplog, "topic.unreadable")) == 1

        for broker in pair.brokers:
            broker.queues.configure("T", 2, perm=int(Perm.WRITE))
        await routes.refresh_all(["T"])
        assert len(logged(caplog, "topic.unreadable")) == 2  # it is news again


async def test_a_topic_that_is_created_without_read_permission_is_reported_at_once(
    cluster: MemoryCluster, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outages, "UNKNOWN_GRACE_MS", 100)
    async with consumer_of(PushConsumer, cluster, "New"):
        await eventually(lambda: logged(caplog, "topic.unknown"))
        cluster.broker.queues.configure("New", 2, perm=int(Perm.WRITE))
        await eventually(lambda: logged(caplog, "topic.unreadable"))
