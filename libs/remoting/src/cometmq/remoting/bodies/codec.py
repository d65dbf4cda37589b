# SPDX-License-Identifier: Apache-2.0
"""Codecs that convert bodies between bytes and values."""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from cometmq.remoting.bodies.dialect import decode_json, encode_json
from cometmq.remoting.bodies.registrations import decode_registration
from cometmq.remoting.bodies.topic_config import (
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigTable,
    encode_register_body,
)
from cometmq.remoting.errors import RemoteProtocolError
from cometmq.remoting.message.batch import BatchItem, join_batch, split_batch
from cometmq.remoting.message.record import MessageRecord, decode_records
from cometmq.remoting.types import Buffer

T = TypeVar("T")


class BodyCodec(Generic[T]):
    """A decoder and an encoder of one kind of body.

    `decode` raises RemoteProtocolError for malformed JSON or text, and CorruptRecord for malformed
    messages. `encode` is None for values that cannot be written back, such as stored records.
    """

    __slots__ = ("decode", "encode", "name", "type")

    def __init__(
        self,
        name: str,
        type_: Any,
        *,
        decode: Callable[[Buffer], T],
        encode: Callable[[T], bytes] | None,
    ) -> None:
        self.name = name
        self.type = type_
        self.decode = decode
        self.encode = encode

    def __repr__(self) -> str:
        return f"BodyCodec({self.name})"


def json_body(type_: type[T]) -> BodyCodec[T]:
    """Return a codec for JSON bodies of this type."""

    def decode(data: Buffer) -> T:
        return decode_json(type_, data)

    return BodyCodec(f"JSON `{type_.__name__}`", type_, decode=decode, encode=encode_json)


def _decode_text(data: Buffer) -> str:
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError as exc:
        raise RemoteProtocolError(f"a text body is not UTF-8: {exc}") from exc


def _encode_text(text: str) -> bytes:
    return text.encode("utf-8", "replace")


PROPERTIES_TEXT: BodyCodec[str] = BodyCodec(
    "lines `key=value`", str, decode=_decode_text, encode=_encode_text
)
BYTES: BodyCodec[bytes] = BodyCodec("message body", bytes, decode=bytes, encode=bytes)
BATCH: BodyCodec[list[BatchItem]] = BodyCodec(
    "batch items", list, decode=split_batch, encode=join_batch
)
RECORDS: BodyCodec[list[MessageRecord]] = BodyCodec(
    "message records", list, decode=decode_records, encode=None
)


def _decode_register(data: Buffer) -> RegisterBrokerBody:
    """Detect the form from the first byte: JSON begins with a brace, zlib with 0x78."""
    if bytes(data[:1]) != b"x":
        return decode_json(RegisterBrokerBody, data)
    found = decode_registration(data, compressed=True)
    topics = {
        topic.topic_name: TopicConfig(
            topic_name=topic.topic_name,
            read_queue_nums=topic.read_queue_nums,
            write_queue_nums=topic.write_queue_nums,
            perm=topic.perm,
        )
        for topic in found.topics
    }
    return RegisterBrokerBody(found.filter_servers, TopicConfigTable(found.data_version, topics))


def _encode_register(body: RegisterBrokerBody) -> bytes:
    return encode_register_body(body, compressed=False)


REGISTER: BodyCodec[RegisterBrokerBody] = BodyCodec(
    "JSON `RegisterBrokerBody`, or its compressed form",
    RegisterBrokerBody,
    decode=_decode_register,
    encode=_encode_register,
)
