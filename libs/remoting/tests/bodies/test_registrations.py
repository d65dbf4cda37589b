# SPDX-License-Identifier: Apache-2.0
"""Registrations as a name server reads them: both forms, and what hostile ones cost."""

import struct
import tracemalloc
import zlib
from collections.abc import Callable
from contextlib import suppress
from random import Random

import pytest

from cometmq.remoting.bodies.codec import REGISTER
from cometmq.remoting.bodies.registrations import (
    INFLATED_BYTES_MAX,
    SMALL_BYTES,
    decode_registration,
    decode_version,
    registration_steps,
)
from cometmq.remoting.bodies.topic_config import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigTable,
    encode_register_body,
)
from cometmq.remoting.errors import RemoteProtocolError

VERSION = b'{"counter":3,"timestamp":1700000000000}'


BODY = RegisterBrokerBody(
    ["127.0.0.1:1"],
    TopicConfigTable(
        DataVersion(3, 1700000000000),
        {"T": TopicConfig(perm=4, read_queue_nums=2, topic_name="T", write_queue_nums=1)},
    ),
)


def packed(*parts: bytes | int) -> bytes:
    return b"".join(
        struct.pack(">i", part) if isinstance(part, int) else struct.pack(">i", len(part)) + part
        for part in parts
    )


def table(*entries: bytes) -> bytes:
    topics = b",".join(entries)
    return b'{"topicConfigSerializeWrapper":{"topicConfigTable":{' + topics + b"}}}"


def topics(count: int) -> dict[str, TopicConfig]:
    return {
        name: TopicConfig(
            topic_name=name, read_queue_nums=3, topic_sys_flag=1, attributes={"a": "b"}
        )
        for name in (f"topic-{number}" for number in range(count))
    }


@pytest.mark.parametrize("compressed", [False, True])
def test_names_queues_and_permissions_are_read(compressed: bool) -> None:
    whole = TopicConfigTable(DataVersion(3, 5), topics(2_000))
    data = encode_register_body(RegisterBrokerBody(["1.2.3.4:5"], whole), compressed=compressed)
    found = decode_registration(data, compressed=compressed)
    assert (found.data_version, found.filter_servers) == (DataVersion(3, 5), ["1.2.3.4:5"])
    for _ in range(2):
        assert [
            (it.topic_name, it.read_queue_nums, it.write_queue_nums, it.perm) for it in found.topics
        ] == [(name, 3, 16, 6) for name in whole.topic_config_table]


def test_the_dialect_of_java_is_read() -> None:
    (topic,) = decode_registration(
        table(b"T:{perm:'4'}".replace(b"'", b'"')), compressed=False
    ).topics
    assert (topic.topic_name, topic.perm) == ("T", 4)


@pytest.mark.parametrize(
    "plain",
    [
        b"",
        packed(VERSION),
        packed(VERSION, -1),
        packed(VERSION, 2**31 - 1),
        packed(VERSION, 1, b"T 2 1 4"),
        packed(VERSION, 1, b"T 2 1 x SINGLE_TAG", b"[]"),
        packed(VERSION, 1, b"T 2 1 4 SINGLE_TAG", b"{}"),
        packed(-5),
        packed(b"nothing", 0, b"[]"),
    ],
)
def test_a_broken_compressed_registration_is_refused(plain: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_registration(zlib.compress(plain), compressed=True)
    with pytest.raises(RemoteProtocolError):
        REGISTER.decode(zlib.compress(plain))


def test_a_stream_that_ends_early_or_is_none_is_refused() -> None:
    with pytest.raises(RemoteProtocolError):
        decode_registration(b"garbage", compressed=True)
    with pytest.raises(RemoteProtocolError):
        decode_registration(zlib.compress(packed(VERSION, 0, b"[]"))[:-6], compressed=True)


HOSTILE: dict[str, Callable[[], tuple[bytes, bool]]] = {
    "nothing but braces": lambda: (b"[" + b"{}," * 300_000 + b"{}]", False),
    "nested arrays": lambda: (b"[" * 1_000_000, False),
    "topics without fields": lambda: (table(*(b'"%x":{}' % one for one in range(150_000))), False),
    "short topics": lambda: (
        table(*(b'"%06x":{"perm":70000,"x":"%s"}' % (one, b"y" * 32) for one in range(20_000))),
        False,
    ),
    "attributes": lambda: (
        table(b'"T":{"x":{' + b",".join(b'"%x":"y"' % one for one in range(90_000)) + b"}}"),
        False,
    ),
    "filter servers": lambda: (b'{"filterServerList":[' + b'"ab",' * 300_000 + b'"ab"]}', False),
    "the dialect": lambda: (b'{"filterServerList":[' + b"[]," * 300_000 + b"{0:1}]}", False),
    "wide characters": lambda: (b'{"x":"' + b"a" * 900_000 + b'\xf0\x9f\x98\x80",0:1}', False),
    "zeros": lambda: (zlib.compress(bytes(64 << 20), 9), True),
    "many lines": lambda: (
        zlib.compress(packed(VERSION, 1_000_000, *[b"t 1 1 6 S"] * 1_000_000), 9), True
    ),
    "a long line": lambda: (zlib.compress(packed(VERSION, 1, b"x" * 40_000_000, b"[]"), 9), True),
    "many filter servers": lambda: (
        zlib.compress(packed(VERSION, 0, b"[" + b'"ab",' * 200_000 + b'""]'), 9), True
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_body_costs_at_most_ten_times_its_size(name: str) -> None:
    data, compressed = HOSTILE[name]()
    tracemalloc.start()
    try:
        try:
            found = decode_registration(data, compressed=compressed)
            for _ in found.topics:
                pass
        except RemoteProtocolError:
            pass
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak <= 10 * len(data) + 4 * SMALL_BYTES


def test_a_data_version_is_short() -> None:
    assert decode_version(VERSION) == DataVersion(3, 1700000000000)
    with pytest.raises(RemoteProtocolError, match="5000 bytes is longer than 4096"):
        decode_version(b" " * 5_000)


BEGIN = packed(VERSION, 0, b"[]")
ENDLESS = zlib.compressobj(0)
STORED = ENDLESS.compress(BEGIN) + ENDLESS.flush(zlib.Z_SYNC_FLUSH)


LINES = [Random(number).randbytes(1_900).hex().encode() + b" 4 4 6 S" for number in range(999)]


@pytest.mark.parametrize(
    ("data", "steps"),
    [
        (zlib.compress(BEGIN + bytes(64 << 20)), 4),
        (STORED + b"\0\0\0\xff\xff" * (1 << 20), 5),  # empty blocks
        (zlib.compress(packed(VERSION, 999, *LINES, b"[]")), 3),
    ],
)
def test_a_step_inflates_one_mebibyte(data: bytes, steps: int) -> None:
    work, count = registration_steps(data, compressed=True), 0
    with suppress(RemoteProtocolError):
        for _ in work:
            count += 1
    assert count in (steps, steps + 1)  # pieces of the input give short ones


def test_long_lines_of_topics_are_refused() -> None:
    data = zlib.compress(packed(VERSION, 1, b"t" * 5_000 + b" 4 4 6 S", b"[]"))
    with pytest.raises(RemoteProtocolError, match="a part of 5008 bytes"):
        decode_registration(data, compressed=True)


# -- the whole body ---------------------------------------------------------------------------


@pytest.mark.parametrize("compressed", [False, True])
def test_a_registration_round_trips(compressed: bool) -> None:
    data = encode_register_body(BODY, compressed=compressed)
    assert REGISTER.decode(data) == BODY


def test_the_compressed_form_has_the_layout_of_java() -> None:
    plain = zlib.decompress(encode_register_body(BODY, compressed=True))
    assert plain == packed(VERSION, 1, b"T 2 1 4 SINGLE_TAG", b'["127.0.0.1:1"]')


def test_the_compressed_form_loses_what_it_loses_in_java() -> None:
    topic = TopicConfig(order=True, topic_name="T", topic_sys_flag=1)
    body = RegisterBrokerBody([], TopicConfigTable(topic_config_table={"T": topic}))
    again = REGISTER.decode(encode_register_body(body, compressed=True))
    found = again.topic_config_serialize_wrapper.topic_config_table["T"]
    assert (found.order, found.topic_sys_flag) == (False, 0)


def test_a_registration_that_is_no_zlib_stream_or_a_bomb_is_refused() -> None:
    with pytest.raises(RemoteProtocolError):
        REGISTER.decode(b"garbage")
    with pytest.raises(RemoteProtocolError):
        REGISTER.decode(zlib.compress(packed(VERSION, 0, b"[]"))[:-6])
    bomb = zlib.compress(packed(VERSION, 0, b"[]") + bytes(INFLATED_BYTES_MAX), 9)
    with pytest.raises(RemoteProtocolError, match="too large"):
        REGISTER.decode(bomb)


def test_the_next_version_counts_and_takes_the_time() -> None:
    assert DataVersion(3, 5).next_version(9) == DataVersion(4, 9)
