# SPDX-License-Identifier: Apache-2.0
"""Calls refuse values of the wrong type, even values that are falsy like None."""

from typing import Any

import pytest

from cometmq.client import (
    AdminClient,
    InvalidArgument,
    LitePullConsumer,
    Message,
    MessageQueue,
    NoRoute,
    Producer,
    ProducerOptions,
    PullConsumer,
    PushConsumer,
    ScheduledPull,
    TransactionProducer,
    sync,
)
from cometmq.client.consume.queues.rebalance import AllocateAveragely
from cometmq.client.testing import MemoryCluster, eventually
from cometmq.testing.client.listening import QUEUE_0, Recorder, consumer_of, send, texts

ADDRESS = "127.0.0.1:1"
PATIENT = ProducerOptions(send_timeout_ms=60_000)


@pytest.mark.parametrize("value", ["", 0, [], {}, "AVG", AllocateAveragely, object()])
@pytest.mark.parametrize("kind", [LitePullConsumer, PullConsumer, sync.PullConsumer])
def test_strategies_and_offset_stores_have_their_methods(kind: type[Any], value: Any) -> None:
    with pytest.raises(
        InvalidArgument, match="strategy must be an object with the method allocate"
    ):
        kind("cg", ADDRESS, strategy=value)
    with pytest.raises(InvalidArgument, match="offsets must be an object with the method read"):
        kind("cg", ADDRESS, offsets=value)


@pytest.mark.parametrize("value", ["", 0, [], {}, False])
def test_options_are_no_other_false_value(value: Any) -> None:
    for make in (
        lambda: Producer("pg", ADDRESS, options=value),
        lambda: TransactionProducer("pg", ADDRESS, check=lambda _: None, options=value),
        lambda: PushConsumer("cg", ADDRESS, listener=print, options=value),
        lambda: AdminClient(ADDRESS, options=value),
        lambda: sync.Producer("pg", ADDRESS, options=value),
    ):
        with pytest.raises(InvalidArgument, match=r"the options must be \w+\(\.\.\.\), not "):
            make()


@pytest.mark.parametrize("topic", [None, "", "a b", 5, [], {}])
def test_topics_of_callbacks_are_names(topic: Any) -> None:
    for call in (
        lambda: LitePullConsumer("cg", ADDRESS).on_queues_changed(topic, lambda _, __: None),
        lambda: ScheduledPull("cg", ADDRESS).register(topic, lambda _, __: None),  # type: ignore[arg-type,return-value]
        lambda: sync.ScheduledPull("cg", ADDRESS).register(topic, lambda _, __: None),
    ):
        with pytest.raises(InvalidArgument, match="the name"):
            call()


async def test_a_oneway_send_does_not_lose_a_message_in_a_wrong_queue(
    cluster: MemoryCluster,
) -> None:
    """A oneway request gets no reply that could report the loss."""
    cluster.create_topic("U")
    message = Message("T", b"x")
    async with Producer("pg", cluster.namesrv, options=PATIENT) as producer:
        with pytest.raises(InvalidArgument, match="belongs to the topic U, the message is for T"):
            await producer.send_oneway(message, queue=MessageQueue("U", "broker-a", 0))
        with pytest.raises(InvalidArgument, match="has no queue 4 at broker-a: its queues there"):
            await producer.send_oneway(message, queue=MessageQueue("T", "broker-a", 4))
        wrong: Any
        for wrong in ("", [], 0):
            with pytest.raises(InvalidArgument, match="queue must be a MessageQueue"):
                await producer.send_oneway(message, queue=wrong)
        await producer.send_oneway(message, queue=QUEUE_0)
        await eventually(lambda: len(cluster.messages("T")) == 1)
    assert cluster.messages("U") == []


async def test_searches_by_nothing_are_refused(admin: AdminClient) -> None:
    for call, text in (
        (lambda: admin.query_by_key("T", " "), "key is empty"),
        (lambda: admin.query_by_key("T", "k", count_max=0), "count_max must be"),
        (lambda: admin.query_by_key("T", "k", begin_ms=-1), "begin_ms must be"),
        (lambda: admin.query_by_key("T", "k", end_ms=-1), "end_ms must be"),
        (lambda: admin.query_by_unique_key("T", ""), "unique_key is empty"),
        (lambda: admin.view_message("", "T"), "message_id is empty"),
        (lambda: admin.view_message("id", ""), "topic is empty"),
        (lambda: admin.topic_stats(""), "topic is empty"),
        (lambda: admin.consume_stats(""), "the name of the group is empty"),
        (lambda: admin.committed_offset("", QUEUE_0), "the name of the group is empty"),
    ):
        with pytest.raises(InvalidArgument, match=text):
            await call()


async def test_the_lag_in_a_misspelt_topic_is_not_nothing(cluster: MemoryCluster) -> None:
    await send(cluster, *texts(1))
    seen = Recorder()
    async with consumer_of(cluster, seen):
        await eventually(lambda: seen.bodies)
    async with AdminClient(cluster.namesrv) as admin:
        assert [found.lag for found in await admin.lag("cg", "T")] == [0, 0, 0, 0]
        with pytest.raises(NoRoute, match="no broker has the topic Tt"):
            await admin.lag("cg", "Tt")


@pytest.mark.parametrize("name", [None, 5, [], b"T"])
def test_a_cluster_is_asked_about_names(name: Any) -> None:
    with MemoryCluster() as cluster:
        for call in (
            lambda: cluster.messages(name),
            lambda: cluster.committed(name, "T"),
            lambda: cluster.committed("cg", name),
        ):
            with pytest.raises(InvalidArgument, match="must be a string, not"):
                call()
