# SPDX-License-Identifier: Apache-2.0

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cometmq.broker.broker import Broker
from cometmq.remoting.codes import RequestCode as Code
from cometmq.remoting.command import Reply
from cometmq.remoting.commands.pull import PullMessage
from cometmq.remoting.commands.send import ConsumerSendMsgBack, SendMessageV2
from cometmq.remoting.message.batch import BatchItem, join_batch
from cometmq.remoting.message.record import MessageRecord, decode_record
from cometmq.remoting.names import SCHEDULE_TOPIC
from cometmq.testing.broker.stored import ask, call_with, clock_of, last_answer, stored_broker

HEADER = SendMessageV2("P", "T", "TBW102", 4, 1, 0, 0, 0, "")
SUSPEND, SUBSCRIPTION = 2, 4
PULL = PullMessage("G", "T", 1, 0, 32, SUSPEND | SUBSCRIPTION, 0, 20_000, 0, "*")
NO_PERMISSION = 16


def send(broker: Broker, text: str = "", **fields: Any) -> Reply:
    header = msgspec.structs.replace(HEADER, properties=text, **fields)
    return ask(broker, call_with(310, header, b"body"))


def records(broker: Broker, topic: str, queue_id: int) -> list[MessageRecord]:
    result = broker.store.reader.get_messages(topic, queue_id, 0, 32)
    return [decode_record(record) for record in result.records]


def send_batch(broker: Broker, **fields: Any) -> Reply:
    header = msgspec.structs.replace(HEADER, batch=True, **fields)
    body = join_batch([BatchItem(0, b"%d" % number, "") for number in range(3)])
    reply = ask(broker, call_with(Code.SEND_BATCH_MESSAGE, header, body))
    assert reply.code == 0, reply.remark
    return reply


def test_sends_and_batches(broker: Broker) -> None:
    send(broker)
    send_batch(broker)

    topic = broker.stats.topics["T"]
    assert (topic.put_count, topic.request_count) == (4, 2)
    assert topic.put_bytes == broker.store.stats().put_bytes
    assert sum(broker.driver.sends.put_times.classes().values()) == 4


def test_a_delayed_message_counts_in_its_level_then_in_its_topic(broker: Broker) -> None:
    send(broker, "DELAY\x013")
    stats = broker.stats
    assert stats.topics.keys() == {SCHEDULE_TOPIC}
    assert (stats.levels[2].put_count, stats.levels[2].get_count) == (1, 0)

    broker.clock.advance(11_000)  # type: ignore[attr-defined]  # a FakeClock
    broker.deferred.delays.step(broker.clock.now_ms())
    broker.driver.commit()

    assert len(records(broker, "T", 1)) == 1
    assert stats.topics["T"].put_count == 1
    assert (stats.levels[2].put_count, stats.levels[2].get_count) == (1, 1)
    assert stats.groups[SCHEDULE_TOPIC, "SCHEDULE_CONSUMER"].get_count == 1


def test_messages_sent_back_count_for_their_original_topic(broker: Broker) -> None:
    send(broker, "RETRY_TOPIC\x01Origin", topic="%RETRY%G", reconsume_times=1)
    (record,) = records(broker, "%RETRY%G", 1)
    header = ConsumerSendMsgBack(record.physical_offset, "G", 0)

    reply = ask(broker, call_with(Code.CONSUMER_SEND_MSG_BACK, header))

    assert reply == Reply()
    assert broker.stats.groups["Origin", "G"].send_back_count == 1
    assert broker.stats.topics[SCHEDULE_TOPIC].put_count == 1
    assert broker.stats.levels[3].put_count == 1


def test_a_held_pull_counts_as_missed_and_then_found(broker: Broker) -> None:
    broker.tables.topics.create("T", queue_nums=4)
    call = call_with(Code.PULL_MESSAGE, PULL)
    assert ask(broker, call) is None
    assert (broker.stats.miss_count, broker.pending.hold.count) == (1, 1)

    send(broker)

    assert last_answer(call) is not None
    group = broker.stats.groups["T", "G"]
    assert (broker.stats.found_count, group.pull_count, group.get_count) == (1, 1, 1)


def test_messages_of_a_multi_tag_topic_carry_the_flag(broker: Broker) -> None:
    config = broker.tables.topics.create("T", queue_nums=4)
    broker.tables.topics.put(msgspec.structs.replace(config, topic_filter_type="MULTI_TAG"))

    send(broker, sys_flag=1)
    send_batch(broker)

    assert [record.sys_flag for record in records(broker, "T", 1)] == [3, 2, 2, 2]


def test_a_broker_without_write_permission_refuses_ordered_topics_only(broker: Broker) -> None:
    for topic in ("T", "Ordered"):
        broker.tables.topics.create(topic, queue_nums=4)
    broker.tables.topics.set_ordered({"Ordered"})
    broker.apply(broker.config.loaded.updated({"brokerPermission": "4"}))

    assert send(broker).code == 0
    refused = send(broker, topic="Ordered")
    assert (refused.code, refused.remark) == (
        NO_PERMISSION,
        f"the broker[{broker.process.host}] sending message is forbidden",
    )


def test_the_unit_flags_of_topics_that_sends_create(broker: Broker) -> None:
    send(broker, topic="Unit", unit_mode=True)
    send(broker, topic="%RETRY%G", unit_mode=True)
    send(broker, topic="Plain")

    flags = {
        topic: broker.tables.topics.table[topic].topic_sys_flag
        for topic in broker.tables.topics.table
    }
    assert (flags["Unit"], flags["%RETRY%G"], flags["Plain"]) == (1, 2, 0)


def test_the_retry_topic_of_a_group_in_unit_mode(broker: Broker) -> None:
    send(broker)
    header = ConsumerSendMsgBack(0, "G", 0, unit_mode=True)

    assert ask(broker, call_with(Code.CONSUMER_SEND_MSG_BACK, header)) == Reply()

    assert broker.tables.topics.table["%RETRY%G"].topic_sys_flag == 2


async def test_sends_that_wait_for_the_disk_count_when_they_are_answered(tmp_path: Path) -> None:
    async with stored_broker(tmp_path, flushDiskType="SYNC_FLUSH") as broker:
        broker.clock.advance(1_000)  # type: ignore[attr-defined]  # a FakeClock
        call = call_with(310, HEADER, b"body")
        assert ask(broker, call) is None
        broker.clock.advance(70)  # type: ignore[attr-defined]
        assert (broker.driver.sends.waiting_count, broker.driver.sends.head_wait_ms()) == (1, 70)

        await broker.driver.drain()

        assert last_answer(call) is not None
        assert (broker.driver.sends.waiting_count, broker.driver.sends.head_wait_ms()) == (0, 0)
        counted = {
            name: count for name, count in broker.driver.sends.put_times.classes().items() if count
        }
        assert counted == {"50~100ms": 1}


async def test_all_messages_of_a_batch_count_with_its_wait(tmp_path: Path) -> None:
    async with stored_broker(tmp_path, flushDiskType="SYNC_FLUSH") as broker:
        clock_of(broker).advance(1_000)
        items = [BatchItem(0, b"%d" % number, "") for number in range(3)]
        header = msgspec.structs.replace(HEADER, batch=True)
        assert ask(broker, call_with(Code.SEND_BATCH_MESSAGE, header, join_batch(items))) is None
        assert broker.driver.sends.waiting_count == 1
        clock_of(broker).advance(70)
        await broker.driver.drain()
        classes = broker.driver.sends.put_times.classes()
        assert {name: count for name, count in classes.items() if count} == {"50~100ms": 3}
        assert sum(broker.driver.sends.put_seconds.counts) == 3


async def _waited(broker: Broker, answer: Callable[[], object]) -> Mapping[str, int]:
    """Let a send wait 70 ms for its sync, and 200 ms more for its answer; return its class."""
    clock = clock_of(broker)
    clock.advance(1_000)
    call = call_with(310, HEADER, b"body")
    assert ask(broker, call) is None
    clock.advance(70)
    await broker.driver.drain()
    assert broker.driver.sends.waiting_count == 1
    clock.advance(200)

    answer()

    assert last_answer(call) is not None
    sends = broker.driver.sends
    assert sum(sends.put_seconds.counts) == 1
    assert sends.put_seconds.sum == pytest.approx(0.27)
    return {name: count for name, count in sends.put_times.classes().items() if count}


@pytest.mark.parametrize("disk", ["SYNC_FLUSH", "ASYNC_FLUSH"])
async def test_sends_that_wait_for_a_replica_count_with_their_whole_wait(
    tmp_path: Path, disk: str
) -> None:
    async with stored_broker(tmp_path, flushDiskType=disk) as broker:
        writer = broker.store.writer
        writer.needs_replicas, writer.may_replicate = True, lambda _end: True
        sends, end = broker.driver.sends, broker.store.commit_log

        assert await _waited(broker, lambda: sends.note_replicated(end.end)) == {"200~500ms": 1}


async def test_sends_that_time_out_count_with_their_whole_wait(tmp_path: Path) -> None:
    async with stored_broker(tmp_path, syncFlushTimeout="250", slaveTimeout="250") as broker:
        writer = broker.store.writer
        writer.needs_replicas, writer.may_replicate = True, lambda _end: True

        assert await _waited(broker, broker.driver.tick) == {"200~500ms": 1}
