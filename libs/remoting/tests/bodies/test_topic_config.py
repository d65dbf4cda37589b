# SPDX-License-Identifier: Apache-2.0
"""Broker registrations, plain and compressed."""

import struct
import zlib

import pytest

from cometmq.remoting.bodies.codec import REGISTER
from cometmq.remoting.bodies.registrations import INFLATED_BYTES_MAX
from cometmq.remoting.bodies.topic_config import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigTable,
    encode_register_body,
)
from cometmq.remoting.errors import RemoteProtocolError

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


VERSION = b'{"counter":3,"timestamp":1700000000000}'


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
def test_a_broken_registration_is_refused(plain: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        REGISTER.decode(zlib.compress(plain))


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
