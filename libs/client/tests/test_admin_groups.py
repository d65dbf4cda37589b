# SPDX-License-Identifier: Apache-2.0
"""Resetting and cloning the offsets of groups, and their connections."""

import re

import pytest

from cometmq.client import (
    END,
    AdminClient,
    ConsumeResult,
    InvalidArgument,
    MessageExt,
    MessageQueue,
    Producer,
)
from cometmq.client.admin.broker_consumers import BrokerConsumers
from cometmq.client.admin.groups import find_group, known_groups
from cometmq.client.clock import wall_ms
from cometmq.client.testing import MemoryCluster
from cometmq.client.testing.cluster import eventually
from cometmq.remoting import remarks
from cometmq.remoting.bodies.topic_config import SubscriptionGroupConfig
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.errors import ConsumerNotOnline, ServerError

from .admin_groups import QUEUE, member, send

ADDRESS = "127.0.0.1:1"
SECONDS = 1_700_000_000


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
    assert "new" in await admin.groups()  # or no list of groups and no `lag` would show it


async def test_a_group_with_only_an_offset_is_known_with_the_default_settings(
    cluster: MemoryCluster, admin: AdminClient
) -> None:
    for name in ("bare", "%RETRY%bare", "%DLQ%bare", "not a name"):
        cluster.broker.offsets[name, "T", 0] = 3
    settings = await admin.groups()
    default = SubscriptionGroupConfig(group_name="bare")
    assert await known_groups(admin) == {**settings, "bare": default}
    assert await find_group(admin, "bare") == default
    assert await find_group(admin, "%RETRY%bare") is None


async def test_offsets_are_read_only_for_a_group_without_settings(
    admin: AdminClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = SubscriptionGroupConfig(group_name="made", retry_max_times=3)
    await admin.create_group(config)
    monkeypatch.delattr(BrokerConsumers, "consumer_offsets")
    assert await find_group(admin, "made") == config


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


# -- dead letters -----------------------------------------------------------------------------
