# SPDX-License-Identifier: Apache-2.0
"""Resetting groups, tracking messages, and replaying dead letters."""

import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cometmq.client import (
    END,
    AdminClient,
    ConsumeFrom,
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
from cometmq.client.admin.broker import BrokerAdmin
from cometmq.client.admin.dead_letters import origin_message_id, origin_topic
from cometmq.client.clock import wall_ms
from cometmq.client.errors import ClientError, NoRoute
from cometmq.client.message import UnreadableMessage
from cometmq.client.testing import MemoryCluster
from cometmq.client.testing.queues import sent_back
from cometmq.client.testing.waiting import eventually
from cometmq.remoting import remarks
from cometmq.remoting.bodies.topic_config import SubscriptionGroupConfig
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.errors import ConsumerNotOnline, ServerError
from cometmq.remoting.message.flags import SysFlag

QUEUE = MessageQueue("T", "broker-a", 1)
ADDRESS = "127.0.0.1:1"


@pytest.fixture
async def admin(cluster: MemoryCluster) -> AsyncIterator[AdminClient]:
    async with AdminClient(cluster.namesrv) as admin:
        yield admin


@pytest.fixture
async def producer(cluster: MemoryCluster) -> AsyncIterator[Producer]:
    async with Producer("pg", cluster.namesrv) as producer:
        yield producer


@asynccontextmanager
async def member(
    cluster: MemoryCluster, listen: Callable[[MessageExt], ConsumeResult], expression: str = "*"
) -> AsyncIterator[PushConsumer]:
    async def listener(messages: list[MessageExt]) -> ConsumeResult:
        return listen(messages[0])

    options = PushOptions(consume_from=ConsumeFrom.FIRST_OFFSET, max_reconsume_times=0)
    consumer = PushConsumer("g", cluster.namesrv, listener=listener, options=options)
    consumer.subscribe("T", expression)
    async with consumer:
        yield consumer


async def send(producer: Producer, count: int, **properties: str) -> list[str]:
    sent = [
        await producer.send(
            Message("T", b"%d" % number, tag="A", keys=f"k{number}", properties=properties),
            queue=QUEUE,
        )
        for number in range(count)
    ]
    return [result.message_id for result in sent]


# -- moving -----------------------------------------------------------------------------------


async def test_a_group_off_line_is_rolled_back(admin: AdminClient, producer: Producer) -> None:
    await send(producer, 3)
    await admin.commit_offset("g", QUEUE, 2)

    row = next(row for row in await admin.roll_back("g", "T", END) if row.queue == QUEUE)
    assert (row.broker_offset, row.consumer_offset) == (3, 2)
    assert (row.timestamp_offset, row.rollback_offset) == (3, 3)
    assert await admin.committed_offset("g", QUEUE) == 3


async def test_a_queue_is_not_moved_forwards_unless_forced(
    admin: AdminClient, producer: Producer
) -> None:
    await send(producer, 3)
    await admin.commit_offset("g", QUEUE, 1)

    held = await admin.reset_offsets("g", "T", END, is_forced=False)
    assert held[QUEUE] == 1
    assert await admin.committed_offset("g", QUEUE) == 1
    assert (await admin.reset_offsets("g", "T", 0, is_forced=False))[QUEUE] == 0
    assert await admin.committed_offset("g", QUEUE) == 0


async def test_the_time_of_now_is_the_newest_message_and_the_end_is_after_it(
    admin: AdminClient, producer: Producer
) -> None:
    await send(producer, 3)
    now_ms = wall_ms() + 1  # messages stored in this millisecond would all be equally near
    moved = await admin.reset_offsets("g", "T", now_ms, is_new_group=True)
    assert (moved[QUEUE], await admin.search_offset(QUEUE, now_ms + 60_000)) == (2, 2)
    assert (await admin.reset_offsets("g", "T", END))[QUEUE] == 3


async def test_resetting_an_idle_group_sets_its_first_offsets(
    admin: AdminClient, producer: Producer
) -> None:
    await send(producer, 3)
    assert (await admin.reset_offsets("new", "T", END, is_new_group=True))[QUEUE] == 3
    assert await admin.committed_offset("new", QUEUE) == 3


async def test_offsets_of_an_unknown_group_are_not_moved(
    admin: AdminClient, producer: Producer
) -> None:
    await send(producer, 3)
    await admin.commit_offset("orders-group", QUEUE, 2)
    text = re.escape(
        "no broker knows the consumer group order-group; did you mean orders-group? "
        "(is_new_group=True sets the first offsets of a new group)"
    )
    for call in (
        admin.reset_offsets("order-group", "T", 0),
        admin.roll_back("order-group", "T", 0),
        admin.clone_offsets("orders-group", "order-group", "T"),
    ):
        with pytest.raises(InvalidArgument, match=text):
            await call
    assert await admin.committed_offset("order-group", QUEUE) is None
    with pytest.raises(InvalidArgument, match=r"no broker knows the consumer group zzz \("):
        await admin.reset_offsets("zzz", "T", 0)


async def test_a_group_without_offsets_is_known_by_its_members(
    cluster: MemoryCluster, admin: AdminClient, producer: Producer
) -> None:
    await send(producer, 3)
    async with member(cluster, lambda _: ConsumeResult.SUCCESS):
        pass
    cluster.broker.offsets.clear()
    moved = {row.queue: row.rollback_offset for row in await admin.roll_back("g", "T", END)}
    assert moved[QUEUE] == 3


async def test_connected_members_are_reset(
    cluster: MemoryCluster, admin: AdminClient, producer: Producer
) -> None:
    seen: list[bytes] = []

    def listen(message: MessageExt) -> ConsumeResult:
        seen.append(message.body)
        return ConsumeResult.SUCCESS

    await send(producer, 3)
    with pytest.raises(ConsumerNotOnline):
        await admin.reset_members("g", "T", 0)
    async with member(cluster, listen):
        await eventually(lambda: len(seen) == 3)
        assert (await admin.reset_offsets("g", "T", 0))[QUEUE] == 0
        await eventually(lambda: len(seen) == 6)
    assert seen[3:] == [b"0", b"1", b"2"]


async def test_connected_members_without_a_committed_offset_are_reset(
    cluster: MemoryCluster, admin: AdminClient, producer: Producer
) -> None:
    """Java brokers refuse a reset if a queue has no offset, as in a new group."""
    seen: list[bytes] = []

    def listen(message: MessageExt) -> ConsumeResult:
        seen.append(message.body)
        return ConsumeResult.SUCCESS

    await send(producer, 3)
    code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
    refusal = ServerError(remarks.reset_offset_no_group("g"))
    cluster.broker.fail(code, refusal)
    with pytest.raises(ConsumerNotOnline):
        await admin.reset_members("g", "T", END)
    assert not cluster.committed("g", "T")
    cluster.broker.fail(RequestCode.UPDATE_CONSUMER_OFFSET, ServerError("not now"), times=1_000)
    async with member(cluster, listen):
        await eventually(lambda: len(seen) == 3)
        assert not cluster.committed("g", "T")
        cluster.broker.clear_faults()
        cluster.broker.fail(code, refusal)
        assert (await admin.reset_offsets("g", "T", 0))[QUEUE] == 0
        assert len(cluster.committed("g", "T")) == 4
        await eventually(lambda: len(seen) == 6)
        cluster.broker.fail(code, ServerError("something else"))
        with pytest.raises(ServerError, match="something else"):
            await admin.reset_offsets("g", "T", 0)


async def test_an_offset_outside_the_queue_is_refused(
    admin: AdminClient, producer: Producer
) -> None:
    await send(producer, 3)
    text = "the offset 4 is outside queue 1 of T at broker-a: give an offset from 0 .* to 3 "
    with pytest.raises(InvalidArgument, match=text):
        await admin.commit_offset("g", QUEUE, 4)
    with pytest.raises(InvalidArgument, match=r"no queue 4 to read at broker-a: .* 0 to 3"):
        await admin.commit_offset("g", MessageQueue("T", "broker-a", 4), 0)
    assert await admin.committed_offset("g", QUEUE) is None

    await admin.commit_offset("g", QUEUE, 3)
    assert await admin.committed_offset("g", QUEUE) == 3
    await admin.commit_offset("g", QUEUE, 4, is_forced=True)
    assert await admin.committed_offset("g", QUEUE) == 4


async def test_offsets_are_cloned(admin: AdminClient, producer: Producer) -> None:
    await send(producer, 3)
    await admin.commit_offset("g", QUEUE, 2)

    assert (await admin.clone_offsets("g", "h", "T", is_new_group=True))[QUEUE] == 2
    assert await admin.committed_offset("h", QUEUE) == 2
    with pytest.raises(InvalidArgument, match="to itself"):
        await admin.clone_offsets("g", "g", "T")
    with pytest.raises(InvalidArgument, match="nobody has no stored offset in the topic T"):
        await admin.clone_offsets("nobody", "h", "T")
    assert await admin.committed_offset("h", QUEUE) == 2


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda it: it.commit_offset("g", QUEUE, "1"), "offset must be a whole number"),
        (lambda it: it.commit_offset("g", QUEUE, -5), "of at least 0, not -5"),
        (lambda it: it.commit_offset(None, QUEUE, 1), "name of a group must be a string"),
        (lambda it: it.commit_offset("a b", QUEUE, 1), "'a b' of a group contains illegal char"),
        (
            lambda it: it.broker(ADDRESS).commit_offset("a b", "T", 0, 1),
            "'a b' of a group contains",
        ),
        (lambda it: it.search_offset(QUEUE, "yesterday"), "timestamp_ms must be a whole number"),
        (lambda it: it.search_offset(QUEUE, END), "timestamp_ms must be .* at least 0, not -1"),
        (
            lambda it: it.reset_offsets("g", "T", 1_700_000_000),
            r"timestamp_ms is in milliseconds since 1970, so 1700000000 is before any message",
        ),
        (lambda it: it.reset_members("g", "T", 1_700_000_000), "is in milliseconds"),
        (lambda it: it.roll_back("g", "T", 1_700_000_000), "is in milliseconds"),
        (lambda it: it.search_offset(QUEUE, 1_700_000_000), "is in milliseconds"),
        (
            lambda it: it.query_by_key("T", "k", end_ms=1_700_000_000),
            "end_ms is in milliseconds",
        ),
        (
            lambda it: anext(it.dead_letters("g", begin_ms=1_700_000_000)),
            "begin_ms is in milliseconds",
        ),
        (lambda it: it.search_offset(QUEUE, 1.7e9), "milliseconds, so this time is 1700000000000$"),
        (lambda it: it.broker(ADDRESS).search_offset("T", 0, 1.5), "so 1.5 s are 1500$"),
        (
            lambda it: it.reset_offsets("g", "T", datetime.fromtimestamp(1.0, tz=UTC)),
            r"milliseconds since 1970, not .*: give round\(moment.timestamp\(\) \* 1000\)",
        ),
        (lambda it: it.committed_offset(object(), QUEUE), "name of a group must be a string"),
        (lambda it: it.namesrv.get_kv("n", 7), "key=7: it must be a string, not int"),
    ],
)
async def test_wrong_arguments_do_not_close_the_connection(
    admin: AdminClient, producer: Producer, call: Any, text: str
) -> None:
    await send(producer, 1)
    with pytest.raises(InvalidArgument, match=text):
        await call(admin)
    assert await admin.max_offset(QUEUE) == 1


async def test_connections_of_producers_and_consumers(
    cluster: MemoryCluster, admin: AdminClient, producer: Producer
) -> None:
    await send(producer, 1)
    (connection,) = (await admin.producer_connections("pg", "T")).connection_set
    assert connection.client_id == producer.client_id
    with pytest.raises(ServerError, match="nobody"):
        await admin.producer_connections("nobody", "T")

    async with member(cluster, lambda _: ConsumeResult.SUCCESS) as consumer:
        assert await admin.consuming_groups("T") == ["g"]
        (connection,) = (await admin.consumer_connections("g")).connection_set
        assert connection.client_id == consumer.client_id


# -- reading ----------------------------------------------------------------------------------


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


# -- tracks -----------------------------------------------------------------------------------


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


# -- dead letters -----------------------------------------------------------------------------


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
