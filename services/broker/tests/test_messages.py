# SPDX-License-Identifier: Apache-2.0

import json

from hypothesis import given
from hypothesis import strategies as st

from cometmq.broker.messages import (
    MovedQueue,
    OffsetMoved,
    cluster_pair,
    delivered,
    moved_event,
    read_sent,
    sent_back,
)
from cometmq.remoting.message.flags import tag_code
from cometmq.remoting.message.new_message import NewMessage, encode_record
from cometmq.remoting.message.properties import index_keys, parse_properties
from cometmq.remoting.message.record import MessageRecord, decode_record
from cometmq.store.writing.dispatcher import tag_and_keys

HOST = bytes([127, 0, 0, 1, 0, 0, 0x2A, 0x9F])
CLUSTER = cluster_pair("C")


def stored(text: str, **fields: object) -> MessageRecord:
    message = NewMessage("T", 1, 7, 0, 1000, HOST, HOST, b"body", text)
    for name, value in fields.items():
        setattr(message, name, value)
    return decode_record(encode_record(message, 5, 4096, 2000))


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
