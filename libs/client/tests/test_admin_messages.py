# SPDX-License-Identifier: Apache-2.0
"""Reading a queue, finding messages, and following them to their groups."""

from pathlib import Path

import msgspec
import pytest

from cometmq.client import (
    AdminClient,
    ConsumeResult,
    InvalidArgument,
    Message,
    MessageExt,
    MessageModel,
    MessageQueue,
    Producer,
    PushConsumer,
    PushOptions,
)
from cometmq.client.admin import TrackType
from cometmq.client.message import UnreadableMessage
from cometmq.client.testing import MemoryCluster
from cometmq.client.testing.broker import sent_back
from cometmq.remoting.message.flags import SysFlag

from .admin_groups import QUEUE, member, send


async def test_a_queue_is_read_between_two_places(admin: AdminClient, producer: Producer) -> None:
    await send(producer, 40)
    pulled = [found async for found in admin.read(QUEUE, 3, 38)]
    read = [message for found in pulled for message in found.messages]
    assert [message.queue_offset for message in read] == list(range(3, 38))
    filtered = [
        m async for found in admin.read(QUEUE, 0, 40, expression="B") for m in found.messages
    ]
    assert filtered == []
    beyond = [m async for found in admin.read(QUEUE, 40, 99) for m in found.messages]
    assert beyond == []


async def test_deleted_messages_are_skipped(
    cluster: MemoryCluster, admin: AdminClient, producer: Producer
) -> None:
    await send(producer, 4)
    cluster.broker.queues.expire("T", 1, 2)
    read = [m async for found in admin.read(QUEUE, 0, 4) for m in found.messages]
    assert [message.queue_offset for message in read] == [2, 3]


async def test_a_message_with_a_broken_body_hides_no_other(
    cluster: MemoryCluster, admin: AdminClient, producer: Producer
) -> None:
    await send(producer, 2)
    first = cluster.broker.queues.record_at(cluster.messages("T")[0].physical_offset)
    assert first is not None
    damaged = sent_back(first, "T", "")
    damaged.queue_id, damaged.sys_flag, damaged.body = 1, int(SysFlag.COMPRESSED), b"not packed"
    cluster.broker.store(damaged)

    (pulled,) = [found async for found in admin.read(QUEUE, 0, 3)]
    assert [type(message) for message in pulled.messages] == [
        MessageExt,
        MessageExt,
        UnreadableMessage,
    ]
    with pytest.raises(InvalidArgument, match="is broken"):
        await admin.replay(pulled.messages[2], "g")


async def test_a_message_is_found_by_its_ids(admin: AdminClient, producer: Producer) -> None:
    sent = await producer.send(Message("T", b"x"))
    assert (await admin.stored_message(sent.offset_message_id)).message_id == sent.message_id
    (found,) = await admin.query_by_unique_key("T", sent.message_id)
    assert found.offset_message_id == sent.offset_message_id
    with pytest.raises(InvalidArgument, match="32 or 56"):
        await admin.stored_message("nonsense")


async def test_a_message_is_followed_to_its_groups(
    cluster: MemoryCluster, admin: AdminClient, producer: Producer
) -> None:
    await send(producer, 2)
    message = cluster.messages("T")[0]
    assert await admin.message_tracks(message) == []
    await admin.commit_offset("idle", QUEUE, 1)
    (track,) = await admin.message_tracks(message)
    assert (track.consumer_group, track.track_type) == ("idle", TrackType.NOT_ONLINE)
    assert track.exception_desc == "CODE:206 DESC:the consumer group[idle] not online"

    async with member(cluster, lambda _: ConsumeResult.SUCCESS):
        await admin.commit_offset("g", QUEUE, 0)
        assert await _track(admin, message) is TrackType.NOT_CONSUME_YET
        await admin.commit_offset("g", QUEUE, 1)
        assert await _track(admin, message) is TrackType.CONSUMED
        moved = msgspec.structs.replace(message, store_host="10.9.0.1:10911")
        assert await _track(admin, moved) is TrackType.CONSUMED
        unnamed = msgspec.structs.replace(message, queue=MessageQueue("T", "", 1))
        assert await _track(admin, unnamed) is TrackType.CONSUMED


async def test_a_filter_shows_in_the_track(
    cluster: MemoryCluster, admin: AdminClient, producer: Producer
) -> None:
    await send(producer, 1)
    async with member(cluster, lambda _: ConsumeResult.SUCCESS, "B"):
        await admin.commit_offset("g", QUEUE, 1)
        track = await _track(admin, cluster.messages("T")[0])
    assert track is TrackType.CONSUMED_BUT_FILTERED


async def test_brokers_do_not_know_the_progress_of_broadcasting_members(
    cluster: MemoryCluster, admin: AdminClient, producer: Producer, tmp_path: Path
) -> None:
    """RocketMQ 4.9 says NOT_CONSUME_YET, whatever the members have consumed."""
    await send(producer, 1)
    assert not await admin.is_broadcasting("g")
    model = MessageModel.BROADCASTING
    options = PushOptions(message_model=model, offsets_dir=str(tmp_path))
    consumer = PushConsumer("g", cluster.namesrv, listener=lambda _: None, options=options)
    consumer.subscribe("T")
    async with consumer:
        assert await admin.is_broadcasting("g")
        track = await _track(admin, cluster.messages("T")[0])
        assert track is TrackType.CONSUME_BROADCASTING
    async with member(cluster, lambda _: ConsumeResult.SUCCESS):
        assert not await admin.is_broadcasting("g")


async def _track(admin: AdminClient, message: MessageExt) -> TrackType:
    tracks = {track.consumer_group: track for track in await admin.message_tracks(message)}
    return tracks["g"].track_type
