# SPDX-License-Identifier: Apache-2.0
"""A hostile frame costs a name server at most ten times its size in memory."""

import struct
import tracemalloc
from contextlib import suppress

import pytest

from cometmq.remoting.errors import RemoteProtocolError
from cometmq.remoting.raw import RawCommand
from cometmq.testing.remoting.frames import encode_frame

SLACK_BYTES = 256 * 1024
ADDRESS = {"brokerName": "a", "brokerAddr": "h:1", "clusterName": "c", "brokerId": "0"}


def with_head(head):
    return struct.pack(">II", 4 + len(head), len(head)) + head


def with_body(code, body, **ext):
    return encode_frame(RawCommand(code=code, opaque=1, ext=ext, body=body))


FIELDS = b",".join(b'"%x":"b"' % number for number in range(150_000))
FRAMES = {
    "fields of a registration": with_head(b'{"code":103,"opaque":1,"extFields":{' + FIELDS + b"}}"),
    "fields of an unknown code": with_head(
        b'{"code":999,"opaque":1,"extFields":{' + FIELDS + b"}}"
    ),
    "nested fields": with_head(
        b'{"code":999,"opaque":1,"extFields":{"a":[' + b"[]," * 200_000 + b"1]}}"
    ),
    "a data version": with_body(322, b"[" + b"{}," * 200_000 + b"1]", **ADDRESS),
    "settings": with_body(318, b"\n".join(b"%x=1" % number for number in range(200_000))),
    "topics": with_body(
        103,
        b'{"topicConfigSerializeWrapper":{"topicConfigTable":{'
        + b",".join(b'"%x":{}' % number for number in range(100_000))
        + b"}}}",
        haServerAddr="h:2",
        **ADDRESS,
    ),
}


@pytest.mark.parametrize("name", FRAMES)
async def test_a_frame_costs_at_most_ten_times_its_size(link, name):
    frame = FRAMES[name]
    tracemalloc.start()
    try:
        with suppress(RemoteProtocolError):  # the connection ends
            await link.exchange(frame)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak <= 10 * len(frame) + SLACK_BYTES
