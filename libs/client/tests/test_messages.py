# SPDX-License-Identifier: Apache-2.0
"""Messages: splitting into batches, receiving, resending."""

from typing import Any

import pytest

from cometmq.client import InvalidArgument, Message, Producer, ProducerOptions, trace_context
from cometmq.client.consume.delivery.send_back import retry_message
from cometmq.client.message import received
from cometmq.client.testing import MemoryCluster
from cometmq.client.transfer.outgoing import split_messages
from cometmq.remoting.message.new_message import NewMessage, encode_record
from cometmq.remoting.message.properties import parse_properties
from cometmq.remoting.message.record import decode_record


def record(topic: str, properties: str = "") -> NewMessage:
    host = b"\x7f\0\0\1\0\0\0\1"
    return NewMessage(
        topic=topic,
        queue_id=0,
        flag=0,
        sys_flag=0,
        born_timestamp=1,
        born_host=host,
        store_host=host,
        body=b"x",
        properties=properties,
        reconsume_times=1,
    )


def test_batches_end_before_they_are_too_large() -> None:
    messages = [Message("T", bytes(100)) for _ in range(5)]
    sizes = [len(batch) for batch in split_messages(messages, bytes_max=500)]
    assert sizes == [2, 2, 1]
    assert [len(b) for b in split_messages([Message("T", bytes(900))], bytes_max=500)] == [1]


@pytest.mark.parametrize(
    ("options", "message_id"),
    [
        ({}, "i" * 2_000),
        ({}, "\u20ac" * 700),
        ({"namespace": "n" * 100}, None),
        ({"trace_context": True}, None),
    ],
)
async def test_split_lists_fit_into_a_batch(
    cluster: MemoryCluster, options: dict[str, Any], message_id: str | None
) -> None:
    wanted = ProducerOptions(body_bytes_max=20_000, **options)
    messages = [Message("T", b"x", message_id=message_id) for _ in range(300)]
    parent = trace_context.TraceContext("00-" + "1" * 32 + "-" + "2" * 16 + "-01", "a=" + "b" * 200)
    async with Producer("pg", cluster.namesrv, options=wanted) as producer:
        token = trace_context._current.set(parent)
        try:
            batches = list(producer.split_batch(messages))
            for batch in batches:
                await producer.send_batch(batch, timeout_ms=60_000)
        finally:
            trace_context._current.reset(token)
    assert sum(len(batch) for batch in batches) == 300
    assert len(batches) > 1


async def test_split_lists_have_one_topic_and_one_wait_store_ok(cluster: MemoryCluster) -> None:
    messages = [
        Message("T", b"1"), Message("T", b"2"), Message("U", b"3"), Message("T", b"4"),
        Message("T", b"5", wait_store_ok=False),
    ]  # fmt: skip
    async with Producer("pg", cluster.namesrv) as producer:
        batches = list(producer.split_batch(messages))
        for batch in batches:
            await producer.send_batch(batch, timeout_ms=60_000)
    bodies = [[bytes(message.body) for message in batch] for batch in batches]
    assert bodies == [[b"1", b"2"], [b"3"], [b"4"], [b"5"]]


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        (["x"], r"send a Message\(topic, body\), not str"),
        ([None], r"send a Message\(topic, body\), not NoneType"),
        ("x", "messages must be a list of Message, not str"),
        (None, "messages must be a list of Message, not NoneType"),
        ([Message("T", b"x", delay_level=1)], "a delay level cannot be sent in a batch"),
        ([Message("%RETRY%g", b"x")], "to a retry topic cannot be sent in a batch"),
    ],
)
def test_messages_that_no_batch_may_contain(messages: Any, text: str) -> None:
    producer = Producer("pg", "127.0.0.1:1")
    with pytest.raises(InvalidArgument, match=text):
        list(producer.split_batch(messages))


@pytest.mark.parametrize("bytes_max", [0, -1, True, "9", 4 * 1024 * 1024 + 1])
def test_lists_are_no_larger_than_a_batch(bytes_max: Any) -> None:
    producer = Producer("pg", "127.0.0.1:1")
    with pytest.raises(InvalidArgument, match="bytes_max must be a whole number from 1 to 4194304"):
        producer.split_batch([Message("T", b"x")], bytes_max=bytes_max)


def test_only_messages_of_the_retry_topic_show_another_one() -> None:
    properties = "RETRY_TOPIC\x01Origin\x02UNIQ_KEY\x01ABC"
    retried = received(decode_record(encode_record(record("%RETRY%g", properties), 0, 0, 0)), "a")
    dead = received(decode_record(encode_record(record("%DLQ%g", properties), 0, 0, 0)), "a")
    assert (retried.topic, retried.queue.topic, retried.message_id) == ("Origin", "%RETRY%g", "ABC")
    assert dead.topic == "%DLQ%g"


def test_a_message_that_is_sent_anew_remembers_where_it_came_from() -> None:
    text = "KEYS\x01k\x02UNIQ_KEY\x01ABC\x02TRAN_MSG\x01true"
    message = received(decode_record(encode_record(record("T", text), 4, 0, 0)), "a")
    prepared = retry_message(message, "g", topic="T", max_reconsume_times=16)
    properties = parse_properties(prepared.properties)
    assert (prepared.topic, prepared.reconsume_times) == ("%RETRY%g", 2)
    assert properties["RETRY_TOPIC"] == "T"
    assert properties["ORIGIN_MESSAGE_ID"] == "ABC"
    assert properties["DELAY"] == "4"
    assert "TRAN_MSG" not in properties
