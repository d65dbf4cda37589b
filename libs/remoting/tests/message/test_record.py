# SPDX-License-Identifier: Apache-2.0
"""Records round-trip, and damage is detected at every byte."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.remoting.errors import CorruptRecord
from cometmq.remoting.message.batch import BatchItem, join_batch, split_batch
from cometmq.remoting.message.new_message import (
    NewMessage,
    encode_record,
    record_size,
)
from cometmq.remoting.message.record import ScanStatus, decode_record, decode_records, scan_record
from cometmq.remoting.message.record_layout import MAGIC_V2
from cometmq.testing.remoting.strategies import batch_items, new_messages

HOST = bytes([10, 0, 0, 1, 0, 0, 0x2A, 0x9F])


def message(**changes: object) -> NewMessage:
    fields: dict[str, object] = {
        "topic": "Topic",
        "queue_id": 3,
        "flag": 7,
        "sys_flag": 0,
        "born_timestamp": 1,
        "born_host": HOST,
        "store_host": HOST,
        "body": b"body",
        "properties": "TAGS\x01A",
    }
    return NewMessage(**(fields | changes))  # type: ignore[arg-type]  # test helper


@given(new_messages(), st.integers(0, 2**62), st.integers(0, 2**62), st.integers(0, 2**62))
def test_an_encoded_message_is_decoded_to_the_same(
    new: NewMessage, queue_offset: int, physical_offset: int, store_timestamp: int
) -> None:
    data = encode_record(new, queue_offset, physical_offset, store_timestamp)
    assert len(data) == record_size(new)
    record = decode_record(b"?" + data + b"?", 1, check_crc=True)
    assert record.size == len(data)
    assert (record.queue_offset, record.physical_offset) == (queue_offset, physical_offset)
    assert record.store_timestamp == store_timestamp
    again = record.to_new_message()
    assert (again.topic, again.body, again.properties) == (new.topic, new.body, new.properties)
    assert (again.born_host, again.store_host) == (new.born_host, new.store_host)
    assert again.sys_flag & 0xF0F == new.sys_flag & 0xF0F


@given(new_messages())
def test_scan_agrees_with_decode(new: NewMessage) -> None:
    data = encode_record(new, 5, 6, 7)
    scan = scan_record(data, check_crc=True)
    assert (scan.status, scan.size) == (ScanStatus.RECORD, len(data))
    assert (scan.topic, scan.queue_offset, scan.physical_offset) == (new.topic, 5, 6)
    assert str(scan.properties, "utf-8") == new.properties


def test_a_record_cut_anywhere_is_incomplete() -> None:
    data = encode_record(message(), 0, 0, 0)
    for length in range(len(data)):
        assert scan_record(data[:length]).status is ScanStatus.INCOMPLETE
        with pytest.raises(CorruptRecord):
            decode_record(data[:length])


@pytest.mark.parametrize("position", [0, 3, 4, 7, 8, 84, 88])
def test_a_flipped_byte_in_a_length_magic_or_crc_is_seen(position: int) -> None:
    data = bytearray(encode_record(message(), 0, 0, 0))
    data[position] ^= 0x41
    assert scan_record(data + bytes(200), check_crc=True).status is not ScanStatus.RECORD


@given(st.binary(max_size=300), st.integers(0, 300))
def test_arbitrary_bytes_never_surprise(data: bytes, offset: int) -> None:
    scan_record(data, offset, check_crc=True)
    with pytest.raises(CorruptRecord):
        decode_record(data, offset)


@given(st.integers(0, 148), st.integers(0, 255))
def test_a_changed_byte_gives_a_record_or_an_error(position: int, value: int) -> None:
    data = bytearray(encode_record(message(body=b"b" * 60), 0, 0, 0))
    data[position % len(data)] = value
    scan = scan_record(data)
    try:
        record = decode_record(data)
    except CorruptRecord:
        assert scan.status is not ScanStatus.RECORD
    else:
        assert (scan.status, scan.size) == (ScanStatus.RECORD, record.size)


def test_a_zeroed_area_is_not_a_record() -> None:
    assert scan_record(bytes(200)).status is ScanStatus.INVALID


def test_a_record_with_a_long_topic_of_5x_is_read() -> None:
    data = encode_record(message(), 0, 0, 0)
    head, tail = data[:92], data[93:]
    stored = bytearray(head + struct.pack(">h", 5) + tail)
    struct.pack_into(">ii", stored, 0, len(stored), MAGIC_V2)
    assert decode_record(stored).topic == "Topic"
    assert scan_record(stored).topic == "Topic"


def test_the_size_of_a_record_is_known_before_it_is_encoded() -> None:
    for it in [message(), message(body=b"other", properties="K\x01ü"), message(topic="ü" * 60)]:
        assert record_size(it) == len(encode_record(it, 5, 1000, 7))


def test_too_long_parts_are_refused_when_encoding() -> None:
    with pytest.raises(ValueError, match="127"):
        encode_record(message(topic="t" * 128), 0, 0, 0)
    with pytest.raises(ValueError, match="32767"):
        record_size(message(properties="ü" * 16384))
    with pytest.raises(ValueError, match="32767"):
        encode_record(message(properties="p" * 32768), 0, 0, 0)


def test_a_torn_pull_answer_is_an_error() -> None:
    data = encode_record(message(), 0, 0, 0)
    with pytest.raises(CorruptRecord):
        decode_records(data + data[:-1])


@given(st.lists(batch_items(), max_size=5))
def test_a_batch_round_trips(items: list[BatchItem]) -> None:
    found = split_batch(join_batch(items))
    assert [(item.flag, bytes(item.body), item.properties) for item in found] == [
        (item.flag, item.body, item.properties) for item in items
    ]


@given(st.binary(max_size=200))
def test_garbage_is_a_batch_or_a_corrupt_record(data: bytes) -> None:
    try:
        items = split_batch(data)
    except CorruptRecord:
        return
    assert sum(22 + len(item.body) for item in items) <= len(data)


def test_a_hostile_batch_length_is_refused() -> None:
    with pytest.raises(CorruptRecord):
        split_batch(struct.pack(">iiiii", 22, 0, 0, 0, -1) + b"\x00\x00")
    with pytest.raises(CorruptRecord):
        split_batch(struct.pack(">iiiiih", 22, 0, 0, 0, 0, -1))
