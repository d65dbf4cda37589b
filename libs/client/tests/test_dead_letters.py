# SPDX-License-Identifier: Apache-2.0
"""Reading dead letters, and sending stored messages again."""

import pytest

from cometmq.client import (
    AdminClient,
    ConsumeResult,
    InvalidArgument,
    Message,
    MessageExt,
    Producer,
)
from cometmq.client.admin.broker import BrokerAdmin
from cometmq.client.admin.dead_letters import origin_message_id, origin_topic
from cometmq.client.errors import ClientError, NoRoute, NotWritable
from cometmq.client.testing import MemoryCluster
from cometmq.client.testing.cluster import eventually
from cometmq.remoting.bodies.topic_config import SubscriptionGroupConfig
from cometmq.remoting.message.flags import Perm

from .admin_groups import QUEUE, member, send


async def bury(cluster: MemoryCluster) -> None:
    """Make every message a dead letter of the group g."""
    stored = len(cluster.messages("T"))
    async with member(cluster, lambda _: ConsumeResult.RECONSUME_LATER):
        await eventually(lambda: len(cluster.messages("%DLQ%g")) == stored)


async def test_a_healthy_group_has_no_dead_letters(admin: AdminClient) -> None:
    await admin.commit_offset("orders-group", QUEUE, 0)
    assert [message async for message in admin.dead_letters("orders-group")] == []
    with pytest.raises(InvalidArgument, match="group order-group; did you mean orders-group"):
        _ = [message async for message in admin.dead_letters("order-group")]


async def test_dead_letters_are_read(
    cluster: MemoryCluster, admin: AdminClient, producer: Producer
) -> None:
    ids = await send(producer, 3)
    assert await admin.dead_letter_groups() == []
    await bury(cluster)

    assert await admin.dead_letter_groups() == ["g"]
    dead = [message async for message in admin.dead_letters("g")]
    assert sorted(origin_message_id(message) for message in dead) == sorted(ids)
    assert {origin_topic(message) for message in dead} == {"T"}
    later = dead[-1].store_timestamp + 1
    assert [m async for m in admin.dead_letters("g", begin_ms=later)] == []
    assert [m async for m in admin.dead_letters("g", end_ms=0)] == []


async def test_a_dead_letter_is_replayed_to_its_group(
    cluster: MemoryCluster, admin: AdminClient, producer: Producer
) -> None:
    (message_id,) = await send(producer, 1, colour="red")
    await bury(cluster)
    (dead,) = [message async for message in admin.dead_letters("g")]
    seen: list[MessageExt] = []

    def listen(message: MessageExt) -> ConsumeResult:
        seen.append(message)
        return ConsumeResult.SUCCESS

    await admin.replay(dead, "g")
    async with member(cluster, listen):
        await eventually(lambda: len(seen) == 1)
    assert (seen[0].topic, seen[0].body, seen[0].tag) == ("T", b"0", "A")
    assert "k0" in seen[0].keys
    assert seen[0].properties["colour"] == "red"
    assert origin_message_id(seen[0]) == seen[0].message_id == message_id
    assert seen[0].reconsume_times == 0
    assert len(cluster.messages("T")) == 1


async def test_a_group_without_retries_gets_no_dead_letter_back(
    cluster: MemoryCluster,
    admin: AdminClient,
    producer: Producer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await send(producer, 1)
    await bury(cluster)
    (dead,) = [message async for message in admin.dead_letters("g")]

    async def no_retries(_broker: BrokerAdmin) -> dict[str, SubscriptionGroupConfig]:
        return {"g": SubscriptionGroupConfig(group_name="g", retry_max_times=0)}

    monkeypatch.setattr(BrokerAdmin, "groups", no_retries)
    with pytest.raises(ClientError, match="group alter g --retries 1"):
        await admin.replay(dead, "g")
    with pytest.raises(ClientError, match="group alter g --retries 1"):
        await admin.replay(dead, "other", topic="%RETRY%g")
    assert cluster.messages("%RETRY%g") == []
    await admin.replay(dead, "g", topic="T")
    assert len(cluster.messages("T")) == 2


async def test_a_replay_to_a_topic_that_accepts_nothing_is_refused_beforehand(
    cluster: MemoryCluster, admin: AdminClient
) -> None:
    await admin.create_topic("Archive", perm=Perm.READ)
    with pytest.raises(NotWritable, match="has no write permission for it"):
        await admin.check_replay("g", topic="Archive")


async def test_a_dead_letter_is_replayed_to_all(
    cluster: MemoryCluster, admin: AdminClient, producer: Producer
) -> None:
    (message_id,) = await send(producer, 1)
    await bury(cluster)
    (dead,) = [message async for message in admin.dead_letters("g")]

    result = await admin.replay(dead, "g", topic="T")
    again = await admin.stored_message(result.offset_message_id)
    assert len(cluster.messages("T")) == 2
    assert again.properties["ORIGIN_MESSAGE_ID"] == again.message_id == message_id
    assert "RETRY_TOPIC" not in again.properties
    with pytest.raises(NoRoute, match="no broker has the topic Nowhere"):
        await admin.replay(dead, "g", topic="Nowhere")


async def test_a_stored_message_is_sent_again(
    cluster: MemoryCluster, admin: AdminClient, producer: Producer
) -> None:
    sent = await producer.send(Message("T", b"x", tag="A", keys="k", properties={"a": "b"}))
    result = await admin.resend(await admin.stored_message(sent.offset_message_id))

    again = await admin.stored_message(result.offset_message_id)
    assert (again.topic, again.body, again.tag) == ("T", b"x", "A")
    assert (again.message_id, again.properties["a"]) == (sent.message_id, "b")
    assert "k" in again.keys
    assert len(cluster.messages("T")) == 2
