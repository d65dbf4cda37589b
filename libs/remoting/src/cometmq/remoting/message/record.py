# SPDX-License-Identifier: Apache-2.0
"""One message as the commit log holds it and as pulls deliver it.

Layout (docs/protocol/record.md): total size, magic, body CRC, queue id, flag, queue offset,
physical offset, sysFlag, born timestamp, born host, store timestamp, store host, reconsume
times, prepared transaction offset, body, topic, properties.

Hot path: `encode_record` once per stored message (budget 0.6 us), `scan_record` once per
record at recovery and on slaves (budget 1.2 us); bench/micro/bench_record.py.

Compatibility: records with a two-byte topic length (magic V2, written by 5.x) are read,
never written.
"""

import struct
from enum import IntEnum
from typing import Any, Final
from zlib import crc32

import msgspec

from cometmq.remoting.errors import CorruptRecord
from cometmq.remoting.message.compression import (
    DECOMPRESSED_BYTES_MAX,
    compression_type,
    decompress,
)
from cometmq.remoting.message.flags import LAYOUT_MASK, SysFlag, tag_code
from cometmq.remoting.message.ids import offset_message_id
from cometmq.remoting.message.properties import (
    PROPERTIES_BYTES_MAX,
    PropertyKey,
    index_keys,
    parse_properties,
)
from cometmq.remoting.types import Buffer

MAGIC_V1: Final = -626843481  # 0xDAA320A7
MAGIC_V2: Final = -626843477  # 0xDAA320AB
MAGIC_BLANK: Final = -875286124  # 0xCBD43194
BLANK_BYTES_MIN: Final = 8
TOPIC_BYTES_MAX: Final = 127
CRC_MASK: Final = 0x7FFFFFFF

V4_HOST_BYTES: Final = 8
V6_HOST_BYTES: Final = 20

_SIZE_MAGIC: Final = struct.Struct(">ii")
_INT: Final = struct.Struct(">i")
_SHORT: Final = struct.Struct(">h")
_SHORT_AT: Final = _SHORT.unpack_from


def _fixed_part(born_bytes: int, store_bytes: int) -> struct.Struct:
    """From total size to body length: everything before the first variable field."""
    return struct.Struct(f">iiIiiqqiq{born_bytes}sq{store_bytes}siqi")


_FIXED: Final = {
    born | store: _fixed_part(
        V6_HOST_BYTES if born else V4_HOST_BYTES, V6_HOST_BYTES if store else V4_HOST_BYTES
    )
    for born in (0, SysFlag.BORN_HOST_V6.value)
    for store in (0, SysFlag.STORE_HOST_V6.value)
}
_HOST_MASK: Final = SysFlag.BORN_HOST_V6.value | SysFlag.STORE_HOST_V6.value
_FIXED_V4: Final = _FIXED[0]
_FIXED_V4_PACK: Final = _FIXED_V4.pack
_FIXED_V4_BYTES: Final = _FIXED_V4.size
_KEEP_MASK: Final = ~LAYOUT_MASK

RECORD_BYTES_MIN: Final = _FIXED_V4_BYTES + 1 + 2


class NewMessage(msgspec.Struct, gc=False):
    """What a store needs to know of a message that it has not stored yet.

    `properties` is the final text; `tag_code`, `keys` (the unique key first) and `wait`
    are given beside it so that nothing parses the text again.
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


_MEMO_SIZE_MAX: Final = 4096
_topic_fields: dict[str, bytes] = {}
_LENGTHS: Final = tuple(_SHORT.pack(length) for length in range(1024))


def _topic_field(topic: str) -> bytes:
    data = topic.encode("utf-8", "replace")
    if len(data) > TOPIC_BYTES_MAX:
        raise ValueError(f"a topic has at most {TOPIC_BYTES_MAX} bytes, not {len(data)}")
    if len(_topic_fields) >= _MEMO_SIZE_MAX:
        _topic_fields.clear()
    field = _topic_fields[topic] = bytes((len(data),)) + data
    return field


def record_size(message: NewMessage) -> int:
    """Return how many bytes the message takes in the commit log."""
    properties = message.properties
    return (
        _FIXED_V4_BYTES
        + len(message.born_host)
        + len(message.store_host)
        - 2 * V4_HOST_BYTES
        + len(message.body)
        + len(_topic_fields.get(message.topic) or _topic_field(message.topic))
        + 2
        + (len(properties) if properties.isascii() else len(properties.encode("utf-8", "replace")))
    )


def encode_record(
    message: NewMessage, queue_offset: int, physical_offset: int, store_timestamp: int
) -> bytes:
    """Return the final bytes of a message at its place in the commit log.

    The layout bits of sysFlag follow the lengths of the hosts, whatever a client sent.
    """
    body = message.body
    text = message.properties
    properties = text.encode() if text.isascii() else text.encode("utf-8", "replace")
    length = len(properties)
    if length > PROPERTIES_BYTES_MAX:
        raise ValueError(f"properties have at most {PROPERTIES_BYTES_MAX} bytes, not {length}")
    topic = _topic_fields.get(message.topic) or _topic_field(message.topic)
    born_host = message.born_host
    store_host = message.store_host
    body_length = len(body)
    sys_flag = message.sys_flag & _KEEP_MASK
    if len(born_host) + len(store_host) == 2 * V4_HOST_BYTES:
        pack = _FIXED_V4_PACK
        size = _FIXED_V4_BYTES + body_length + len(topic) + 2 + length
    else:
        hosts = _host_bits(born_host, store_host)
        sys_flag |= hosts
        pack = _FIXED[hosts].pack
        size = _FIXED[hosts].size + body_length + len(topic) + 2 + length
    return b"".join(
        (
            pack(
                size,
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
            ),
            body,
            topic,
            # a table of packed lengths is 2x faster than Struct.pack: bench_record.py
            _LENGTHS[length] if length < 1024 else _SHORT.pack(length),
            properties,
        )
    )


def _host_bits(born_host: bytes, store_host: bytes) -> int:
    bits = 0
    for host, bit in ((born_host, SysFlag.BORN_HOST_V6), (store_host, SysFlag.STORE_HOST_V6)):
        if len(host) == V6_HOST_BYTES:
            bits |= bit.value
        elif len(host) != V4_HOST_BYTES:
            raise ValueError(f"a host has 8 or 20 bytes, not {len(host)}")
    return bits


def encode_blank(bytes_left: int) -> bytes:
    """Return the mark that closes a commit log file which the next record does not fit."""
    return _SIZE_MAGIC.pack(bytes_left, MAGIC_BLANK)


class MessageRecord(msgspec.Struct, gc=False):
    """A stored message with all its fields."""

    size: int
    magic: int
    body_crc: int
    queue_id: int
    flag: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    born_timestamp: int
    born_host: bytes
    store_timestamp: int
    store_host: bytes
    reconsume_times: int
    prepared_offset: int
    body: bytes
    topic: str
    properties_text: str
    parsed_properties: dict[str, str] | None = None

    @property
    def properties(self) -> dict[str, str]:
        """The pairs of the property text, parsed once; callers must not change them."""
        if self.parsed_properties is None:
            self.parsed_properties = parse_properties(self.properties_text)
        return self.parsed_properties

    @property
    def tags(self) -> str | None:
        """The tag of the message."""
        return self.properties.get(PropertyKey.TAGS)

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys that the sender gave, without the unique key."""
        return index_keys(None, self.properties.get(PropertyKey.KEYS))

    @property
    def unique_key(self) -> str | None:
        """The id that the producing client made."""
        return self.properties.get(PropertyKey.UNIQUE_KEY)

    @property
    def offset_message_id(self) -> str:
        """The id that names this stored record."""
        return offset_message_id(self.store_host, self.physical_offset)

    def decompressed_body(self, *, bytes_max: int = DECOMPRESSED_BYTES_MAX) -> bytes:
        """Return the body as it was sent; CorruptRecord when it cannot be restored."""
        return decompress(self.body, compression_type(self.sys_flag), bytes_max=bytes_max)

    def to_new_message(self) -> NewMessage:
        """Return the message as one to be stored again, as redelivery does."""
        return NewMessage(
            topic=self.topic,
            queue_id=self.queue_id,
            flag=self.flag,
            sys_flag=self.sys_flag,
            born_timestamp=self.born_timestamp,
            born_host=self.born_host,
            store_host=self.store_host,
            body=self.body,
            properties=self.properties_text,
            reconsume_times=self.reconsume_times,
            prepared_offset=self.prepared_offset,
            tag_code=tag_code(self.tags),
            keys=index_keys(self.unique_key, self.properties.get(PropertyKey.KEYS)),
        )


def decode_record(buffer: Buffer, offset: int = 0, *, check_crc: bool = False) -> MessageRecord:
    """Return the record that begins at `offset`; CorruptRecord if there is none."""
    if offset < 0 or len(buffer) - offset < RECORD_BYTES_MIN:
        raise CorruptRecord("a record is shorter than its fixed fields")
    magic = _INT.unpack_from(buffer, offset + 4)[0]
    if magic not in (MAGIC_V1, MAGIC_V2):
        raise CorruptRecord(f"a record has the magic {magic & 0xFFFFFFFF:#x}")
    sys_flag = _INT.unpack_from(buffer, offset + 36)[0]
    fixed = _FIXED[sys_flag & _HOST_MASK]
    view = memoryview(buffer)
    if offset + fixed.size > len(view):
        raise CorruptRecord("a record is shorter than its fixed fields")
    fields = fixed.unpack_from(view, offset)
    body_start = offset + fixed.size
    topic_start, topic_end, end = _variable_part(view, offset, fields[0], fields[-1], body_start)
    body = bytes(view[body_start : body_start + fields[-1]])
    if check_crc and crc32(body) & CRC_MASK != fields[2]:
        raise CorruptRecord("a record's body does not match its CRC")
    topic = str(view[topic_start:topic_end], "utf-8", "replace")
    properties = str(view[topic_end + 2 : end], "utf-8", "replace")
    values = (*fields[:-1], body, topic, properties)
    return MessageRecord(*values)


def decode_records(buffer: Buffer) -> list[MessageRecord]:
    """Return the records of a pull answer; a part of a record at the end is an error."""
    records: list[MessageRecord] = []
    offset = 0
    while offset < len(buffer):
        record = decode_record(buffer, offset)
        records.append(record)
        offset += record.size
    return records


def _variable_part(
    view: memoryview, offset: int, size: int, body_length: int, body_start: int
) -> tuple[int, int, int]:
    """Return where topic, its end and the record's end are; every length is checked."""
    end = offset + size
    length_at = body_start + body_length
    long_topic = _INT.unpack_from(view, offset + 4)[0] == MAGIC_V2
    topic_start = length_at + (2 if long_topic else 1)
    if body_length < 0 or end > len(view) or topic_start + 2 > end:
        raise CorruptRecord(f"a record of {size} bytes claims a body of {body_length}")
    topic_length = _SHORT.unpack_from(view, length_at)[0] if long_topic else view[length_at]
    topic_end = topic_start + topic_length
    if topic_length < 0 or topic_end + 2 > end:
        raise CorruptRecord(f"a record of {size} bytes claims a topic of {topic_length}")
    if topic_end + 2 + _SHORT.unpack_from(view, topic_end)[0] != end:
        raise CorruptRecord("a record's fields do not add up to its size")
    return topic_start, topic_end, end


def property_bytes(record: Buffer) -> bytes:
    """Return the property text of one whole record as it is stored; empty if it is damaged.

    Filters call it for each message that they look at: it takes 0.4 us, `scan_record` 1.2 us.
    """
    try:
        start = _FIXED[record[39] & _HOST_MASK].size
        topic_start = start + _INT.unpack_from(record, start - 4)[0]
        if record[7] == MAGIC_V1 & 0xFF:
            end = topic_start + 1 + record[topic_start]
        else:
            end = topic_start + 2 + _SHORT_AT(record, topic_start)[0]
        length = _SHORT_AT(record, end)[0]
    except (IndexError, struct.error):
        return b""
    return bytes(record[end + 2 : end + 2 + length])


class ScanStatus(IntEnum):
    """What lies at a place of the commit log."""

    RECORD = 0
    BLANK = 1  # rest of the file is unused
    INVALID = 2  # no record begins here, or a damaged one
    INCOMPLETE = 3  # the buffer ends before the record does


class Scan(msgspec.Struct, frozen=True, gc=False):
    """The part of a record that recovery and dispatch look at.

    `size` is 0 unless a record or a blank is there. `properties` is not decoded.
    A struct is made in a third of a named tuple's time.
    """

    status: ScanStatus
    size: int
    physical_offset: int = 0
    queue_id: int = 0
    queue_offset: int = 0
    sys_flag: int = 0
    store_timestamp: int = 0
    prepared_offset: int = 0
    topic: str = ""
    properties: bytes = b""


_RECORD: Final = ScanStatus.RECORD  # 30 ns less than the enum's attribute
_INVALID: Final = Scan(ScanStatus.INVALID, 0)
_INCOMPLETE: Final = Scan(ScanStatus.INCOMPLETE, 0)
_topic_names: dict[bytes, str] = {}


def scan_record(buffer: Buffer, offset: int = 0, *, check_crc: bool = False) -> Scan:
    """Look at what begins at `offset` without building a message; never raises.

    `buffer` may be longer than the record (a whole file, a window of it). A record that
    reaches beyond the buffer is INCOMPLETE: a caller that gave the whole file takes that
    as INVALID.
    """
    left = len(buffer) - offset
    if left < BLANK_BYTES_MIN:
        return _INCOMPLETE
    size, magic = _SIZE_MAGIC.unpack_from(buffer, offset)
    if magic == MAGIC_BLANK:
        return Scan(ScanStatus.BLANK, size) if size >= BLANK_BYTES_MIN else _INVALID
    if magic not in (MAGIC_V1, MAGIC_V2) or size < RECORD_BYTES_MIN:
        return _INVALID
    if left < size:
        return _INCOMPLETE
    # The low byte of sysFlag says how long the hosts are.
    fixed = _FIXED[buffer[offset + 39] & _HOST_MASK]
    if left < fixed.size:
        return _INVALID
    fields = fixed.unpack_from(buffer, offset)
    return _scan_variable(buffer, offset, fields, fixed.size, check_crc)


def _scan_variable(
    buffer: Buffer, offset: int, fields: tuple[Any, ...], fixed_size: int, check_crc: bool
) -> Scan:
    size = fields[0]
    end = offset + size
    body_start = offset + fixed_size
    body_end = body_start + fields[14]
    long_topic = fields[1] == MAGIC_V2
    topic_start = body_end + (2 if long_topic else 1)
    if body_end < body_start or topic_start + 2 > end:
        return _INVALID
    topic_length = _SHORT_AT(buffer, body_end)[0] if long_topic else buffer[body_end]
    topic_end = topic_start + topic_length
    if topic_length < 0 or topic_end + 2 > end:
        return _INVALID
    if topic_end + 2 + _SHORT_AT(buffer, topic_end)[0] != end:
        return _INVALID
    if check_crc and crc32(memoryview(buffer)[body_start:body_end]) & CRC_MASK != fields[2]:
        return _INVALID
    name = bytes(buffer[topic_start:topic_end])
    return Scan(
        _RECORD,
        size,
        fields[6],
        fields[3],
        fields[5],
        fields[7],
        fields[10],
        fields[13],
        _topic_names.get(name) or _topic_name(name),
        bytes(buffer[topic_end + 2 : end]),
    )


def _topic_name(name: bytes) -> str:
    if len(_topic_names) >= _MEMO_SIZE_MAX:
        _topic_names.clear()
    text = _topic_names[name] = str(name, "utf-8", "replace")
    return text
