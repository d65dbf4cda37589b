# SPDX-License-Identifier: Apache-2.0
"""Messages: splitting into batches, receiving, sending again."""

from cometmq.client import Message
from cometmq.client.consume.delivery.send_back import retry_message
from cometmq.client.message import received
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
