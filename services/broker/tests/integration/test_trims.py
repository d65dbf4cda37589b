# SPDX-License-Identifier: Apache-2.0
"""A queue is trimmed, and the broker is killed right after its answer."""

from pathlib import Path

import pytest

from cometmq.remoting.bodies.dialect import decode_json
from cometmq.remoting.bodies.stats import TopicStats
from cometmq.remoting.codes import RequestCode as Code
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.commands.offsets import GetMinOffset, SearchOffsetByTimestamp
from cometmq.remoting.commands.queries import QueryMessage, ViewMessageById
from cometmq.remoting.commands.send import ConsumerSendMsgBack
from cometmq.remoting.commands.topics import GetTopicStatsInfo, TrimQueue
from cometmq.remoting.errors import CommandError, ServerError
from cometmq.remoting.message.record import decode_records
from cometmq.remoting.names import HALF_TOPIC, SCHEDULE_TOPIC
from cometmq.testing.broker.broker_groups import running_group
from cometmq.testing.broker.clients import Client, connected
from cometmq.testing.broker.process import BrokerProcess

FOREVER_MS = 1 << 60


async def send_ten(client: Client, topic: str = "T") -> None:
    for number in range(10):
        response = await client.send(
            b"%d" % number, properties=f"KEYS\x01k{number}\x02UNIQ_KEY\x01u{number}", topic=topic
        )
        assert response.code == ResponseCode.SUCCESS


async def is_refused(client: Client, code: int, header: object) -> bool:
    try:
        await client.invoke(code, header)  # type: ignore[arg-type]
    except CommandError:
        return True
    return False


async def check_gone(client: Client, places: list[int], first: int) -> None:
    """All ways to a message know those from `first` on, and no others."""
    for number, place in enumerate(places):
        key = QueryMessage("T", f"k{number}", 32, 0, FOREVER_MS)
        back = ConsumerSendMsgBack(offset=place, group="G", delay_level=-1, origin_topic="T")
        for code, header in (
            (Code.VIEW_MESSAGE_BY_ID, ViewMessageById(place)),
            (Code.QUERY_MESSAGE, key),
            (Code.QUERY_MESSAGE, QueryMessage("T", f"u{number}", 32, 0, FOREVER_MS)),
            (Code.CONSUMER_SEND_MSG_BACK, back),
        ):
            if code is not Code.CONSUMER_SEND_MSG_BACK or number < first:
                assert await is_refused(client, code, header) is (number < first), (number, code)
    moved = await client.pull(0)
    assert moved.code == ResponseCode.PULL_OFFSET_MOVED
    assert moved.header.next_begin_offset == moved.header.min_offset == first
    found = await client.pull(first)
    assert [int(record.body) for record in decode_records(found.body)] == list(range(first, 10))
    assert (await client.invoke(Code.GET_MIN_OFFSET, GetMinOffset("T", 0))).header.offset == first
    oldest = SearchOffsetByTimestamp("T", 0, 1)
    reply = await client.invoke(Code.SEARCH_OFFSET_BY_TIMESTAMP, oldest)
    assert reply.header.offset == first
    stats = await client.invoke(Code.GET_TOPIC_STATS_INFO, GetTopicStatsInfo("T"))
    offsets = decode_json(TopicStats, stats.body).offset_table
    (queue,) = (it for queue, it in offsets.items() if queue.queue_id == 0)
    assert (queue.min_offset, queue.max_offset) == (first, 10)


async def places_of(client: Client) -> list[int]:
    return [record.physical_offset for record in await client.all_messages()]


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
@pytest.mark.parametrize("native", ["true", "false"])
async def test_no_reader_finds_the_messages_again_after_a_kill(
    tmp_path: Path, native: str, flush: str
) -> None:
    async with BrokerProcess(tmp_path, nativeLaneEnable=native, flushDiskType=flush) as broker:
        async with connected(broker) as client:
            await send_ten(client)
            places = await places_of(client)
            for _ in range(3):  # the lane learns and caches them
                await client.pull(0)
            for first in (4, 7):
                before = (await client.pull(first - 1)).header.min_offset
                dry = TrimQueue("T", 0, first, dry_run=True)
                planned = (await client.invoke(Code.TRIM_QUEUE, dry)).header
                done = (await client.invoke(Code.TRIM_QUEUE, TrimQueue("T", 0, first))).header
                assert planned == done
                assert (done.min_offset, done.message_count) == (before, first - before)
                assert done.size == places[first] - places[before]
                await check_gone(client, places, first)
        await broker.kill()
        await broker.start()
        async with connected(broker) as client:
            await check_gone(client, places, 7)


async def test_a_consumer_of_a_trimmed_queue_gets_the_next_messages(tmp_path: Path) -> None:
    """Also the purge of a dead-letter topic, from which all messages go."""
    topic = "%DLQ%G"
    async with BrokerProcess(tmp_path) as broker, connected(broker) as client:
        await send_ten(client, topic)
        await client.invoke(Code.TRIM_QUEUE, TrimQueue(topic, 0, 10))
        assert (await client.pull(10, topic=topic)).code == ResponseCode.PULL_NOT_FOUND
        moved = await client.pull(3, topic=topic)
        assert moved.code == ResponseCode.PULL_OFFSET_MOVED
        assert moved.header.next_begin_offset == 10
        await client.send(b"next", topic=topic)
        (record,) = decode_records((await client.pull(10, topic=topic)).body)
        assert record.body == b"next"


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (TrimQueue(SCHEDULE_TOPIC, 0, 1), "delayed messages wait there"),
        (TrimQueue(HALF_TOPIC, 0, 1), "open transactions are there"),
        (TrimQueue("TBW102", 0, 1), "of the brokers' own"),
        (TrimQueue("Unknown", 0, 1), "has no messages"),
        (TrimQueue("T", 3, 1), "has no messages"),
        (TrimQueue("T", -1, 1), "has no messages"),
        (TrimQueue("T", 0, 11), "has the offsets 0 to 10; 10 deletes all"),
        (TrimQueue("T", 0, -1), "has the offsets 0 to 10; 10 deletes all"),
        (TrimQueue("T/..", 0, 1), "illegal"),
    ],
)
async def test_what_cannot_be_trimmed_is_refused_with_the_reason(
    tmp_path: Path, header: TrimQueue, reason: str
) -> None:
    async with BrokerProcess(tmp_path) as broker, connected(broker) as client:
        await send_ten(client)
        with pytest.raises(ServerError, match=reason):
            await client.invoke(Code.TRIM_QUEUE, header)
        assert len(await client.all_messages()) == 10


async def test_the_successor_of_a_killed_master_has_trimmed_the_queue(tmp_path: Path) -> None:
    async with running_group(tmp_path, 2, minInSync="1") as group:
        old = group.open_master
        await group.until_in_sync(0, 1)
        async with group.client(old) as client:
            await send_ten(client)
            places = await places_of(client)
            await client.invoke(Code.TRIM_QUEUE, TrimQueue("T", 0, 6))
            await check_gone(client, places, 6)
        slave = 1 - old
        async with group.client(slave) as client:
            await client.invoke(Code.TRIM_QUEUE, TrimQueue("T", 0, 7))  # passed on to the master
        await group.kill(old)
        new = await group.until_master(old)
        async with group.client(new) as client:
            await group.until(lambda: group.in_sync == [new])
            await check_gone(client, places, 7)
        await group.start(old)
        await group.until_in_sync(0, 1)
        reader = group.apps[old].broker.store.reader
        await group.until(lambda: reader.min_offset("T", 0) == 7)
