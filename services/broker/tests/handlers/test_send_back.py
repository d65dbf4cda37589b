# SPDX-License-Identifier: Apache-2.0

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cometmq.broker.broker import Broker
from cometmq.broker.clients.habits import Habits
from cometmq.broker.limits import COPY_BYTES
from cometmq.remoting.codes import RequestCode as Code
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.command import Reply
from cometmq.remoting.commands.send import ConsumerSendMsgBack, SendMessageV2
from cometmq.remoting.message.record import MessageRecord, decode_record
from cometmq.store.writing.write_state import Refusal
from cometmq.testing.broker import expected_answer
from cometmq.testing.broker.logs import RecordingLog
from cometmq.testing.broker.replay import call_of
from cometmq.testing.broker.stored import ask, call_with, clock_of, last_answer, stored_broker
from cometmq.testing.remoting.golden import load_exchanges

GOLDEN = Path(__file__).parents[4] / "tests" / "golden"
BACK = ConsumerSendMsgBack(0, "G", 0, "U", "T", max_reconsume_times=16)


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    async with stored_broker(tmp_path) as broker:
        store(broker)
        yield broker


def store(broker: Broker) -> None:
    header = SendMessageV2("P", "T", "TBW102", 4, 1, 0, 7, 3, "TAGS\x01A\x02UNIQ_KEY\x01U")
    ask(broker, call_with(310, header, b"body"))


def send_back(broker: Broker, version: int = 401, **fields: Any) -> Reply:
    header = msgspec.structs.replace(BACK, **fields)
    return ask(broker, call_with(Code.CONSUMER_SEND_MSG_BACK, header, version=version))


def records(broker: Broker, topic: str, queue_id: int) -> list[MessageRecord]:
    result = broker.store.reader.get_messages(topic, queue_id, 0, 32)
    return [decode_record(record) for record in result.records]


@pytest.mark.parametrize(("retries_max", "level"), [(0, 0), (16, 0), (0, -1)])
def test_a_group_that_allows_no_retry_is_noted_once(
    broker: Broker, retries_max: int, level: int
) -> None:
    """Spring Cloud Stream allows none by default; level -1 asks for a dead letter."""
    log = RecordingLog()
    broker.clients.habits = Habits(log)
    for _ in range(2):
        send_back(broker, max_reconsume_times=retries_max, delay_level=level)
    noted = [(it.habit, it.group, it.count) for it in broker.clients.habits.newest()]
    is_noted = (retries_max, level) == (0, 0)
    assert noted == ([("dead letters at once", "G", 2)] if is_noted else [])
    assert len(log.named("group.dead_letters_at_once")) == len(noted)


def test_the_copy_is_delayed_by_the_third_level(broker: Broker) -> None:
    assert send_back(broker) == Reply()

    (copy,) = records(broker, "SCHEDULE_TOPIC_XXXX", 2)
    assert copy.body == b"body"
    assert (copy.reconsume_times, copy.flag, copy.born_timestamp) == (1, 3, 7)
    assert copy.properties == {
        "TAGS": "A",
        "UNIQ_KEY": "U",
        "CLUSTER": "PeersCluster",
        "RETRY_TOPIC": "T",
        "ORIGIN_MESSAGE_ID": "7F00000100002A9F0000000000000000",
        "WAIT": "false",
        "DELAY": "3",
        "REAL_TOPIC": "%RETRY%G",
        "REAL_QID": "0",
    }
    retry = broker.tables.topics.get("%RETRY%G")
    assert retry is not None
    assert (retry.write_queue_nums, retry.perm) == (1, 6)
    assert broker.stats.send_back_count == 1


async def test_the_answer_waits_for_the_flush_like_a_send(tmp_path: Path) -> None:
    """The consumer commits its offset past the message only once the copy is safe."""
    async with stored_broker(tmp_path, flushDiskType="SYNC_FLUSH") as broker:
        store(broker)
        await broker.driver.drain()
        call = call_with(Code.CONSUMER_SEND_MSG_BACK, BACK, version=401)
        assert ask(broker, call) is None
        assert len(broker.store.upkeep.pending) == 1
        await broker.driver.drain()
        assert last_answer(call) == Reply()


async def test_copies_that_wait_for_the_flush_are_bounded(tmp_path: Path) -> None:
    """A request of 100 bytes makes the broker hold a message of any size."""
    async with stored_broker(tmp_path, flushDiskType="SYNC_FLUSH") as broker:
        store(broker)
        await broker.driver.drain()
        under_way = broker.pending.copies
        calls = [call_with(Code.CONSUMER_SEND_MSG_BACK, BACK, version=401) for _ in range(2)]
        assert ask(broker, calls[0]) is None
        size = under_way.size
        assert size > len(b"body")

        under_way.size = COPY_BYTES.fixed
        assert ask(broker, calls[1]).code == ResponseCode.SYSTEM_BUSY
        under_way.size = size

        await broker.driver.drain()
        assert last_answer(calls[0]) == Reply()
        assert under_way.size == 0


def test_the_copy_is_delivered_to_the_retry_topic_when_due(broker: Broker) -> None:
    send_back(broker)
    clock_of(broker).advance(10_000)
    broker.deferred.delays.step(broker.clock.now_ms())
    broker.driver.commit()

    (copy,) = records(broker, "%RETRY%G", 0)
    assert (copy.body, copy.tags, copy.reconsume_times) == (b"body", "A", 1)
    again = send_back(broker, offset=copy.physical_offset)
    assert again.code == 0
    (second,) = records(broker, "SCHEDULE_TOPIC_XXXX", 3)
    assert second.reconsume_times == 2
    assert second.properties["RETRY_TOPIC"] == "T"


@pytest.mark.parametrize(
    ("fields", "version"), [({"delay_level": -1}, 401), ({"max_reconsume_times": 0}, 401)]
)
def test_messages_above_the_retry_limit_are_dead_letters(
    broker: Broker, fields: dict[str, Any], version: int
) -> None:
    send_back(broker, version, **fields)
    (copy,) = records(broker, "%DLQ%G", 0)
    assert copy.reconsume_times == 1
    assert copy.properties["RETRY_TOPIC"] == "T"
    dead = broker.tables.topics.get("%DLQ%G")
    assert dead is not None
    assert (dead.write_queue_nums, dead.perm) == (1, 6)


def test_old_clients_do_not_choose_the_count(broker: Broker) -> None:
    send_back(broker, version=100, max_reconsume_times=0)
    assert records(broker, "%DLQ%G", 0) == []


def test_the_client_may_choose_the_level(broker: Broker) -> None:
    send_back(broker, delay_level=1)
    assert len(records(broker, "SCHEDULE_TOPIC_XXXX", 0)) == 1


def test_a_deleted_message(broker: Broker) -> None:
    reply = send_back(broker, offset=1 << 50)
    assert (reply.code, reply.remark) == (1, f"look message by offset failed, {1 << 50}")


def test_a_group_without_retry_queues_drops_the_message(broker: Broker) -> None:
    group = broker.tables.groups.find("G", auto_create=True)
    assert group is not None
    broker.tables.groups.put(msgspec.structs.replace(group, retry_queue_nums=0))
    assert send_back(broker) == Reply()
    assert broker.tables.topics.get("%RETRY%G") is None


def test_a_retry_topic_without_write_permission(broker: Broker) -> None:
    config = broker.tables.topics.create("%RETRY%G", queue_nums=1)
    broker.tables.topics.put(msgspec.structs.replace(config, perm=4))
    reply = send_back(broker)
    assert (reply.code, reply.remark) == (16, "the topic[%RETRY%G] sending message is forbidden")


def test_an_unwritable_store_is_answered(broker: Broker) -> None:
    broker.store.write_state.set(Refusal.DISK_FULL, holds=True)
    reply = send_back(broker)
    assert (reply.code, reply.remark) == (1, "SERVICE_NOT_AVAILABLE")


@pytest.mark.parametrize("group", ["../../x", "a\x00b", "a/b", "", "x" * 300])
def test_dangerous_group_names_create_nothing(broker: Broker, group: str) -> None:
    assert send_back(broker, group=group).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert all(name in {"T", "OFFSET_MOVED_EVENT"} for name in broker.store.reader.topics())


EXCHANGES = [one for one in load_exchanges(GOLDEN, "036-*") if one.response is not None]


@pytest.mark.parametrize("exchange", EXCHANGES, ids=lambda exchange: exchange.name)
async def test_captured_exchanges(tmp_path: Path, exchange: Any) -> None:
    expected = expected_answer(exchange)
    settings = {}
    if expected.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
        settings["autoCreateSubscriptionGroup"] = "false"
    async with stored_broker(tmp_path, **settings) as broker:
        store(broker)
        call = call_of(exchange.request, call_with(0, None).peer)
        if expected.code == 0:
            call.header = msgspec.structs.replace(call.header, offset=0)
        reply = ask(broker, call) or last_answer(call)
        assert (reply.code, reply.remark) == (expected.code, expected.remark)


def test_the_retry_topic_grows_with_the_group(broker: Broker) -> None:
    send_back(broker)
    group = broker.tables.groups.table["G"]
    broker.tables.groups.put(msgspec.structs.replace(group, retry_queue_nums=4))
    for _ in range(4):
        send_back(broker)
    retry = broker.tables.topics.table["%RETRY%G"]
    assert (retry.read_queue_nums, retry.write_queue_nums) == (4, 4)
    assert sorted(places(broker)[1:]) == ["0", "1", "2", "3"]

    broker.tables.groups.put(msgspec.structs.replace(group, retry_queue_nums=2))
    for _ in range(4):
        send_back(broker)
    assert broker.tables.topics.table["%RETRY%G"] == retry  # messages may wait in its queues
    assert set(places(broker)[5:]) == {"0", "1"}


def places(broker: Broker) -> list[str]:
    return [it.properties["REAL_QID"] for it in records(broker, "SCHEDULE_TOPIC_XXXX", 2)]
