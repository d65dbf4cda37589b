# SPDX-License-Identifier: Apache-2.0
"""Runs our lite pull consumer and admin client against a Java broker and ours."""

import asyncio
import hashlib
from collections.abc import Callable

import pytest

from cometmq.client import AdminClient, ConsumeFrom, LitePullConsumer, LitePullOptions, NoRoute
from cometmq.peers.clients.programs import ClientProgram
from cometmq.peers.cluster import CLUSTER_NAME, Cluster
from cometmq.peers.content import Event, named, sent
from cometmq.peers.settled import wait_for_dispatch, wait_for_offsets
from cometmq.remoting.bodies.topic_config import SubscriptionGroupConfig

pytestmark = pytest.mark.compat

COUNT = 40
DEADLINE_S = 120


@pytest.fixture(scope="module", params=["comet", "java"])
def cluster(request: pytest.FixtureRequest, running: Callable[[str], Cluster]) -> Cluster:
    """Use both implementations even in the short test run: no other test covers this client."""
    return running(request.param)


@pytest.fixture
def messages(cluster: Cluster, java: ClientProgram, topic: str) -> list[Event]:
    printed = java.run(
        "send", namesrv=cluster.namesrv_addr, topic=topic, count=COUNT, size=5000, key="own"
    )
    wait_for_dispatch(cluster)
    return named(printed, "sent")


def _consumer(cluster: Cluster, group: str, *, auto_commit: bool = True) -> LitePullConsumer:
    options = LitePullOptions(
        consume_from=ConsumeFrom.FIRST_OFFSET, poll_timeout_ms=500, auto_commit=auto_commit
    )
    return LitePullConsumer(group, cluster.namesrv_addr, options=options)


async def _pull(consumer: LitePullConsumer, count: int) -> dict[str, str]:
    """Pull `count` messages; return the SHA-256 of each body by message key."""
    digests: dict[str, str] = {}
    async with asyncio.timeout(DEADLINE_S):
        async for message in consumer:
            digests[message.keys[0]] = hashlib.sha256(message.body).hexdigest()
            if len(digests) == count:
                break
    return digests


async def test_messages_are_pulled_and_progress_is_kept(
    cluster: Cluster, java: ClientProgram, topic: str, group: str, messages: list[Event]
) -> None:
    """A second consumer of the group continues where the first stopped."""
    async with _consumer(cluster, group) as consumer:
        consumer.subscribe(topic)
        assert await _pull(consumer, COUNT) == sent(messages)
        await consumer.commit()
    sending = {"namesrv": cluster.namesrv_addr, "topic": topic, "count": 5, "key": "later"}
    later = await asyncio.to_thread(java.run, "send", **sending)

    async with _consumer(cluster, group) as consumer:
        consumer.subscribe(topic)
        assert await _pull(consumer, 5) == sent(later)


async def test_assigned_queues_are_read_from_where_we_want(
    cluster: Cluster, topic: str, group: str, messages: list[Event]
) -> None:
    wanted = [event["key"] for event in messages if event["queue_id"] == 1][1:]
    async with AdminClient(cluster.namesrv_addr) as admin:
        queue = (await admin.queues(topic))[1]
    consumer = _consumer(cluster, group)
    consumer.assign([queue])

    async with consumer:
        await consumer.seek(queue, 1)
        pulled = await _pull(consumer, len(wanted))

    assert list(pulled) == wanted


async def test_a_seek_is_stored_by_commit_only(
    cluster: Cluster, topic: str, group: str, messages: list[Event]
) -> None:
    async with AdminClient(cluster.namesrv_addr) as admin:
        queue = (await admin.queues(topic))[1]

    async def sought(offset: int, *, is_committed: bool) -> int | None:
        """Seek and read one message; return the offset of the group after a restart."""
        consumer = _consumer(cluster, group, auto_commit=False)
        consumer.assign([queue])
        async with consumer:
            await consumer.seek(queue, offset)
            message = await consumer.next_message(DEADLINE_S * 1000)
            assert message is not None
            assert message.queue_offset == offset
            if is_committed:
                await consumer.commit()
        again = _consumer(cluster, group, auto_commit=False)
        again.assign([queue])
        async with again:
            return await again.committed(queue)

    assert await sought(4, is_committed=True) == 5
    assert await sought(7, is_committed=False) == 5
    assert await sought(1, is_committed=True) == 2
    assert await sought(0, is_committed=False) == 2


async def test_topics_are_managed(cluster: Cluster, fresh_name: Callable[[str], str]) -> None:
    topic = fresh_name("OwnAdminTopic")
    async with AdminClient(cluster.namesrv_addr) as admin:
        await admin.create_topic(topic, queue_count=3)
        assert topic in await admin.topics()
        (data,) = (await admin.route(topic)).queue_datas
        assert (data.broker_name, data.read_queue_nums, data.perm) == ("broker-a", 3, 6)
        stats = await admin.topic_stats(topic)
        assert [(queue.queue_id, offset.max_offset) for queue, offset in stats.items()] == [
            (0, 0),
            (1, 0),
            (2, 0),
        ]

        await admin.delete_topic(topic)
        with pytest.raises(NoRoute):
            await admin.route(topic)


async def test_groups_are_managed(cluster: Cluster, group: str) -> None:
    async with AdminClient(cluster.namesrv_addr) as admin:
        await admin.create_group(SubscriptionGroupConfig(group_name=group, retry_max_times=3))
        assert (await admin.groups())[group].retry_max_times == 3

        await admin.delete_group(group)
        assert group not in await admin.groups()


async def test_messages_are_found(cluster: Cluster, topic: str, messages: list[Event]) -> None:
    one = messages[7]
    async with AdminClient(cluster.namesrv_addr) as admin:
        by_offset_id = await admin.view_message(one["offset_msg_id"], topic)
        by_unique_key = await admin.view_message(one["msg_id"], topic)
        (by_key,) = await admin.query_by_key(topic, one["key"])

    for message in (by_offset_id, by_unique_key, by_key):
        assert hashlib.sha256(message.body).hexdigest() == one["sha256"]
        assert message.message_id == one["msg_id"]
        assert (message.queue.queue_id, message.queue_offset) == (
            one["queue_id"],
            one["queue_offset"],
        )


async def test_consumers_and_their_progress_are_seen(
    cluster: Cluster, java: ClientProgram, topic: str, group: str, messages: list[Event]
) -> None:
    server = {"namesrv": cluster.namesrv_addr, "topic": topic, "group": group}
    await asyncio.to_thread(java.run, "consume", count=COUNT, **server)
    await asyncio.to_thread(wait_for_offsets, cluster, topic, group, COUNT)
    async with AdminClient(cluster.namesrv_addr) as admin:
        lags = [lag for lag in await admin.lag(group) if lag.queue.topic == topic]
        assert sum(lag.committed_offset for lag in lags) == len(messages)
        assert {lag.lag for lag in lags} == {0}

        await admin.reset_offsets(group, topic, 0)
        lags = [lag for lag in await admin.lag(group, topic) if lag.queue.topic == topic]
        assert sum(lag.lag for lag in lags) == COUNT

        with java.start("consume", count=COUNT + 1, **server) as consumer:
            await asyncio.to_thread(consumer.wait_for, "received", COUNT)
            (connection,) = (await admin.consumer_connections(group)).connection_set
    assert connection.language == "JAVA"


async def test_the_cluster_and_its_settings_are_seen(cluster: Cluster) -> None:
    address = cluster.broker_addrs[0]
    async with AdminClient(cluster.namesrv_addr) as admin:
        info = await admin.cluster()
        broker = admin.broker(address)
        config = await broker.config()
        await admin.namesrv.put_kv("OwnSpace", "colour", "grün")
        value = await admin.namesrv.get_kv("OwnSpace", "colour")
        await admin.namesrv.delete_kv("OwnSpace", "colour")
        gone = await admin.namesrv.get_kv("OwnSpace", "colour")
        wiped = await admin.namesrv.wipe_write_perm("broker-a")
        given = await admin.namesrv.add_write_perm("broker-a")

    assert set(info.cluster_addr_table[CLUSTER_NAME]) == {"broker-a"}
    assert info.broker_addr_table["broker-a"].broker_addrs == {0: address}
    assert config["brokerName"] == "broker-a"
    assert (value, gone) == ("grün", None)
    assert wiped == given > 0
