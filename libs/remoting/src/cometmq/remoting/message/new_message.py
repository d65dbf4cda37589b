# SPDX-License-Identifier: Apache-2.0
"""Messages that are not stored yet, and the encoder for commit log records.

`encode_record` is a pure function from values to bytes: it uses no queues, files or clocks.
The store chooses the position of each record (`cometmq.store.writing.append`).

Hot path: `encode_record` runs once per message (budget 0.6 us, bench/micro/bench_record.py).
"""

import struct
from typing import Final
from zlib import crc32

import msgspec

from cometmq.remoting.message.flags import LAYOUT_MASK, SysFlag
from cometmq.remoting.message.properties import PROPERTIES_BYTES_MAX
from cometmq.remoting.message.record_layout import (
    CRC_MASK,
    FIXED,
    FIXED_V4,
    MAGIC_BLANK,
    MAGIC_V1,
    PROPERTIES_LENGTH_BYTES,
    SIZE_MAGIC,
    TOPIC_BYTES_MAX,
    V4_HOST_BYTES,
    V6_HOST_BYTES,
)
from cometmq.remoting.types import Buffer

_SHORT: Final = struct.Struct(">h")
_PACK_V4: Final = FIXED_V4.pack
_V4_HOSTS_BYTES: Final = 2 * V4_HOST_BYTES
_FIXED_BYTES_WITHOUT_HOSTS: Final = FIXED_V4.size - _V4_HOSTS_BYTES + PROPERTIES_LENGTH_BYTES
_KEEP_MASK: Final = ~LAYOUT_MASK

_WEIGHT_CHARS: Final = 64
_MEMO_SIZE_MAX: Final = 4096
_topic_fields: dict[str, bytes] = {}
# A table of packed lengths is 2x faster than Struct.pack: bench_record.py.
_LENGTHS: Final = tuple(_SHORT.pack(length) for length in range(1024))


class NewMessage(msgspec.Struct, gc=False):
    """A message that is not stored yet.

    `properties` is the final string. `tag_code`, `keys` (the unique key first) and `wait` repeat
    parts of it, so the store need not parse it again.
    """

    topic: str
    queue_id: int
    flag: int
    sys_flag: int
    born_timestamp: int
    born_host: bytes
    store_host: bytes
    body: Buffer
    properties: str = ""
    reconsume_times: int = 0
    prepared_offset: int = 0
    tag_code: int = 0
    keys: tuple[str, ...] = ()
    wait: bool = True


def weight_of(message: NewMessage) -> int:
    """Return the cost of a message, where a message with few properties and keys costs 1.

    Any 64 characters may be 64 properties or 32 keys, which take as long as such a message.
    """
    return 1 + len(message.properties) // _WEIGHT_CHARS


class StoredAgain(NewMessage, gc=False):
    """A copy of a message that a broker has acknowledged.

    The limit on the bodies of new messages does not apply to it: if an operator lowers the limit,
    messages that wait for their delivery must still be delivered.
    """


def _topic_field(topic: str) -> bytes:
    data = topic.encode("utf-8", "replace")
    if len(data) > TOPIC_BYTES_MAX:
        raise ValueError(f"a topic has at most {TOPIC_BYTES_MAX} bytes, not {len(data)}")
    if len(_topic_fields) >= _MEMO_SIZE_MAX:
        _topic_fields.clear()
    field = _topic_fields[topic] = bytes((len(data),)) + data
    return field


def record_size(message: NewMessage) -> int:
    """Return the number of bytes that the message occupies in the commit log.

    Raise ValueError if the topic or the properties are too long for a record.
    """
    text = message.properties
    length = len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
    if length > PROPERTIES_BYTES_MAX:
        raise ValueError(f"properties have at most {PROPERTIES_BYTES_MAX} bytes, not {length}")
    return (
        _FIXED_BYTES_WITHOUT_HOSTS
        + len(message.born_host)
        + len(message.store_host)
        + len(message.body)
        + len(_topic_fields.get(message.topic) or _topic_field(message.topic))
        + length
    )


def encode_record(
    message: NewMessage, queue_offset: int, physical_offset: int, store_timestamp: int
) -> bytes:
    """Return the record of a message.

    The layout bits of sysFlag are set from the lengths of the hosts, whatever the client has sent.
    Raise ValueError or struct.error if a value does not fit its field in the record.
    """
    body = message.body
    text = message.properties
    properties = text.encode() if text.isascii() else text.encode("utf-8", "replace")
    length = len(properties)
    topic = _topic_fields.get(message.topic) or _topic_field(message.topic)
    born_host = message.born_host
    store_host = message.store_host
    body_length = len(body)
    sys_flag = message.sys_flag & _KEEP_MASK
    hosts_length = len(born_host) + len(store_host)
    pack = _PACK_V4
    if hosts_length != _V4_HOSTS_BYTES:
        hosts = _host_bits(born_host, store_host)
        sys_flag |= hosts
        pack = FIXED[hosts].pack
    head = pack(
        _FIXED_BYTES_WITHOUT_HOSTS + hosts_length + body_length + len(topic) + length,
        MAGIC_V1,
        crc32(body) & CRC_MASK,
        message.queue_id,
        message.flag,
        queue_offset,
        physical_offset,
        sys_flag,
        message.born_timestamp,
        born_host,
        store_timestamp,
        store_host,
        message.reconsume_times,
        message.prepared_offset,
        body_length,
    )
    packed_length = _LENGTHS[length] if length < 1024 else _pack_length(length)
    return b"".join((head, body, topic, packed_length, properties))


def _pack_length(length: int) -> bytes:
    if length > PROPERTIES_BYTES_MAX:
        raise ValueError(f"properties have at most {PROPERTIES_BYTES_MAX} bytes, not {length}")
    return _SHORT.pack(length)


def _host_bits(born_host: bytes, store_host: bytes) -> int:
    bits = 0
    for host, bit in ((born_host, SysFlag.BORN_HOST_V6), (store_host, SysFlag.STORE_HOST_V6)):
        if len(host) == V6_HOST_BYTES:
            bits |= bit.value
        elif len(host) != V4_HOST_BYTES:
            raise ValueError(f"a host has 8 or 20 bytes, not {len(host)}")
    return bits


def encode_blank(bytes_left: int) -> bytes:
    """Return the blank that closes a commit log file; its size field covers all remaining bytes."""
    return SIZE_MAGIC.pack(bytes_left, MAGIC_BLANK)
