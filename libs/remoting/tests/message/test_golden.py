# SPDX-License-Identifier: Apache-2.0
"""Records written by a Java 4.9.4 broker are decoded and encoded again, byte for byte."""

import pytest

from cometmq.remoting.message.batch import BatchItem, join_batch, split_batch
from cometmq.remoting.message.compression import compress, decompress
from cometmq.remoting.message.flags import CompressionType, index_hash, tag_code
from cometmq.remoting.message.ids import offset_message_id, parse_offset_message_id
from cometmq.remoting.message.new_message import (
    NewMessage,
    encode_blank,
    encode_record,
    record_size,
)
from cometmq.remoting.message.properties import join_properties, parse_properties
from cometmq.remoting.message.record import (
    MessageRecord,
    ScanStatus,
    decode_record,
    decode_records,
    scan_record,
)

BORN = bytes.fromhex("0a0000020000c350")
STORE = bytes.fromhex("0a00000100002a9f")


def octets(text: str) -> bytes:
    return bytes.fromhex("".join(text.split()))


PLAIN = octets(
    """00000095 daa320a7 77d18982 00000000 00000007 0000000000000000 0000000000000000 00000000
    0000018bcfe56800 0a0000020000c350 000001a1f7b9e170 0a00000100002a9f 00000000 0000000000000000
    00000005 48656c6c6f 01 54 0034
    4b455953016b31206b32 02 554e49515f4b4559 01 374630303030303130303031 02 57414954 01 74727565
    02 54414753 01 54616741"""
)
IPV6 = octets(
    """0000006a daa320a7 77065916 00000000 00000007 0000000000000001 0000000000000095 00000010
    0000018bcfe56800 fe800000000000000000000000000001 0000c350 000001a1f7b9e1a5 0a00000100002a9f
    00000000 0000000000000000 00000002 7636 01 54 0000"""
)
BATCH_BODY = octets(
    """0000003f 00000000 00000000 00000000 00000002 6231 0027
    4b455953016b3302554e49515f4b45590155310257414954017472756502544147530154616742
    00000021 00000000 00000000 00000003 00000002 6232 0009 574149540174727565"""
)
BATCH_SECOND = octets(
    """0000007c daa320a7 5ec54a5a 00000000 00000003 0000000000000003 0000000000000199 00000000
    0000018bcfe56801 0a0000020000c350 000001a1f7b9e1ab 0a00000100002a9f 00000000 0000000000000000
    00000002 6232 01 54 001e 574149540174727565 02 434c5553544552016330 02 574149540174727565"""
)
HALF = octets(
    "000000c6daa320a77b5a41210000000000000007000000000000000000000000000002bd00000000000001a1f7b9e1"
    "bc0a0000020000c350000001a1f7b9e1bc0a00000100002a9f0000000000000000000000000000000468616c661852"
    "4d515f5359535f5452414e535f48414c465f544f504943004f5245414c5f544f5049430154025452414e5f4d534701"
    "7472756502554e49515f4b4559015548025047524f5550017067025741495401747275650254414753015461674102"
    "5245414c5f5149440132"
)
COMMITTED = octets(
    "000000afdaa320a77b5a412100000002000000070000000000000000000000000000038300000008000001a1f7b9e1"
    "bc0a0000020000c350000001a1f7b9e1cd0a00000100002a9f0000000000000000000002bd0000000468616c660154"
    "004f5245414c5f544f5049430154025452414e5f4d5347017472756502554e49515f4b4559015548025047524f5550"
    "01706702574149540174727565025441475301546167410252"
    "45414c5f5149440132"
)
OPERATION = octets(
    "00000087daa320a774dbdf2100000000000000000000000000000000000000000000043200000000000001a1f7b9e1"
    "d67f000001000078bf000001a1f7b9e1d87f000001000078bf00000000000000000000000000000001301b524d515f"
    "5359535f5452414e535f4f505f48414c465f544f504943001057414954017472756502544147530164"
)
DELAYED = octets(
    "000000a8daa320a76c814a37000000000000000700000000000000000000000000000215000000000000018bcfe568"
    "000a0000020000c350000001a1f7b9e1bc0a00000100002a9f0000000000000000000000000000000764656c617965"
    "64135343484544554c455f544f5049435f5858585800335245414c5f544f50494301540244454c4159013102574149"
    "54017472756502544147530154616741025245414c5f5149440131"
)
RECORDS = [PLAIN, IPV6, BATCH_SECOND, HALF, COMMITTED, OPERATION, DELAYED]


def encode_again(record: MessageRecord) -> bytes:
    return encode_record(
        record.to_new_message(), record.queue_offset, record.physical_offset, record.store_timestamp
    )


@pytest.mark.parametrize("stored", RECORDS)
def test_a_java_record_is_encoded_to_the_same_bytes(stored: bytes) -> None:
    record = decode_record(stored, check_crc=True)
    assert record.size == len(stored)
    assert record_size(record.to_new_message()) == len(stored)
    assert encode_again(record) == stored


def test_the_plain_record_has_the_fields_that_java_wrote() -> None:
    record = decode_record(PLAIN, check_crc=True)
    assert (record.topic, record.queue_id, record.flag, record.body) == ("T", 0, 7, b"Hello")
    assert record.body_crc == 2010220930
    assert (record.born_timestamp, record.store_timestamp) == (1700000000000, 1795157516656)
    assert (record.born_host, record.store_host) == (BORN, STORE)
    assert record.keys == ("k1", "k2")
    assert (record.tags, record.unique_key) == ("TagA", "7F0000010001")
    assert record.offset_message_id == "0A00000100002A9F0000000000000000"


def test_the_layout_bits_follow_the_hosts_and_not_the_client() -> None:
    message = NewMessage("T", 0, 7, 0xF0, 1700000000000, BORN, STORE, b"Hello")
    assert decode_record(encode_record(message, 0, 0, 1)).sys_flag == 0
    message.born_host = bytes.fromhex("fe8000000000000000000000000000010000c350")
    assert decode_record(encode_record(message, 0, 0, 1)).sys_flag == 0x10


def test_batch_items_become_the_records_that_java_stores() -> None:
    first, second = split_batch(BATCH_BODY)
    assert (first.flag, bytes(first.body)) == (0, b"b1")
    assert parse_properties(first.properties) == {
        "KEYS": "k3",
        "UNIQ_KEY": "U1",
        "WAIT": "true",
        "TAGS": "TagB",
    }
    properties = join_properties(second.properties, "CLUSTER\x01c0\x02WAIT\x01true")
    message = NewMessage(
        "T", 0, second.flag, 0, 1700000000001, BORN, STORE, second.body, properties
    )
    assert encode_record(message, 3, 409, 0x1A1F7B9E1AB) == BATCH_SECOND


def test_a_batch_is_joined_to_the_bytes_that_java_sends() -> None:
    items = [BatchItem(item.flag, bytes(item.body), item.properties) for item in _batch()]
    assert join_batch(items) == BATCH_BODY


def _batch() -> list[BatchItem]:
    return split_batch(BATCH_BODY)


def test_batch_ids_name_both_records() -> None:
    ids = [offset_message_id(STORE, offset) for offset in (0xFF, 0x199)]
    assert ids == ["0A00000100002A9F00000000000000FF", "0A00000100002A9F0000000000000199"]
    assert parse_offset_message_id(ids[1]) == (STORE, 409)


def test_the_blank_tail_is_recognised() -> None:
    tail = octets("00000026 cbd43194") + bytes(30)
    assert encode_blank(38) == tail[:8]
    scan = scan_record(tail)
    assert (scan.status, scan.size) == (ScanStatus.BLANK, 38)


def test_a_pull_answer_is_many_records() -> None:
    records = decode_records(b"".join(RECORDS))
    assert [record.size for record in records] == [len(stored) for stored in RECORDS]


@pytest.mark.parametrize("stored", RECORDS)
def test_scan_sees_what_decode_sees(stored: bytes) -> None:
    record = decode_record(stored)
    scan = scan_record(b"xx" + stored + b"yy", 2, check_crc=True)
    assert (scan.status, scan.size) == (ScanStatus.RECORD, record.size)
    assert (scan.topic, scan.queue_id) == (record.topic, record.queue_id)
    assert (scan.queue_offset, scan.physical_offset) == (
        record.queue_offset,
        record.physical_offset,
    )
    assert (scan.sys_flag, scan.store_timestamp) == (record.sys_flag, record.store_timestamp)
    assert scan.prepared_offset == record.prepared_offset
    assert scan.properties.decode() == record.properties_text


def test_tag_codes_and_index_hashes_are_those_of_java() -> None:
    assert tag_code("TagA") == 0x27A807
    assert tag_code("TagB") == 0x27A808
    assert tag_code("d") == 100
    assert tag_code("标签") == 857175
    assert tag_code("\U0001f600") == 1772899
    assert index_hash("T", "7F0000010001") == 0x6B12A980
    assert index_hash("T", "k1") == 0x0026BFB5
    assert index_hash("RMQ_SYS_TRANS_HALF_TOPIC", "UH2") == 0x2078C511


@pytest.mark.parametrize(
    ("kind", "stored"),
    [
        (CompressionType.ZLIB, "785e4b4c240e000036eb0f29"),
        (CompressionType.LZ4, "04224d186070730b0000001f6101000f50616161616100000000"),
        (CompressionType.ZSTD, "28b52ffd005844000010616101001f8005010000"),
    ],
)
def test_bodies_that_java_compressed_are_read(kind: CompressionType, stored: str) -> None:
    assert decompress(bytes.fromhex(stored), kind) == b"a" * 40
    assert decompress(compress(b"a" * 40, kind), kind) == b"a" * 40
