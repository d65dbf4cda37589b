# SPDX-License-Identifier: Apache-2.0
"""The codec reads and writes Java's JSON dialect and rejects hostile JSON."""

import json
import time
from collections.abc import Iterable
from typing import get_origin

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.remoting.bodies import dialect
from cometmq.remoting.bodies.dialect import (
    DEPTH_MAX,
    decode_file,
    decode_json,
    encode_json,
    parse_dialect,
)
from cometmq.remoting.bodies.heartbeat import ConsumerData, Heartbeat
from cometmq.remoting.bodies.offsets import ConsumerOffsetTable, ConsumerStatus, QueueOffsetTable
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.bodies.route import BrokerData, TopicRoute
from cometmq.remoting.bodies.stats import BrokerConsumeStats, ConsumeStats, OffsetPair
from cometmq.remoting.errors import RemoteProtocolError

QUEUE = MessageQueue("t", "b", 3)
JSON_TREES = st.recursive(
    st.one_of(st.booleans(), st.integers(-(2**63), 2**63 - 1), st.text(max_size=8)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(JSON_TREES)
def test_strict_json_is_read_by_the_dialect_reader(tree: object) -> None:
    assert parse_dialect(json.dumps(tree).encode()) == tree
    assert parse_dialect(json.dumps(tree, ensure_ascii=False, indent=1).encode()) == tree


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_floats_are_read_exactly(value: float) -> None:
    assert parse_dialect(json.dumps([value]).encode()) == [value]


@given(st.binary(max_size=80))
def test_arbitrary_bytes_are_refused_or_read(data: bytes) -> None:
    for type_ in (Heartbeat, QueueOffsetTable, list[str]):
        try:
            found = decode_json(type_, data)
        except RemoteProtocolError:
            continue
        assert isinstance(found, get_origin(type_) or type_)


@given(st.text(st.sampled_from('{}[]:,"1a\\u0 '), max_size=30))
def test_arbitrary_punctuation_is_refused_or_read(text: str) -> None:
    try:
        tree = parse_dialect(text.encode())
    except RemoteProtocolError:
        with pytest.raises(ValueError, match=r".+"):
            json.loads(text)
    else:
        assert tree is None or isinstance(tree, (dict, list, str, int, float, bool))


def test_integer_keys_need_no_quotes() -> None:
    table = decode_json(ConsumerOffsetTable, b'{"offsetTable":{"T@G":{0:12,1:-1}}}')
    assert table.offset_table == {"T@G": {0: 12, 1: -1}}
    assert encode_json(table) == b'{"offsetTable":{"T@G":{"0":12,"1":-1}}}'


def test_a_byte_order_mark_is_skipped() -> None:
    """Editors write it into tables such as topics.json, and fastjson skips it."""
    table = decode_json(ConsumerOffsetTable, b'\xef\xbb\xbf{"offsetTable":{"T@G":{"0":12}}}')
    assert table.offset_table == {"T@G": {0: 12}}


def test_objects_are_keys_in_both_forms() -> None:
    dialect = b'{"offsetTable":{{"brokerName":"b","queueId":3,"topic":"t"}:7}}'
    strict = json.dumps({"offsetTable": {dialect[16:-4].decode(): 7}}).encode()
    for data in (dialect, strict):
        table = decode_json(QueueOffsetTable, data)
        assert table.offset_table == {QUEUE: 7}
        assert encode_json(table) == dialect  # RocketMQ 5.5 does not read the strict form


@given(st.text(max_size=6), st.text(max_size=6))
def test_names_around_objects_as_keys_are_kept(name: str, broker_name: str) -> None:
    status = ConsumerStatus({name: {MessageQueue("t", broker_name, 0): 1}}, {QUEUE: 2})
    assert decode_json(ConsumerStatus, encode_json(status)) == status


@pytest.mark.parametrize("name", ["a,{b}:c", "a,5:b", ',{"x":', "}:"])
def test_names_like_keys_do_not_slow_a_table_down(name: str) -> None:
    """The Python parser would refuse a table of this size."""
    pairs = {MessageQueue("t", "b", queue_id): OffsetPair() for queue_id in range(10_000)}
    stats = BrokerConsumeStats("b", [{name: [ConsumeStats(0.0, pairs)]}])
    assert decode_json(BrokerConsumeStats, encode_json(stats)) == stats


def test_maps_by_objects_may_lie_inside_maps_by_text() -> None:
    status = ConsumerStatus({"client": {QUEUE: 1}}, {QUEUE: 2})
    assert decode_json(ConsumerStatus, encode_json(status)) == status
    dialect = b'{"consumerTable":{"{c":{{"topic":"t","brokerName":"b","queueId":"3"}:1}}}'
    assert decode_json(ConsumerStatus, dialect).consumer_table == {"{c": {QUEUE: 1}}


def test_nulls_count_as_missing() -> None:
    data = b'{"clientID":"c","consumerDataSet":null,"producerDataSet":[{"groupName":null}]}'
    heartbeat = decode_json(Heartbeat, data)
    assert heartbeat.consumer_data_set == []
    assert heartbeat.producer_data_set[0].group_name == ""


def test_numbers_and_booleans_may_be_texts() -> None:
    data = b'{"groupName":"g","unitMode":"true","subscriptionDataSet":[{"subVersion":"12"}]}'
    consumer = decode_json(ConsumerData, data)
    assert consumer.unit_mode
    assert consumer.subscription_data_set[0].sub_version == 12


@pytest.mark.parametrize(
    ("route", "expected"),
    [
        (TopicRoute(), b'{"brokerDatas":[],"filterServerTable":{},"queueDatas":[]}'),
        (
            TopicRoute([BrokerData({0: "a"}, "n", "c")], order_topic_conf='x","y":null'),
            (
                b'{"brokerDatas":[{"brokerAddrs":{"0":"a"},"brokerName":"n","cluster":"c"}],'
                b'"filterServerTable":{},"orderTopicConf":"x\\",\\"y\\":null","queueDatas":[]}'
            ),
        ),
    ],
)
def test_members_that_are_none_are_left_out(route: TopicRoute, expected: bytes) -> None:
    assert encode_json(route) == expected


class _Optional(msgspec.Struct):
    a: str | None = None
    b: str | None = None
    c: str | None = None


@given(st.builds(_Optional, *[st.one_of(st.none(), st.text(max_size=12))] * 3))
def test_leaving_out_keeps_the_rest(value: _Optional) -> None:
    expected = {
        name: text for name, text in msgspec.structs.asdict(value).items() if text is not None
    }
    assert json.loads(encode_json(value)) == expected
    assert decode_json(_Optional, encode_json(value)) == value


@pytest.mark.parametrize("opening", [b"[", b'{"a":', b"{", b'{"a":[{'])
def test_deep_nesting_is_refused_at_once(opening: bytes) -> None:
    started = time.process_time()
    with pytest.raises(RemoteProtocolError):
        decode_json(Heartbeat, opening * 100_000)
    assert time.process_time() - started < 1


def test_nesting_up_to_the_bound_is_read() -> None:
    assert parse_dialect(b"[" * DEPTH_MAX + b"]" * DEPTH_MAX)
    with pytest.raises(RemoteProtocolError, match="nested"):
        parse_dialect(b"[" * (DEPTH_MAX + 1) + b"]" * (DEPTH_MAX + 1))


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"}", b"[1,]", b'{"a":1,}', b"{a b}", b"1 2", b"tru", b'"\\x"', b"[1 2]", b"-"],
)
def test_broken_json_is_refused(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        parse_dialect(data)


def test_numbers_beyond_java_are_refused() -> None:
    by_queue = '{"offsetTable":{{"brokerName":"b","queueId":3,"topic":"t"}:12}}'
    assert decode_json(QueueOffsetTable, by_queue.encode()).offset_table == {QUEUE: 12}
    for number in ("9223372036854775808", '"9223372036854775808"', "9" * 500):
        with pytest.raises(RemoteProtocolError):
            decode_json(QueueOffsetTable, by_queue.replace("12", number).encode())
        with pytest.raises(RemoteProtocolError):
            decode_json(ConsumerOffsetTable, f'{{"offsetTable":{{"a":{{0:{number}}}}}}}'.encode())


def test_lone_surrogates_become_what_java_writes() -> None:
    assert decode_json(list[str], b'["\\ud800x"]') == ["?x"]


def java(tree: object) -> str:
    """Write a tree as fastjson does: integers as keys have no quotes."""
    if isinstance(tree, dict):
        members = (f"{key if key.isdigit() else json.dumps(key)}:{java(tree[key])}" for key in tree)
        return "{" + ",".join(members) + "}"
    if isinstance(tree, list):
        return "[" + ",".join(map(java, tree)) + "]"
    return json.dumps(tree)


TEXTS = st.one_of(st.text(max_size=5), st.integers(0, 10**6).map(str), st.just('{,1:2,{"a":1}:'))
JAVA_TREES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**70), 2**70), TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXTS, inner, max_size=4)),
    max_leaves=12,
)


@given(JAVA_TREES, st.sampled_from(["", "\x01", "\\ud800", "\ufeff", " null"]))
def test_the_fast_reader_agrees_with_the_slow_one(tree: object, more: str) -> None:
    for text in (java(tree), java([tree, more]).replace("\\u0001", "\x01"), java(tree) + more):
        data = text.encode()
        try:
            expected = parse_dialect(data)
        except RemoteProtocolError:
            with pytest.raises(RemoteProtocolError):
                dialect._parse(data, dialect.TOKENS_MAX)
        else:
            found = dialect._parse(data, dialect.TOKENS_MAX)
            assert repr(found).replace('"', "'") == repr(expected).replace('"', "'")


def test_key_objects_are_read_by_the_fast_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialect, "ANSWER", dialect.ANSWER._replace(tokens_max=0))
    queues = {MessageQueue("t{}" * (number == 3), "b", number): number for number in range(9)}
    strict = encode_json(QueueOffsetTable(queues)).decode()
    body = strict.replace('\\"', '"').replace('"{', "{").replace('}":', "}:")
    with pytest.raises(RemoteProtocolError, match="in no form that Java writes"):
        decode_json(QueueOffsetTable, body.encode())  # braces in a name
    body = body.replace("t{}", "t")
    assert len(decode_json(QueueOffsetTable, body.encode()).offset_table) == len(queues)
    by_id = b'{"offsetTable":{"T@G":{ 0 :12,-1:null}}}'
    assert decode_json(ConsumerOffsetTable, by_id).offset_table == {"T@G": {0: 12}}


@pytest.mark.parametrize(
    "body",
    [
        b"[" + b"1," * 500_000,
        b'{"a":b,"x":[' + b"[]," * 300_000 + b"]}",
        b"{" * 1_000_000,
        b"{1:" * 300_000,
        b'{"brokerDatas":1,' + b'"{\\"a\\":1,":1,' * 50_000 + b'"a":1}',
    ],
    ids=["list", "bare word", "open", "open keys", "broken key objects"],
)
def test_a_mebibyte_of_broken_json_does_not_hold_the_loop(body: bytes) -> None:
    """It took 2 s; a server takes as much from every client."""
    started = time.process_time()
    with pytest.raises(RemoteProtocolError):
        decode_json(TopicRoute, body)
    assert time.process_time() - started < 1


def _frame_of(begin: bytes, entry: bytes, end: bytes) -> bytes:
    return begin + entry * (12 * 1024 * 1024 // len(entry)) + end


@pytest.mark.parametrize(
    "body",
    [
        _frame_of(b'{"x":{', b"1:1,", b"1:1}}"),
        _frame_of(b'{"x":{', b'"{1:1}":2,', b"1:1}}"),
        _frame_of(b'{"offsetTable":{', b"{}:1,", b"{}:1}}"),
        _frame_of(b"{1:[null,", b"{},", b"0]}"),
        _frame_of(b"{1:[", b"[],", b"0]}"),
        _frame_of(b'{"brokerDatas":[', b"{},", b"{}]}"),
        _frame_of(b"", b",", b""),
    ],
    ids=["numbers", "texts with objects", "objects", "nulls", "lists", "empty values", "commas"],
)
def test_answers_with_more_parts_than_any_table_are_refused(body: bytes) -> None:
    """They took up to 20 s."""
    with pytest.raises(RemoteProtocolError, match=r"has \d+ (objects|parts).* are accepted"):
        decode_json(QueueOffsetTable, body)


def _table_of(rows: Iterable[str]) -> bytes:
    return b'{"offsetTable":{' + ",".join(rows).encode() + b"}}"


def test_the_dialect_in_texts_is_read_for_a_few_hundred_keys_only() -> None:
    def table(count: int) -> bytes:
        keys = (rf'"{{topic:\"T\",brokerName:\"b\",queueId:{n}}}":1' for n in range(count))
        return _table_of(keys)

    assert len(decode_json(QueueOffsetTable, table(500)).offset_table) == 500
    with pytest.raises(RemoteProtocolError, match="unexpected shape"):
        decode_json(QueueOffsetTable, table(5_000))
    assert len(decode_file(QueueOffsetTable, table(5_000)).offset_table) == 5_000


def test_the_largest_tables_of_java_brokers_are_read() -> None:
    """In a frame of 16 MiB; a broker's own file may have more."""

    def row(number: int) -> str:
        queue = f'{{"brokerName":"broker-a","queueId":{number},"topic":"orders-of-customers"}}'
        offsets = f'{{"brokerOffset":{number},"consumerOffset":7,"lastTimestamp":1700000000000}}'
        return f"{queue}:{offsets}"

    found = decode_json(ConsumeStats, _table_of(row(number) for number in range(100_000)))
    assert len(found.offset_table) == 100_000

    offsets = ",".join(f"{number}:{number + 1}00" for number in range(16))
    most = _table_of(f'"t{number}@g":{{{offsets}}}' for number in range(50_000))
    more = _table_of(f'"t{number}@g":{{{offsets}}}' for number in range(60_000))
    assert len(decode_json(ConsumerOffsetTable, most).offset_table) == 50_000
    with pytest.raises(RemoteProtocolError, match="are accepted"):
        decode_json(ConsumerOffsetTable, more)
    assert len(decode_file(ConsumerOffsetTable, more).offset_table) == 60_000
