# SPDX-License-Identifier: Apache-2.0

import json
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from msgspec import UNSET

from cometmq.broker.broker import Broker
from cometmq.broker.clients.producers import Client
from cometmq.broker.handlers import progress
from cometmq.broker.progress import stranded_queues
from cometmq.remoting.bodies.dialect import decode_json
from cometmq.remoting.bodies.heartbeat import ConsumerData
from cometmq.remoting.bodies.large import encode_table
from cometmq.remoting.bodies.queues import GroupList
from cometmq.remoting.bodies.stats import (
    BrokerConsumeStats,
    ConsumeStats,
    ConsumeTimeSpans,
    QueueTimeSpan,
)
from cometmq.remoting.bodies.topic_config import SubscriptionGroupConfig
from cometmq.remoting.command import Call
from cometmq.remoting.commands.admin import (
    GetBrokerConsumeStats,
    GetConsumeStats,
    QueryConsumeTimeSpan,
    QueryTopicConsumeByWho,
)
from cometmq.remoting.versions import V4_9_4, V5_0_0
from cometmq.testing.broker import FakePeer, MemoryStore, expected_answer, memory_broker, replay
from cometmq.testing.broker.replay import answered_exchanges, name_of, serve
from cometmq.testing.remoting.golden import Exchange

GOLDEN = Path(__file__).parents[4] / "tests" / "golden"


def subscribe(broker: Broker, group: str, topic: str) -> None:
    text = json.dumps({"groupName": group, "subscriptionDataSet": [{"topic": topic}]})
    data = decode_json(ConsumerData, text.encode())
    broker.clients.consumers.register(data, Client(FakePeer(), "c", 0, 401, seen_ms=0))


def restore(broker: Broker, store: MemoryStore, group: str, stats: ConsumeStats) -> None:
    """Create the queues and offsets that an answer reports."""
    for queue, pair in stats.offset_table.items():
        known = broker.tables.topics.get(queue.topic)
        if known is None or known.write_queue_nums <= queue.queue_id:
            broker.tables.topics.remove(queue.topic)
            broker.tables.topics.create(queue.topic, queue_nums=queue.queue_id + 1)
        stored_ms = max(
            pair.last_timestamp, store.queues.get((queue.topic, queue.queue_id), (0,))[-1]
        )
        store.set_queue(
            queue.topic, queue.queue_id, max_offset=pair.broker_offset, stored_ms=stored_ms
        )
        broker.tables.offsets.commit(group, queue.topic, queue.queue_id, pair.consumer_offset)


@pytest.mark.parametrize("exchange", answered_exchanges(GOLDEN, "208-*"), ids=name_of)
async def test_captured_progress_of_groups(exchange: Exchange) -> None:
    store = MemoryStore()
    broker = memory_broker(store)
    group = exchange.request.ext["consumerGroup"]
    expected = decode_json(ConsumeStats, expected_answer(exchange).body)
    restore(broker, store, group, expected)

    answer = await replay(broker, exchange, progress.get_consume_stats)

    assert (answer.code, answer.remark, answer.ext) == (0, None, {})
    found = decode_json(ConsumeStats, answer.body)
    for pair in found.offset_table.values():
        pair.pull_offset = UNSET  # 4.9.4, from which this was captured, gives none to any tool
    assert found.offset_table == expected.offset_table


@pytest.mark.parametrize(("version", "shown"), [(V4_9_4, UNSET), (V5_0_0, 1)])
async def test_tools_of_5_find_no_negative_count_in_flight(version: int, shown: object) -> None:
    """They subtract the committed offset from a missing pull offset, as from 0."""
    broker = memory_broker(MemoryStore())
    broker.tables.topics.create("T", queue_nums=1)
    broker.tables.offsets.commit("G", "T", 0, 1)
    call = Call(208, GetConsumeStats("G"), peer=FakePeer(), version=version)

    answer = await serve(broker, call, progress.get_consume_stats)

    found = decode_json(ConsumeStats, bytes(answer.body))  # type: ignore[arg-type]
    assert [pair.pull_offset for pair in found.offset_table.values()] == [shown]


async def test_a_topic_left_by_a_connected_group_is_omitted() -> None:
    store = MemoryStore()
    broker = memory_broker(store)
    for topic in ("T", "U"):
        broker.tables.topics.create(topic, queue_nums=1)
        broker.tables.offsets.commit("G", topic, 0, 1)
    subscribe(broker, "G", "T")
    call = Call(208, GetConsumeStats("G"), peer=FakePeer())

    answer = await serve(broker, call, progress.get_consume_stats)

    found = decode_json(ConsumeStats, bytes(answer.body))  # type: ignore[arg-type]
    assert {queue.topic for queue in found.offset_table} == {"T"}


def rows(stats: BrokerConsumeStats) -> dict[str, Any]:
    """Return the values that do not change between runs, by group and topic."""
    groups = {group: parts for one in stats.consume_stats_list for group, parts in one.items()}
    return {
        group: sorted(
            (queue.topic, queue.queue_id, pair.broker_offset, pair.consumer_offset,
             pair.last_timestamp > 0)
            for part in parts
            for queue, pair in part.offset_table.items()
        )
        for group, parts in groups.items()
    }  # fmt: skip


@pytest.mark.parametrize("exchange", answered_exchanges(GOLDEN, "317-*"), ids=name_of)
async def test_captured_progress_of_all_groups(exchange: Exchange) -> None:
    store = MemoryStore()
    broker = memory_broker(store)
    expected = decode_json(BrokerConsumeStats, expected_answer(exchange).body)
    for one in expected.consume_stats_list:
        for group, parts in one.items():
            broker.tables.groups.put(SubscriptionGroupConfig(group_name=group))
            for part in parts:
                restore(broker, store, group, part)

    answer = await replay(broker, exchange, progress.get_broker_consume_stats)

    assert (answer.code, answer.remark, answer.ext) == (0, None, {})
    found = decode_json(BrokerConsumeStats, answer.body)
    known = rows(expected)
    assert {group: row for group, row in rows(found).items() if group in known} == known
    assert (found.total_diff, found.broker_addr) == (expected.total_diff, broker.process.address)


async def test_only_ordered_topics_on_request() -> None:
    store = MemoryStore()
    broker = memory_broker(store)
    for topic in ("T", "U"):
        broker.tables.topics.create(topic, queue_nums=2)
        store.set_queue(topic, 0, max_offset=10, stored_ms=5)
        broker.tables.offsets.commit("G", topic, 0, 4)
    broker.tables.groups.put(SubscriptionGroupConfig(group_name="G"))
    broker.tables.topics.set_ordered({"U"})
    broker.stats.count_get("U", "G", 10, 100)
    broker.measured.sampler.step(10_000)
    call = Call(317, GetBrokerConsumeStats(is_order=True), peer=FakePeer())

    answer = await serve(broker, call, progress.get_broker_consume_stats)

    found = decode_json(BrokerConsumeStats, bytes(answer.body))  # type: ignore[arg-type]
    parts = next(one["G"] for one in found.consume_stats_list if "G" in one)
    assert [{queue.topic for queue in part.offset_table} for part in parts] == [{"U"}]
    assert (parts[0].consume_tps, found.total_diff) == (1.0, 6)


async def test_an_answer_larger_than_a_frame_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "QUEUES_MAX", 3)
    broker = memory_broker()
    broker.tables.topics.create("T", queue_nums=4)
    broker.tables.groups.put(SubscriptionGroupConfig(group_name="G"))
    broker.tables.offsets.commit("G", "T", 0, 4)
    call = Call(317, GetBrokerConsumeStats(), peer=FakePeer())

    answer = await serve(broker, call, progress.get_broker_consume_stats)

    assert answer.code == 1
    assert answer.remark is not None
    assert answer.remark.startswith("the groups have offsets in 4 queues, more than 3")


@pytest.mark.parametrize("exchange", answered_exchanges(GOLDEN, "300-*"), ids=name_of)
async def test_captured_consumers_of_a_topic(exchange: Exchange) -> None:
    broker = memory_broker()
    expected = expected_answer(exchange)
    topic = exchange.request.ext["topic"]
    groups = decode_json(GroupList, expected.body).group_list
    for group in groups[::2]:
        subscribe(broker, group, topic)
    for group in groups[1::2]:
        broker.tables.offsets.commit(group, topic, 0, 1)
    broker.tables.offsets.commit("elsewhere", "other", 0, 1)

    answer = await replay(broker, exchange, progress.query_topic_consume_by_who)

    assert (answer.code, answer.remark, answer.ext) == (0, None, {})
    assert decode_json(GroupList, answer.body).group_list == sorted(groups)


async def test_a_group_that_subscribes_and_commits_is_named_once() -> None:
    broker = memory_broker()
    subscribe(broker, "G", "T")
    broker.tables.offsets.commit("G", "T", 0, 1)
    call = Call(300, QueryTopicConsumeByWho("T"), peer=FakePeer())

    answer = await serve(broker, call, progress.query_topic_consume_by_who)

    assert answer.body == b'{"groupList":["G"]}'


@pytest.mark.parametrize("exchange", answered_exchanges(GOLDEN, "303-*"), ids=name_of)
async def test_captured_time_spans(exchange: Exchange) -> None:
    """The captured queues contain several store times; each queue here contains only one."""
    store = MemoryStore()
    broker = memory_broker(store)
    expected = expected_answer(exchange)
    spans = (
        decode_json(ConsumeTimeSpans, expected.body).consume_time_span_set
        if (expected.code == 0)
        else []
    )
    for span in spans:
        assert span.message_queue is not None
        topic, queue_id = span.message_queue.topic, span.message_queue.queue_id
        broker.tables.topics.create(topic, queue_nums=len(spans))
        store.set_queue(topic, queue_id, max_offset=5, stored_ms=span.max_time_stamp)
        broker.tables.offsets.commit(exchange.request.ext["group"], topic, queue_id, 5)

    answer = await replay(broker, exchange, progress.query_consume_time_span)

    assert (answer.code, answer.remark, answer.ext) == (
        expected.code,
        expected.remark,
        expected.ext,
    )
    if spans:
        found = decode_json(ConsumeTimeSpans, answer.body).consume_time_span_set
        assert [
            (one.message_queue, one.max_time_stamp, one.consume_time_stamp, one.delay_time)
            for one in found
        ] == [(one.message_queue, one.max_time_stamp, one.max_time_stamp, 0) for one in spans]
        assert json.loads(answer.body).keys() == json.loads(expected.body).keys()


async def spans_of(broker: Broker) -> list[QueueTimeSpan]:
    call = Call(303, QueryConsumeTimeSpan("T", "G"), peer=FakePeer())
    answer = await serve(broker, call, progress.query_consume_time_span)
    return decode_json(ConsumeTimeSpans, bytes(answer.body)).consume_time_span_set  # type: ignore[arg-type]


async def test_the_delay_is_the_age_of_the_next_message() -> None:
    store = MemoryStore()
    broker = memory_broker(store)
    now_ms = broker.clock.now_ms()
    broker.tables.topics.create("T", queue_nums=4)
    store.set_queue("T", 0, min_offset=5, max_offset=9, stored_ms=now_ms - 700)
    store.set_queue("T", 1, min_offset=5, max_offset=9, stored_ms=now_ms - 800)
    store.set_queue("T", 2, max_offset=9, stored_ms=now_ms - 900)
    for queue_id, offset in ((1, 2), (2, 9)):
        broker.tables.offsets.commit("G", "T", queue_id, offset)

    unread, behind, done, empty = await spans_of(broker)

    assert (unread.delay_time, unread.consume_time_stamp) == (700, now_ms - 700)
    # The last consumed message is deleted.
    assert (behind.delay_time, behind.consume_time_stamp) == (800, -1)
    assert (done.delay_time, done.consume_time_stamp) == (0, now_ms - 900)
    assert (empty.delay_time, empty.min_time_stamp, empty.max_time_stamp) == (0, -1, -1)


def test_times_are_written_as_rocketmq_writes_them() -> None:
    text = progress.time_text(1_795_162_807_407)

    assert text.endswith(":20:07:407")
    assert len(text) == len("2026-11-20#08:20:07:407")
    assert progress.time_text(-1).endswith(":59:59:999")


async def test_messages_in_queues_that_nobody_reads_are_reported() -> None:
    store = MemoryStore()
    broker = memory_broker(store)
    broker.tables.topics.create("T", queue_nums=2)
    for queue_id, end in enumerate((5, 5, 7, 3, 4)):
        store.set_queue("T", queue_id, max_offset=end, stored_ms=1, min_offset=1)
    broker.tables.offsets.commit("G", "T", 0, 5)
    broker.tables.offsets.commit("G", "T", 2, 6)
    broker.tables.offsets.commit("G", "T", 3, 3)  # consumed before the queue was removed
    stranded = {queue.queue_id: queue.lag for queue in stranded_queues(broker, "G", "T")}
    assert stranded == {2: 1, 4: 3}
    call = Call(208, GetConsumeStats("G"), peer=FakePeer())
    answer = await serve(broker, call, progress.get_consume_stats)
    assert isinstance(answer.body, bytes)
    table = decode_json(ConsumeStats, answer.body).offset_table
    found = {queue.queue_id: (it.consumer_offset, it.broker_offset) for queue, it in table.items()}
    assert found == {0: (5, 5), 1: (0, 5), 2: (6, 7), 4: (0, 4)}
    broker.tables.groups.put(SubscriptionGroupConfig(group_name="G"))
    assert rows(await progress_of_all(broker))["G"] == [
        ("T", 0, 5, 5, True), ("T", 1, 5, 0, False), ("T", 2, 7, 6, True), ("T", 4, 4, 0, False)
    ]  # fmt: skip


async def progress_of_all(broker: Broker) -> BrokerConsumeStats:
    call = Call(317, GetBrokerConsumeStats(), peer=FakePeer())
    answer = await serve(broker, call, progress.get_broker_consume_stats)
    return decode_json(BrokerConsumeStats, bytes(answer.body))  # type: ignore[arg-type]


async def test_queues_that_are_only_read_are_in_every_answer() -> None:
    """RocketMQ's answers to 317 and 303 leave them out."""
    store = MemoryStore()
    broker = memory_broker(store)
    broker.tables.topics.create("T", queue_nums=2)
    topic = msgspec.structs.replace(broker.tables.topics.table["T"], write_queue_nums=1)
    broker.tables.topics.put(topic)
    for queue_id in range(2):
        store.set_queue("T", queue_id, max_offset=5, stored_ms=1)
    broker.tables.groups.put(SubscriptionGroupConfig(group_name="G"))
    broker.tables.offsets.commit("G", "T", 0, 5)
    assert rows(await progress_of_all(broker))["G"] == [("T", 0, 5, 5, True), ("T", 1, 5, 0, False)]
    assert (await progress_of_all(broker)).total_diff == 5

    call = Call(303, QueryConsumeTimeSpan("T", "G"), peer=FakePeer())
    answer = await serve(broker, call, progress.query_consume_time_span)
    spans = decode_json(ConsumeTimeSpans, bytes(answer.body))  # type: ignore[arg-type]
    queues = [it.message_queue for it in spans.consume_time_span_set]
    assert [queue and queue.queue_id for queue in queues] == [0, 1]


async def test_the_progress_in_many_topics_is_encoded_in_small_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The loop was held for 60 ms at the end, when 100,000 queues were freed at once."""
    broker = memory_broker(MemoryStore())
    for number in range(150):
        broker.tables.topics.create(f"t{number}", queue_nums=7)
        broker.tables.offsets.commit("G", f"t{number}", 0, 1)
    sizes: list[int] = []

    def noted(table: Any) -> Any:
        sizes.append(len(table))
        return encode_table(table)

    monkeypatch.setattr(progress, "encode_table", noted)
    answer = await serve(
        broker, Call(208, GetConsumeStats("G"), peer=FakePeer()), progress.get_consume_stats
    )
    body = b"".join(cast("list[bytes]", answer.body))
    assert len(decode_json(ConsumeStats, body).offset_table) == sum(sizes) == 150 * 7
    assert max(sizes) < progress.TURN_QUEUES_MAX + 7


async def test_the_progress_of_a_group_without_offsets_is_empty() -> None:
    call = Call(208, GetConsumeStats("G"), peer=FakePeer())
    answer = await serve(memory_broker(MemoryStore()), call, progress.get_consume_stats)
    assert answer.body == b'{"consumeTps":0.0,"offsetTable":{}}'
