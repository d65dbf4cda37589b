# SPDX-License-Identifier: Apache-2.0

import json

from hypothesis import given
from hypothesis import strategies as st

from cometmq.broker.messages import (
    MovedQueue,
    OffsetMoved,
    batch_text,
    cluster_pair,
    delay,
    delivered,
    moved_event,
    read_sent,
    sent_back,
    without_delay,
)
from cometmq.remoting.message.flags import tag_code
from cometmq.remoting.message.new_message import NewMessage, encode_record
from cometmq.remoting.message.properties import (
    index_keys,
    parse_properties,
    render_properties,
)
from cometmq.remoting.message.record import MessageRecord, decode_record
from cometmq.store.writing.dispatcher import tag_and_keys

HOST = bytes([127, 0, 0, 1, 0, 0, 0x2A, 0x9F])
CLUSTER = cluster_pair("C")


def stored(text: str, **fields: object) -> MessageRecord:
    message = NewMessage("T", 1, 7, 0, 1000, HOST, HOST, b"body", text)
    for name, value in fields.items():
        setattr(message, name, value)
    return decode_record(encode_record(message, 5, 4096, 2000))


def test_a_plain_send_loses_wait_and_gets_the_cluster() -> None:
    sent = read_sent("UNIQ_KEY\x01AB\x02WAIT\x01true\x02TAGS\x01A\x02KEYS\x01k1 k2\x02", CLUSTER)

    assert sent.text == "UNIQ_KEY\x01AB\x02TAGS\x01A\x02KEYS\x01k1 k2\x02CLUSTER\x01C"
    assert sent.tags == "A"
    assert sent.keys == ("AB", "k1", "k2")
    assert sent.waits_for_disk
    assert sent.delay_level == 0
    assert not sent.is_half


def test_the_properties_that_the_broker_uses_are_read() -> None:
    sent = read_sent("WAIT\x01false\x02DELAY\x013\x02TRAN_MSG\x01true\x02CLUSTER\x01other", CLUSTER)

    assert not sent.waits_for_disk
    assert sent.delay_level == 3
    assert sent.is_half
    assert parse_properties(sent.text)["CLUSTER"] == "C"
    assert sent.keys == ()


def test_no_properties_and_odd_ones() -> None:
    assert read_sent(None, CLUSTER).text == CLUSTER
    assert read_sent("", CLUSTER).text == CLUSTER
    odd = read_sent("\x02\x01\x02a\x01\x02DELAY\x01soon\x02\x01b", CLUSTER)
    assert odd.delay_level == 0
    assert parse_properties(odd.text) == {"DELAY": "soon", "CLUSTER": "C"}


names = st.text("ABCdef_KEYSTAGWIUNQ", min_size=1, max_size=6) | st.sampled_from(
    ["UNIQ_KEY", "XUNIQ_KEY", "KEYS", "TAGS", "WAIT", "CLUSTER", "DELAY"]
)
values = st.text(st.characters(exclude_characters="\x01\x02", codec="utf-8"), max_size=6)


@given(st.lists(st.tuples(names, values), max_size=6))
def test_reading_agrees_with_the_full_parser(pairs: list[tuple[str, str]]) -> None:
    """The fast reader must return the same result as a slow one that parses everything."""
    text = "\x02".join(f"{name}\x01{value}" for name, value in pairs)
    expected = parse_properties(text)
    sent = read_sent(text, CLUSTER)

    assert sent.tags == expected.get("TAGS")
    assert sent.tag_code == tag_code(expected.get("TAGS"))
    assert sent.keys == index_keys(expected.get("UNIQ_KEY"), expected.get("KEYS"))
    assert sent.wait == expected.pop("WAIT", None)
    assert parse_properties(sent.text) == {**expected, "CLUSTER": "C"}


def test_the_text_around_a_unique_key_is_cached() -> None:
    for key in ("AB", "CD"):
        sent = read_sent(f"TAGS\x01A\x02UNIQ_KEY\x01{key}\x02WAIT\x01false\x02a\x01b", CLUSTER)
        assert sent.text == f"TAGS\x01A\x02UNIQ_KEY\x01{key}\x02a\x01b\x02CLUSTER\x01C"
        assert sent.keys == (key,)
        assert sent.tag_code == tag_code("A")
        assert not sent.waits_for_disk
        sent.delay_level = 5  # a handler's changes must not reach the cache
        sent.text = ""


def test_an_unusual_unique_key_is_read_in_full() -> None:
    for text, keys in (
        ("UNIQ_KEY\x01A\x02UNIQ_KEY\x01B", ("B",)),
        ("XUNIQ_KEY\x01A\x02a\x01b", ()),
        ("UNIQ_KEY\x01\x02a\x01b", ()),
        ("UNIQ_KEY\x01A\x02KEYS\x01k", ("A", "k")),
        ("a\x01UNIQ_KEY\x01A", ()),
    ):
        for _ in range(2):
            sent = read_sent(text, CLUSTER)
            assert sent.keys == keys
            assert parse_properties(sent.text) == {**parse_properties(text), "CLUSTER": "C"}


def test_a_batch_keeps_wait_behind_the_items_own_properties() -> None:
    assert batch_text(read_sent("WAIT\x01true", CLUSTER)) == "WAIT\x01true\x02CLUSTER\x01C"
    assert batch_text(read_sent("", CLUSTER)) == CLUSTER


def test_a_delayed_message_keeps_its_real_topic_and_queue() -> None:
    message = NewMessage("T", 2, 0, 0, 0, HOST, HOST, b"", "DELAY\x013\x02REAL_TOPIC\x01old")
    delay(message, 3, wait="true")

    assert (message.topic, message.queue_id) == ("SCHEDULE_TOPIC_XXXX", 2)
    assert parse_properties(message.properties) == {
        "DELAY": "3",
        "WAIT": "true",
        "REAL_TOPIC": "T",
        "REAL_QID": "2",
    }
    assert message.properties.count("REAL_TOPIC") == 1
    assert "DELAY" not in without_delay(message.properties)


def test_a_delivered_message_keeps_its_text() -> None:
    text = render_properties({"DELAY": "3", "TAGS": "A", "REAL_TOPIC": "R", "REAL_QID": "4"})
    record = stored(text, topic="SCHEDULE_TOPIC_XXXX")
    message = delivered(record, host=HOST)

    assert (message.topic, message.queue_id, message.properties) == ("R", 4, text)
    assert (message.tag_code, message.flag, message.wait) == (tag_code("A"), 7, False)


def test_a_delayed_message_without_a_topic_gets_an_empty_one() -> None:
    assert delivered(stored("TAGS\x01A"), host=HOST).topic == ""


def test_a_message_sent_back_keeps_its_first_origin() -> None:
    record = stored("TAGS\x01A\x02UNIQ_KEY\x01AB", reconsume_times=1)
    first = sent_back(record, topic="%RETRY%g", queue_id=0, delay_level=4, host=HOST)
    properties = parse_properties(first.properties)

    assert properties["RETRY_TOPIC"] == "T"
    assert properties["ORIGIN_MESSAGE_ID"] == "7F00000100002A9F0000000000001000"
    assert (properties["WAIT"], properties["DELAY"]) == ("false", "4")
    assert (first.reconsume_times, first.topic, first.wait) == (2, "%RETRY%g", True)

    again = decode_record(encode_record(first, 0, 9999, 3000))
    second = sent_back(again, topic="%RETRY%g", queue_id=0, delay_level=5, host=HOST)
    assert parse_properties(second.properties)["RETRY_TOPIC"] == "T"
    assert (
        parse_properties(second.properties)["ORIGIN_MESSAGE_ID"] == properties["ORIGIN_MESSAGE_ID"]
    )


def test_the_event_of_a_moved_offset_is_what_java_writes() -> None:
    event = OffsetMoved("g", MovedQueue("b", 3, "T"), offset_new=5, offset_request=1)
    message = moved_event(event, host=HOST, now_ms=1)

    assert message.topic == "OFFSET_MOVED_EVENT"
    assert json.loads(bytes(message.body)) == {
        "consumerGroup": "g",
        "messageQueue": {"brokerName": "b", "queueId": 3, "topic": "T"},
        "offsetNew": 5,
        "offsetRequest": 1,
    }
    assert message.keys == ("g",)


def test_the_event_of_a_group_with_a_space_has_the_keys_that_its_record_shows() -> None:
    event = OffsetMoved("my group", MovedQueue("b", 3, "T"), offset_new=5, offset_request=1)
    message = moved_event(event, host=HOST, now_ms=1)
    assert message.keys == ("my", "group") == tag_and_keys(message.properties.encode())[1]


@given(st.lists(st.tuples(names, values), max_size=6), st.text("a \u00fc", min_size=1))
def test_all_messages_of_the_broker_are_indexed_as_a_recovery_would(
    pairs: list[tuple[str, str]], group: str
) -> None:
    text = "\x02".join(f"{name}\x01{value}" for name, value in pairs)
    record = stored(f"{text}\x02REAL_TOPIC\x01R\x02REAL_QID\x010")
    copy = delivered(record, host=HOST)
    assert copy is not None
    event = OffsetMoved(group, MovedQueue("b", 3, "T"), offset_new=5, offset_request=1)
    for message in (
        copy,
        sent_back(record, topic="%RETRY%g", queue_id=0, delay_level=3, host=HOST),
        moved_event(event, host=HOST, now_ms=1),
    ):
        found = message.tag_code, message.keys
        assert found == tag_and_keys(message.properties.encode())
