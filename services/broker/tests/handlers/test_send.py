# SPDX-License-Identifier: Apache-2.0

import re
import struct
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cometmq.broker.broker import Broker
from cometmq.broker.handlers.send import batch_parts
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Call
from cometmq.remoting.commands.send import SendMessageReply, SendMessageV2
from cometmq.remoting.message.batch import BatchItem, join_batch
from cometmq.remoting.message.new_message import NewMessage
from cometmq.remoting.message.record import MessageRecord, decode_record
from cometmq.store.writing.write_state import Refusal
from cometmq.testing.broker import expected_answer
from cometmq.testing.broker.replay import answered_exchanges, call_of
from cometmq.testing.broker.stored import ask, call_with, last_answer, stored_broker
from cometmq.testing.remoting.golden import Exchange

GOLDEN = Path(__file__).parents[4] / "tests" / "golden"
EXT = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
HEADER = SendMessageV2("P", "T", "TBW102", 4, 1, 0, 1_600_000_000_000, 0, "TAGS\x01A")


def send(broker: Broker, body: bytes = b"hello", **fields: Any) -> Any:
    header = msgspec.structs.replace(HEADER, **fields)
    return ask(broker, call_with(RequestCode.SEND_MESSAGE_V2, header, body))


def records(broker: Broker, topic: str, queue_id: int) -> list[MessageRecord]:
    result = broker.store.reader.get_messages(topic, queue_id, 0, 32)
    return [decode_record(record) for record in result.records]


def test_a_message_is_stored_and_its_place_answered(broker: Broker) -> None:
    reply = send(broker)

    assert reply.code == 0
    assert reply.ext == EXT
    assert reply.header == SendMessageReply("7F00000100002A9F0000000000000000", 1, 0)
    (record,) = records(broker, "T", 1)
    assert (record.body, record.tags, record.born_timestamp) == (b"hello", "A", 1_600_000_000_000)
    assert record.properties == {"TAGS": "A", "CLUSTER": "PeersCluster"}
    assert record.born_host == bytes([127, 0, 0, 1, 0, 0, 0x9C, 0x41])
    assert record.store_host == broker.process.store_host


def test_messages_of_one_turn_share_a_commit(broker: Broker) -> None:
    calls = [call_with(310, HEADER, b"%d" % number) for number in range(10)]
    commits = broker.store.stats().commit_count
    for call in calls[:-1]:
        assert broker_handles(broker, call) is None
        assert last_answer(call) is None
    ask(broker, calls[-1])

    answers = [last_answer(call) for call in calls]
    assert [answer.header.queue_offset for answer in answers if answer] == list(range(10))
    assert broker.store.stats().commit_count == commits + 1


def broker_handles(broker: Broker, call: Call[Any]) -> object:
    from cometmq.broker.handlers import HANDLERS

    return HANDLERS[call.code](broker, call)


def test_an_unknown_topic_is_created_from_its_template(broker: Broker) -> None:
    send(broker, topic="New", default_topic_queue_nums=3)
    created = broker.tables.topics.get("New")

    assert created is not None
    assert (created.write_queue_nums, created.read_queue_nums, created.perm) == (3, 3, 6)


@pytest.mark.parametrize("queue_id", [-1, -7])
def test_a_negative_queue_means_any(broker: Broker, queue_id: int) -> None:
    chosen = {send(broker, queue_id=queue_id).header.queue_id for _ in range(8)}
    assert chosen == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("fields", "code", "remark"),
    [
        ({"topic": "a b"}, 1, "illegal characters"),
        ({"topic": "x" * 128}, 1, "longer than topic max length"),
        ({"topic": "../../etc"}, 1, "illegal characters"),
        ({"topic": "a\x00b"}, 1, "illegal characters"),
        ({"topic": ""}, 1, "blank"),
        (
            {"topic": "SCHEDULE_TOPIC_XXXX"},
            16,
            "Sending message to topic[SCHEDULE_TOPIC_XXXX] is forbidden.",
        ),
        ({"topic": "No", "default_topic": "None"}, 17, "topic[No] not exist, apply first please!"),
        ({"queue_id": 99}, 1, "request queueId[99] is illegal, TopicConfig [topicName=T"),
    ],
)
def test_refusals(broker: Broker, fields: dict[str, Any], code: int, remark: str) -> None:
    reply = send(broker, **fields)

    assert reply.code == code
    assert remark in (reply.remark or "")
    assert reply.ext == EXT
    assert broker.store.stats().put_count == 0


async def test_a_broker_without_topic_creation(tmp_path: Path) -> None:
    async with stored_broker(tmp_path, autoCreateTopicEnable="false") as broker:
        reply = send(broker)
        assert reply.code == ResponseCode.TOPIC_NOT_EXIST
        assert broker.tables.topics.get("T") is None


async def test_a_broker_before_its_start_time(tmp_path: Path) -> None:
    later = str(4_102_444_800_000)
    async with stored_broker(tmp_path, startAcceptSendRequestTimeStamp=later) as broker:
        reply = send(broker)
        assert reply.code == 1
        assert (reply.remark or "").startswith("broker unable to service, until ")


async def test_only_ordered_topics_obey_a_broker_without_write_permission(tmp_path: Path) -> None:
    async with stored_broker(tmp_path, brokerPermission="4") as broker:
        assert send(broker).code == 0
        broker.tables.topics.set_ordered({"T"})
        reply = send(broker)
        assert reply.code == ResponseCode.NO_PERMISSION
        assert reply.remark == "the broker[127.0.0.1] sending message is forbidden"


@pytest.mark.parametrize(
    ("reasons", "text"),
    [
        ([Refusal.DISK_FULL], r" has a full disk \(\d+ % used\); it will accept .*"),
        ([Refusal.DISK_FULL, Refusal.LOG_WRITE_FAILED], " has a full disk .*"),
        (
            [Refusal.SYNC_FAILED],
            r" accepts no messages: sync-failed \(disk \d+ % used\); look at its log",
        ),
    ],
)
def test_an_unwritable_store_answers_14_with_its_reason(
    broker: Broker, reasons: list[Refusal], text: str
) -> None:
    for reason in reasons:
        broker.store.write_state.set(reason, holds=True)
    reply = send(broker)

    assert reply.code == ResponseCode.SERVICE_NOT_AVAILABLE
    begin = f"service not available now: broker {broker.settings.broker_name}"
    assert re.fullmatch(re.escape(begin) + text, reply.remark or "")
    assert reply.ext == EXT
    assert broker.stats.put_failed_count == 1


@pytest.mark.parametrize(
    "fields", [{"properties": "a\x01" + "x" * 33_000}, {"properties": "a\x01" + "é" * 20_000}]
)
def test_too_long_properties_are_illegal(broker: Broker, fields: dict[str, Any]) -> None:
    assert send(broker, **fields).code == ResponseCode.MESSAGE_ILLEGAL


async def test_the_body_size_is_bounded(tmp_path: Path) -> None:
    async with stored_broker(tmp_path, maxMessageSize="1000") as broker:
        assert send(broker, b"x" * 1000).code == 0
        assert send(broker, b"x" * 1001).code == ResponseCode.MESSAGE_ILLEGAL


def test_layout_bits_from_clients_are_ignored(broker: Broker) -> None:
    send(broker, sys_flag=0x10 | 0x20 | 0x40 | 0x80 | 1)
    send(broker)
    first, second = records(broker, "T", 1)
    assert first.sys_flag == 1
    assert second.queue_offset == 1


def test_a_delayed_message_goes_to_the_queue_of_its_level(broker: Broker) -> None:
    reply = send(broker, properties="DELAY\x013\x02WAIT\x01true")

    assert reply.code == 0
    assert reply.header.queue_id == 1
    (record,) = records(broker, "SCHEDULE_TOPIC_XXXX", 2)
    assert record.properties["REAL_TOPIC"] == "T"
    assert record.properties["REAL_QID"] == "1"
    assert record.properties["WAIT"] == "true"
    assert records(broker, "T", 1) == []


def test_a_delay_beyond_the_highest_level_means_the_highest(broker: Broker) -> None:
    send(broker, properties="DELAY\x0199")
    assert len(records(broker, "SCHEDULE_TOPIC_XXXX", 17)) == 1


def retry(broker: Broker, **fields: Any) -> Any:
    broker.tables.groups.find("G", auto_create=True)
    return send(broker, **{"topic": "%RETRY%G", "queue_id": 0, **fields})


def test_a_consumers_own_retry_goes_to_its_retry_topic(broker: Broker) -> None:
    assert retry(broker, reconsume_times=15).code == 0
    assert len(records(broker, "%RETRY%G", 0)) == 1


@pytest.mark.parametrize(
    ("version", "count_max", "is_dead"), [(401, 2, True), (401, None, False), (100, 2, False)]
)
def test_a_retry_above_the_limit_is_a_dead_letter(
    broker: Broker, version: int, count_max: int | None, *, is_dead: bool
) -> None:
    broker.tables.groups.find("G", auto_create=True)
    header = msgspec.structs.replace(
        HEADER,
        topic="%RETRY%G",
        queue_id=0,
        reconsume_times=2,
        max_reconsume_times=count_max,
        properties="DELAY\x015",
    )
    reply = ask(broker, call_with(310, header, b"x", version=version))
    assert reply.code == 0
    assert len(records(broker, "%DLQ%G", 0)) == is_dead
    assert len(records(broker, "SCHEDULE_TOPIC_XXXX", 4)) == (not is_dead)


async def test_a_retry_of_an_unknown_group_is_refused(tmp_path: Path) -> None:
    async with stored_broker(tmp_path, autoCreateSubscriptionGroup="false") as broker:
        reply = send(broker, topic="%RETRY%nobody", queue_id=0)
        assert reply.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


def batch(broker: Broker, items: list[BatchItem], **fields: Any) -> Any:
    header = msgspec.structs.replace(HEADER, **{"batch": True, "properties": "", **fields})
    return ask(broker, call_with(RequestCode.SEND_BATCH_MESSAGE, header, join_batch(items)))


def test_a_batch_becomes_contiguous_records(broker: Broker) -> None:
    items = [BatchItem(7, b"%d" % number, f"TAGS\x01t{number}") for number in range(3)]
    reply = batch(broker, items, properties="WAIT\x01true")

    assert reply.code == 0
    assert reply.header.queue_offset == 0
    stored = records(broker, "T", 1)
    assert reply.header.msg_id == ",".join(record.offset_message_id for record in stored)
    assert [record.tags for record in stored] == ["t0", "t1", "t2"]
    assert stored[0].properties_text == "TAGS\x01t0\x02WAIT\x01true\x02CLUSTER\x01PeersCluster"
    assert [record.flag for record in stored] == [7, 7, 7]
    assert broker.stats.put_count == 3


def test_a_single_send_with_the_batch_flag_is_a_batch(broker: Broker) -> None:
    header = msgspec.structs.replace(HEADER, batch=True)
    body = join_batch([BatchItem(0, b"a"), BatchItem(0, b"b")])
    ask(broker, call_with(RequestCode.SEND_MESSAGE_V2, header, body))
    assert [record.body for record in records(broker, "T", 1)] == [b"a", b"b"]


def test_an_encoded_batch_without_the_flag_stays_one_message(broker: Broker) -> None:
    """The C++ client sends batches in this form, and C++ consumers expect them unsplit."""
    body = join_batch([BatchItem(0, b"a"), BatchItem(0, b"b")])
    send(broker, body)
    assert [record.body for record in records(broker, "T", 1)] == [body]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"topic": "%RETRY%G", "queue_id": 0}, 13),
        ({"properties": "DELAY\x011"}, 13),
        ({"sys_flag": 4}, 13),
    ],
)
def test_batches_that_are_refused(broker: Broker, fields: dict[str, Any], code: int) -> None:
    reply = batch(broker, [BatchItem(0, b"a")], **fields)
    assert reply.code == code
    assert broker.store.stats().put_count == 0


@pytest.mark.parametrize(
    "body", [b"", b"\x00", struct.pack(">iiiii", 30, 0, 0, 0, 1 << 30) + b"\x00\x00"]
)
def test_an_undecodable_batch(broker: Broker, body: bytes) -> None:
    header = msgspec.structs.replace(HEADER, batch=True)
    reply = ask(broker, call_with(320, header, body))
    assert reply.code == ResponseCode.SYSTEM_ERROR


def test_a_batch_with_one_bad_message_stores_none(broker: Broker) -> None:
    items = [BatchItem(0, b"a"), BatchItem(0, b"b", "p\x01" + "x" * 32_760)]
    assert batch(broker, items).code == ResponseCode.MESSAGE_ILLEGAL
    assert broker.store.stats().put_count == 0


async def test_sync_flush_answers_after_the_flush(tmp_path: Path) -> None:
    async with stored_broker(tmp_path, flushDiskType="SYNC_FLUSH") as broker:
        calls = [call_with(310, HEADER), call_with(310, HEADER)]
        impatient = call_with(310, msgspec.structs.replace(HEADER, properties="WAIT\x01false"))
        assert ask(broker, calls[0]) is None
        assert ask(broker, calls[1]) is None
        reply = ask(broker, impatient)
        assert reply.code == 0

        await broker.driver.drain()
        await broker.driver.drain()

        for call in calls:
            answer = last_answer(call)
            assert answer.code == 0


@pytest.mark.parametrize(
    ("code", "text"),
    [(310, ""), (310, "DELAY\x013"), (310, "TRAN_MSG\x01true\x02PGROUP\x01P"), (320, "")],
)
async def test_a_send_that_waits_for_the_flush_keeps_no_message(
    tmp_path: Path, code: int, text: str
) -> None:
    """Its connection may be closed, so what a connection has in flight bounds none of them."""
    async with stored_broker(tmp_path, flushDiskType="SYNC_FLUSH") as broker:
        body, producer = b"x" * 65_536, "P" * 65_536
        if code == RequestCode.SEND_BATCH_MESSAGE:
            body = join_batch([BatchItem(0, body)])
        counts = sys.getrefcount(body), sys.getrefcount(producer)
        header = msgspec.structs.replace(HEADER, properties=text, producer_group=producer)
        call = call_with(code, header, body, head=b"h" * 65_536)
        del header

        assert ask(broker, call) is None
        assert len(broker.store.upkeep.pending) == 1
        assert (sys.getrefcount(body), sys.getrefcount(producer)) == counts
        assert not call.head

        broker.store.upkeep.pending.fail()
        assert last_answer(call).code == ResponseCode.SERVICE_NOT_AVAILABLE
        (refused,) = broker.admission.refused.newest()
        assert refused.subject == "T"


async def test_too_many_pending_sends_are_refused(tmp_path: Path) -> None:
    settings = {"flushDiskType": "SYNC_FLUSH", "sendThreadPoolQueueCapacity": "1"}
    async with stored_broker(tmp_path, **settings) as broker:
        assert ask(broker, call_with(310, HEADER)) is None
        reply = send(broker)
        assert reply.code == ResponseCode.SYSTEM_BUSY
        assert "size of queue: 1" in (reply.remark or "")


def comparable(exchange: Exchange) -> bool:
    """Return False for requests that need ACL, replication or an overloaded broker, or that reach
    no handler.
    """
    answer = expected_answer(exchange)
    if not exchange.request.ext.get("b", exchange.request.ext.get("topic")):
        return False
    return answer.code not in {2, 11} and "AclException" not in (answer.remark or "")


GOLDEN_SENDS = [
    one
    for pattern in ("010-*", "310-*", "320-*")
    for one in answered_exchanges(GOLDEN, pattern)
    if comparable(one)
]


@pytest.mark.parametrize("exchange", GOLDEN_SENDS, ids=lambda exchange: exchange.name)
async def test_captured_sends(broker: Broker, exchange: Exchange) -> None:
    expected = expected_answer(exchange)
    if expected.code == ResponseCode.SERVICE_NOT_AVAILABLE:
        broker.store.write_state.set(Refusal.DISK_FULL, holds=True)
    if "illegal, TopicConfig" in (expected.remark or ""):
        broker.tables.topics.create(exchange.request.ext["b"], queue_nums=2)

    call = call_of(exchange.request, call_with(0, None).peer)
    reply = ask(broker, call)

    assert reply.code == expected.code
    if expected.code == 0:
        assert reply.header.queue_id == int(expected.ext["queueId"])
        assert reply.header.msg_id.count(",") == expected.ext["msgId"].count(",")
    assert expected.ext.keys() - {"msgId", "queueId", "queueOffset"} <= reply.ext.keys()


@pytest.mark.parametrize(
    ("item", "request_text", "waiting"),
    [("WAIT\x01false", "", 1), ("WAIT\x01true", "WAIT\x01false", 0), ("", "WAIT\x01true", 1)],
)
async def test_the_request_decides_whether_a_batch_waits_for_the_flush(
    tmp_path: Path, item: str, request_text: str, waiting: int
) -> None:
    """The WAIT property of one message must not apply to the rest of the batch."""
    async with stored_broker(tmp_path, flushDiskType="SYNC_FLUSH") as broker:
        items = [BatchItem(0, b"a", item), BatchItem(0, b"b")]
        header = msgspec.structs.replace(HEADER, batch=True, properties=request_text)
        call = call_with(RequestCode.SEND_BATCH_MESSAGE, header, join_batch(items))
        assert broker_handles(broker, call) is None
        broker.store.writer.commit()
        assert len(broker.store.upkeep.pending) == waiting


@pytest.mark.parametrize("text", ["", "x" * 60, "\x02" * 6_400, "KEYS\x01" + "k " * 6_400])
def test_a_batch_is_decoded_in_steps_of_similar_length(broker: Broker, text: str) -> None:
    message = NewMessage("T", 0, 0, 0, 0, bytes(8), bytes(8), b"x", text)
    call = call_with(RequestCode.SEND_BATCH_MESSAGE, HEADER)
    steps = list(batch_parts(iter([message] * 2_000), broker.admission.room(call)))
    assert sum(len(messages) for messages, _ in steps) == 2_000
    assert [is_more for _, is_more in steps] == [True] * (len(steps) - 1) + [False]
    for messages, _ in steps:
        assert sum(1 + len(message.properties) // 64 for message in messages) < 2_000 + 201


def test_properties_far_above_the_maximum_are_not_read(broker: Broker) -> None:
    header = msgspec.structs.replace(HEADER, properties="\x02" * 65_537)
    assert ask(broker, call_with(RequestCode.SEND_MESSAGE_V2, header, b"x")).code == (
        ResponseCode.MESSAGE_ILLEGAL
    )
    header = msgspec.structs.replace(HEADER, properties="\x02" * 65_536)
    assert ask(broker, call_with(RequestCode.SEND_MESSAGE_V2, header, b"x")).code == 0
