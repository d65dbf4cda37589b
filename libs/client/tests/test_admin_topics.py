# SPDX-License-Identifier: Apache-2.0
"""Administration of topics: routes, deleted topics, and the queues of ordered topics."""

import pytest

from cometmq.client import (
    AdminClient,
    ClientError,
    InvalidArgument,
    Message,
    NoRoute,
    Producer,
    SubscriptionGroupConfig,
)
from cometmq.client.admin.namesrv import NamesrvAdmin
from cometmq.client.testing import MemoryCluster, eventually
from cometmq.remoting.bodies.topic_config import QUEUES_MAX
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.errors import RemoteProtocolError
from cometmq.testing.client.listening import Recorder, consumer_of


async def test_where_a_topic_is(cluster: MemoryCluster, admin: AdminClient) -> None:
    assert [master.name for master in await admin.masters_of("T")] == ["broker-a"]
    assert await admin.topic_clusters("T") == list((await admin.cluster()).cluster_addr_table)
    assert [one.address for one in admin.namesrv.each()] == [cluster.namesrv]
    groups = await admin.broker_groups()
    assert [(name, list(group)) for name, group in groups.items()] == [("broker-a", [0])]


async def test_queues_of_an_ordered_topic_are_kept_by_broker(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {("ORDER_TOPIC_CONFIG", "T"): "a:4;b:8"}

    async def get_kv(_: NamesrvAdmin, namespace: str, key: str) -> str | None:
        return values.get((namespace, key))

    async def put_kv(_: NamesrvAdmin, namespace: str, key: str, value: str) -> None:
        values[namespace, key] = value

    monkeypatch.setattr(NamesrvAdmin, "get_kv", get_kv)
    monkeypatch.setattr(NamesrvAdmin, "put_kv", put_kv)
    async with AdminClient(cluster.namesrv) as admin:
        assert await admin.set_order_queues("T", "a", 6) == "a:6;b:8"
        assert await admin.set_order_queues("New", "c", 2) == "c:2"
        assert await admin.order_config("T") == "a:6;b:8"
    assert values["ORDER_TOPIC_CONFIG", "New"] == "c:2"


async def test_a_topic_that_exists_is_not_shrunk_unless_forced(pair: MemoryCluster) -> None:
    async with AdminClient(pair.namesrv) as admin, Producer("pg", pair.namesrv) as producer:
        await admin.create_topic("Large", queue_count=16, broker_names=["broker-a"])
        text = (
            r"exists with more than 8 queues \(16 at broker-a\).*nothing was changed.*at least 16"
        )
        for shrink in (admin.create_topic, producer.admin.create_topic):
            with pytest.raises(InvalidArgument, match=text):
                await shrink("Large", queue_count=8)
        assert len(await admin.queues("Large")) == 16
        await producer.admin.create_topic("Large", queue_count=16)
        assert len(await admin.queues("Large")) == 32
        await producer.admin.create_topic("Large", queue_count=3, is_forced=True)
        assert len(await admin.queues("Large")) == 6


async def test_a_topic_that_clients_would_refuse_is_not_created(pair: MemoryCluster) -> None:
    """Their limit is for all brokers together; each broker alone would create it."""
    wide = QUEUES_MAX // 2 + 1
    async with AdminClient(pair.namesrv) as admin:
        with pytest.raises(InvalidArgument, match=r"Wide would have 16,386 queues at all brokers"):
            await admin.create_topic("Wide", queue_count=wide)
        assert "Wide" not in await admin.topics()
        await admin.create_topic("Wide", queue_count=wide, broker_names=["broker-a"])
        with pytest.raises(InvalidArgument, match=r"16,386 queues.*fewer queues, or fewer brokers"):
            await admin.create_topic("Wide", queue_count=wide, broker_names=["broker-b"])
        await admin.create_topic("Wide", queue_count=wide - 2, broker_names=["broker-b"])
        assert len(await admin.queues("Wide")) == QUEUES_MAX

        pair.create_topic("Wide", queue_count=wide)  # as mqadmin and Java's tools do
        with pytest.raises(RemoteProtocolError, match="16,386 queues, more than 16,384"):
            await admin.queues("Wide")
        await admin.create_topic("Wide", queue_count=8, is_forced=True)
        assert len(await admin.queues("Wide")) == 16


async def test_a_topic_that_exists_keeps_what_is_not_given(admin: AdminClient) -> None:
    await admin.create_topic("New")
    assert len(await admin.queues("New")) == 8
    await admin.create_topic("New", perm=4, queue_count=9)
    await admin.create_topic("New")
    (master,) = (await admin.masters()).values()
    config = (await master.topics())["New"]
    assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (9, 9, 4)
    await admin.create_topic("New", perm=6)
    config = (await master.topics())["New"]
    assert (config.read_queue_nums, config.perm) == (9, 6)


async def consume_all(cluster: MemoryCluster, bodies: list[bytes]) -> None:
    """Read the topic T with the group `cg` until exactly these messages have arrived."""
    seen = Recorder()
    async with consumer_of(cluster, seen):
        await eventually(lambda: len(seen.bodies) >= len(bodies), what=f"{len(bodies)} messages")
    assert sorted(seen.bodies) == bodies


async def test_a_deleted_topic_keeps_the_offsets_of_groups_or_resets_them(
    pair: MemoryCluster,
) -> None:
    async with AdminClient(pair.namesrv) as admin, Producer("pg", pair.namesrv) as producer:
        old = [b"old %d" % number for number in range(8)]
        for queue, body in zip(await admin.queues("T") * 2, old, strict=True):
            await producer.send(Message("T", body), queue=queue)
        await consume_all(pair, old)

        await admin.delete_topic("T")
        assert set(pair.committed("cg", "T").values()) == {2}
        with pytest.raises(NoRoute):
            await admin.delete_topic("T", reset_groups=True)
        await admin.delete_topic("T", reset_groups=True, is_missing_ok=True)
        assert set(pair.committed("cg", "T").values()) == {0}

        await admin.create_topic("T", queue_count=1)
        for queue in await admin.queues("T"):
            await producer.send(Message("T", b"new " + queue.broker_name.encode()), queue=queue)
        await consume_all(pair, [b"new broker-a", b"new broker-b"])


async def test_a_topic_with_connected_consumers_is_not_reset(cluster: MemoryCluster) -> None:
    async with AdminClient(cluster.namesrv) as admin, Producer("pg", cluster.namesrv) as producer:
        await producer.send(Message("T", b"x"))
        seen = Recorder()
        async with consumer_of(cluster, seen):
            await eventually(lambda: seen.bodies, what="a message")
            with pytest.raises(ClientError, match="the consumer group cg has a connected member"):
                await admin.delete_topic("T", reset_groups=True)
            assert "T" in await admin.topics()
        await admin.delete_topic("T", reset_groups=True)
        assert set(cluster.committed("cg", "T").values()) <= {0}


async def test_a_group_with_connected_members_is_deleted_only_by_force(
    cluster: MemoryCluster,
    admin: AdminClient,
) -> None:
    await admin.create_group(SubscriptionGroupConfig(group_name="cg"))
    async with consumer_of(cluster, Recorder()):
        with pytest.raises(ClientError, match=r"cg has a connected member.*is_forced=True"):
            await admin.delete_group("cg")
        assert cluster.broker.requests[RequestCode.DELETE_SUBSCRIPTIONGROUP] == 0
        await admin.delete_group("cg", is_forced=True)
        assert cluster.broker.requests[RequestCode.DELETE_SUBSCRIPTIONGROUP] == 1
    await admin.create_group(SubscriptionGroupConfig(group_name="cg"))
    await admin.delete_group("cg")
    assert "cg" not in await admin.groups()
