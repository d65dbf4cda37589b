# SPDX-License-Identifier: Apache-2.0
"""Warnings about members of a group with different subscriptions; each warning shows both of
them.
"""

import asyncio

import pytest

from cometmq.client import MessageModel, PushConsumer, PushOptions
from cometmq.client.consume.queues import agreement
from cometmq.client.testing import MemoryCluster, eventually
from cometmq.remoting.codes import RequestCode

ASKED = RequestCode.GET_CONSUMER_CONNECTION_LIST


@pytest.fixture(autouse=True)
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreement, "SETTLE_MS", 0)


def member(
    cluster: MemoryCluster, *topics: str, options: PushOptions | None = None
) -> PushConsumer:
    consumer = PushConsumer("cg", cluster.namesrv, listener=print, options=options)
    for topic in topics:
        name, _, tags = topic.partition(":")
        consumer.subscribe(name, tags or "*")
    return consumer


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    texts = [record.getMessage() for record in caplog.records]
    return [text for text in texts if text.startswith("subscription.mismatched")]


@pytest.mark.parametrize(
    ("first", "second", "topic", "filters"),
    [
        (["T:a"], ["T:b || c"], "T", {"a", "'b || c'"}),
        (["T"], ["U"], "T", {"*", "nothing"}),
        (["T"], ["T", "U"], "U", {"*", "nothing"}),
    ],
)
async def test_members_that_subscribe_differently(
    cluster: MemoryCluster,
    caplog: pytest.LogCaptureFixture,
    first: list[str],
    second: list[str],
    topic: str,
    filters: set[str],
) -> None:
    async with member(cluster, *first) as one:
        await asyncio.sleep(0.01)  # versions of subscriptions are in milliseconds
        async with member(cluster, *second) as other:
            # Both members may warn, each about a different topic, in the order of their heartbeats.
            await eventually(lambda: any(f" topic={topic} " in text for text in warnings(caplog)))
            line = next(text for text in warnings(caplog) if f" topic={topic} " in text)
            ids = (one.client_id, other.client_id)
    assert f"group=cg topic={topic} client_id=" in line
    assert all(f"wants={text} " in line for text in filters)
    assert all(client_id in line for client_id in ids)
    assert "the same subscriptions" in line


async def test_one_member_broadcasts(
    cluster: MemoryCluster, caplog: pytest.LogCaptureFixture, tmp_path: object
) -> None:
    broadcasting = PushOptions(
        message_model=MessageModel.BROADCASTING, instance_name="b", offsets_dir=str(tmp_path)
    )
    async with member(cluster, "T"), member(cluster, "T", options=broadcasting):
        await eventually(lambda: bool(warnings(caplog)))
    assert "wants=CLUSTERING" in warnings(caplog)[0]
    assert "other_wants=BROADCASTING" in warnings(caplog)[0]


async def test_equal_subscriptions_are_compared_once_and_quietly(
    cluster: MemoryCluster, caplog: pytest.LogCaptureFixture
) -> None:
    async with member(cluster, "T:a||b") as one:
        assert cluster.broker.requests[ASKED] == 0
        async with member(cluster, "T:b || a"):
            await eventually(lambda: cluster.broker.requests[ASKED] == 2)
            for _ in range(3):
                one._member._assigner.wake()  # type: ignore[union-attr]
                await asyncio.sleep(0.01)
            assert cluster.broker.requests[ASKED] == 2
    assert not warnings(caplog)
