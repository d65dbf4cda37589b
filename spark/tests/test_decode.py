# SPDX-License-Identifier: Apache-2.0
"""The numpy decoder agrees with the scalar decoder on all records."""

from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema

from cometmq.remoting.errors import CorruptRecord
from cometmq.remoting.frame import FrameReader
from cometmq.remoting.message.compression import CompressionType, compress, compression_bits
from cometmq.remoting.message.new_message import NewMessage, encode_record
from cometmq.spark.errors import SourceError
from cometmq.spark.options.definitions import Properties, parse
from cometmq.spark.read import decode, decode_scalar
from cometmq.spark.read.decode import NotUniform, RecordColumns, decode_records, record_starts
from cometmq.spark.read.decode_scalar import Context, decode_one_by_one
from cometmq.spark.read.task import batches, candidates
from cometmq.spark.schemas import table_schema
from cometmq.testing.remoting.golden import load_exchanges
from cometmq.testing.remoting.strategies import new_messages

GOLDEN = Path(__file__).parents[2] / "tests" / "golden"
V4 = bytes([10, 0, 0, 7]) + (10911).to_bytes(4, "big")
ALL = 1 << 62


def context_of(**options: str) -> Context:
    parsed = parse(options)
    schema = to_arrow_schema(table_schema(parsed), timezone="UTC")
    return Context.of(schema, "broker-a", parsed)


def message(**changes: object) -> NewMessage:
    fields: dict[str, object] = {
        "topic": "T",
        "queue_id": 3,
        "flag": 7,
        "sys_flag": 0,
        "born_timestamp": 1_700_000_000_123,
        "born_host": V4,
        "store_host": V4,
        "body": b"body",
        "properties": "TAGS\x01red\x02KEYS\x01a b\x02UNIQ_KEY\x01ID1",
    }
    return NewMessage(**{**fields, **changes})


def records_of(*messages: NewMessage) -> bytes:
    return b"".join(
        encode_record(one, index, index * 1000, 1_700_000_001_000 + index)
        for index, one in enumerate(messages)
    )


def both(buffer: bytes, context: Context) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    starts = record_starts(buffer, 0, ALL)
    return decode_records(buffer, starts, context), decode_one_by_one(buffer, starts, context)


def rows_of(batch: pa.RecordBatch) -> list[dict[str, object]]:
    """Return the rows, with maps as dicts: the order of pairs does not matter."""
    rows = batch.to_pylist()
    for row in rows:
        if isinstance(row["properties"], list):
            assert len(dict(row["properties"])) == len(row["properties"])
            row["properties"] = dict(row["properties"])
    return rows


PAIRS = st.lists(
    st.tuples(
        st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "WAIT", "é", "", "x\x01"]),
        st.sampled_from(["", "v", "ü€", "a b", "\x01", "long" * 20]),
    ),
    max_size=6,
)
TEXTS = st.builds(
    lambda pairs, end: "\x02".join(f"{key}\x01{value}" for key, value in pairs) + end,
    PAIRS,
    st.sampled_from(["", "\x02", "x", "\x02\x02"]),
)
MESSAGES_V4 = st.builds(
    message,
    topic=st.sampled_from(["T", "%RETRY%g", "t" * 127]),
    queue_id=st.integers(0, 2**31 - 1),
    flag=st.integers(-(2**31), 2**31 - 1),
    sys_flag=st.integers(0, 2**31 - 1).map(lambda flags: flags & ~0x1),
    born_timestamp=st.integers(-(2**63), 2**63 - 1),
    born_host=st.binary(min_size=4, max_size=4).map(lambda ip: ip + V4[4:]),
    body=st.binary(max_size=40),
    properties=TEXTS,
    reconsume_times=st.integers(-(2**31), 2**31 - 1),
    prepared_offset=st.integers(-(2**63), 2**63 - 1),
)


@pytest.mark.parametrize("form", list(Properties))
@settings(max_examples=150, deadline=None)
@given(messages=st.lists(MESSAGES_V4, min_size=1, max_size=6))
def test_decoders_agree_on_uniform_records(form: Properties, messages: list[NewMessage]) -> None:
    context = context_of(includeProperties=form.value)
    buffer = records_of(*messages)
    RecordColumns(buffer, record_starts(buffer, 0, ALL), context)  # the numpy decoder handles them

    fast, plain = both(buffer, context)

    assert rows_of(fast) == rows_of(plain)
    assert fast.schema.equals(plain.schema)


@settings(max_examples=150, deadline=None)
@given(messages=st.lists(new_messages(), min_size=1, max_size=5))
def test_decoders_agree_on_mixed_records(messages: list[NewMessage]) -> None:
    fast, plain = both(records_of(*messages), context_of(inflate="false"))

    assert rows_of(fast) == rows_of(plain)


def test_row_has_every_field() -> None:
    buffer = records_of(message(), message(body=b"", properties=""))

    first, second = rows_of(both(buffer, context_of())[0])

    assert first["topic"] == "T"
    assert first["broker_name"] == "broker-a"
    assert (first["queue_id"], first["queue_offset"], first["commitlog_offset"]) == (3, 0, 0)
    assert first["msg_id"] == "ID1"
    assert first["offset_msg_id"] == "0A00000700002A9F0000000000000000"
    assert (first["keys"], first["tags"], first["body"]) == ("a b", "red", b"body")
    assert (first["born_host"], first["store_host"]) == ("10.0.0.7:10911", "10.0.0.7:10911")
    assert first["born_ts"].isoformat() == "2023-11-14T22:13:20.123000+00:00"
    assert first["properties"] == {"TAGS": "red", "KEYS": "a b", "UNIQ_KEY": "ID1"}
    assert second["msg_id"] == second["offset_msg_id"] == "0A00000700002A9F00000000000003E8"
    assert (second["keys"], second["tags"], second["properties"]) == (None, None, {})


def test_records_outside_the_range_are_skipped() -> None:
    buffer = records_of(*(message(flag=index) for index in range(5)))

    batch = decode_records(buffer, record_starts(buffer, 1, 4), context_of())

    assert batch.column("queue_offset").to_pylist() == [1, 2, 3]


@pytest.mark.parametrize("kind", [CompressionType.ZLIB, CompressionType.LZ4, CompressionType.ZSTD])
def test_compressed_bodies_are_inflated_by_default(kind: CompressionType) -> None:
    packed = compress(b"plain" * 50, kind)
    buffer = records_of(message(), message(body=packed, sys_flag=compression_bits(kind)))

    fast, plain = both(buffer, context_of())
    as_stored, _ = both(buffer, context_of(inflate="false"))

    assert fast.column("body").to_pylist() == [b"body", b"plain" * 50]
    assert rows_of(fast) == rows_of(plain)
    assert as_stored.column("body").to_pylist() == [b"body", packed]


@pytest.mark.parametrize("is_mixed", [False, True])
def test_bodies_that_expand_to_more_than_a_batch_are_split(
    monkeypatch: pytest.MonkeyPatch, is_mixed: bool
) -> None:
    monkeypatch.setattr(decode_scalar, "PLAIN_BYTES_MAX", 2500)
    packed, v6 = compress(bytes(1000), CompressionType.ZLIB), bytes(16) + V4[4:]
    messages = [message(body=packed, sys_flag=1, flag=number) for number in range(10)]
    if is_mixed:  # for the scalar decoder
        messages[4] = message(body=b"", sys_flag=4, flag=4, born_host=v6)
    buffer = records_of(*messages)

    found = list(batches(buffer, record_starts(buffer, 0, ALL), context_of()))

    assert [it for one in found for it in one.column("flag").to_pylist()] == list(range(10))
    assert [one.num_rows for one in found] == ([3, 4, 3] if is_mixed else [3, 3, 3, 1])
    assert all(
        len(it or b"") in (0, 1000) for one in found for it in one.column("body").to_pylist()
    )


def test_body_that_cannot_be_inflated_is_named() -> None:
    buffer = records_of(message(body=b"junk", sys_flag=1))
    starts = record_starts(buffer, 0, ALL)

    for decoder in (decode_records, decode_one_by_one):
        with pytest.raises(SourceError, match=r"body at T 3 0 cannot be decompressed .*inflate"):
            decoder(buffer, starts, context_of())


def test_excluded_body_is_null_and_not_inflated() -> None:
    buffer = records_of(message(body=b"junk", sys_flag=1))

    fast, plain = both(buffer, context_of(includeBody="false"))

    assert fast.column("body").to_pylist() == plain.column("body").to_pylist() == [None]


def test_invalid_utf8_is_replaced_as_in_the_scalar_decoder() -> None:
    buffer = records_of(message(properties="TAGS\x01red")).replace(b"red", b"r\xffd")

    fast, plain = both(buffer, context_of())

    assert rows_of(fast) == rows_of(plain)
    assert fast.column("tags").to_pylist() == ["r\ufffdd"]


@pytest.mark.parametrize("damage", ["cut", "size", "body", "topic", "properties"])
def test_damaged_records_are_rejected(damage: str) -> None:
    buffer = bytearray(records_of(message(), message()))
    places = {"size": 0, "body": 84, "topic": 88 + 4, "properties": 88 + 4 + 2}
    if damage == "cut":
        del buffer[-1]
    else:
        buffer[places[damage]] ^= 0x70
    with pytest.raises(CorruptRecord):
        decode_records(bytes(buffer), record_starts(bytes(buffer), 0, ALL), context_of())


def test_records_of_a_java_broker() -> None:
    replies = [
        exchange.response
        for exchange in load_exchanges(GOLDEN, "*PULL_MESSAGE*.jsonl")
        if exchange.response is not None and exchange.response.code == 0
    ]
    assert replies
    for reply in replies:
        _, _, body = FrameReader().feed(reply.data)[0]
        fast, plain = both(body, context_of())
        assert fast.num_rows >= 1
        assert rows_of(fast) == rows_of(plain)


def test_only_selected_columns_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> None:
        raise AssertionError("properties were split")

    monkeypatch.setattr(decode, "PropertyColumns", refuse)
    context = context_of()
    few = Context(pa.schema([context.schema.field("body"), context.schema.field("topic")]), "b")
    buffer = records_of(message())

    batch = decode_records(buffer, record_starts(buffer, 0, ALL), few)

    assert batch.to_pylist() == [{"body": b"body", "topic": "T"}]


def test_ipv6_hosts_use_the_scalar_decoder() -> None:
    buffer = records_of(message(born_host=bytes(16) + V4[4:]))

    with pytest.raises(NotUniform):
        RecordColumns(buffer, [0], context_of())
    assert both(buffer, context_of())[0].column("born_host").to_pylist() == [
        "[0:0:0:0:0:0:0:0]:10911"
    ]


def test_tags_with_the_same_hash_are_filtered_out() -> None:
    texts = ["TAGS\x01Aa", "TAGS\x01BB", "", "TAGS\x01x"]  # "Aa" and "BB" have the same hash
    buffer = records_of(*(message(properties=text) for text in texts))
    wanted = msgspec.structs.replace(context_of(), tags=("Aa", "x"))

    fast, plain = both(buffer, wanted)

    assert fast.column("tags").to_pylist() == ["Aa", "x"]
    assert rows_of(fast) == rows_of(plain)


def test_keys_and_tags_of_a_condition_are_compared_exactly() -> None:
    """The search for bytes of keys leaves candidates; both decoders select from them."""
    texts = [
        "KEYS\x01k1",
        "KEYS\x01k1 k2\x02TAGS\x01x",
        "KEYS\x01k12",
        "XKEYS\x01k1",
        "KEYS\x01k1\x02TAGS\x01x",
    ]
    bodies = [message(properties=text) for text in texts]
    buffer = records_of(*bodies, message(body=b"KEYS\x01k1"))
    starts = record_starts(buffer, 0, 1 << 60)
    assert list(candidates(buffer, starts, ("k1",))) == starts
    assert candidates(buffer, starts, ("k3",)) == []
    for keys, tags, count in ((("k1",), (), 2), (("k1", "k12"), (), 3), (("k1",), ("x",), 1)):
        wanted = msgspec.structs.replace(context_of(), keys=keys, tags=tags)
        fast, plain = both(buffer, wanted)
        assert fast.num_rows == count
        assert rows_of(fast) == rows_of(plain)
