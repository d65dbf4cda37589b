# SPDX-License-Identifier: Apache-2.0
"""The body of SEND_BATCH_MESSAGE: messages, each with its flag, body and properties.

Layout per item: int size, int magic, int crc, int flag, int body length, body, short properties
length, properties. Size, magic and CRC are ignored, as in Java brokers.
"""

import struct
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

import msgspec

from cometmq.remoting.errors import CorruptRecord
from cometmq.remoting.types import Buffer

_ITEM_HEAD: Final = struct.Struct(">iiiii")
_LENGTH: Final = struct.Struct(">h")
_FIXED_BYTES: Final = _ITEM_HEAD.size + _LENGTH.size


class BatchItem(msgspec.Struct, frozen=True, gc=False):
    """One message of a batch, without the fields that the request sets for all items."""

    flag: int
    body: Buffer
    properties: str = ""


def batch_items(body: Buffer) -> Iterator[BatchItem]:
    """Yield the items of a batch body; their bodies are slices of `body`, not copies.

    Raise CorruptRecord for a malformed batch: the sender gets MESSAGE_ILLEGAL, and the connection
    is kept open.
    """
    view = memoryview(body)
    end = len(view)
    offset = 0
    while offset < end:
        if end - offset < _FIXED_BYTES:
            raise CorruptRecord("a batch item ends early")
        _, _, _, flag, body_length = _ITEM_HEAD.unpack_from(view, offset)
        body_start = offset + _ITEM_HEAD.size
        body_end = body_start + body_length
        if body_length < 0 or body_end + _LENGTH.size > end:
            raise CorruptRecord(f"a batch item claims a body of {body_length} bytes")
        properties_length = _LENGTH.unpack_from(view, body_end)[0]
        offset = body_end + _LENGTH.size + properties_length
        if properties_length < 0 or offset > end:
            raise CorruptRecord(f"a batch item claims {properties_length} bytes of properties")
        properties = _text(view[body_end + _LENGTH.size : offset])
        yield BatchItem(flag, view[body_start:body_end], properties)


def split_batch(body: Buffer, count_max: int = sys.maxsize) -> list[BatchItem]:
    """Return the first items of a batch body, see `batch_items`."""
    return list(islice(batch_items(body), count_max))


def join_batch(items: Iterable[BatchItem]) -> bytes:
    """Encode the items as a batch body, byte for byte as the Java client does."""
    parts: list[Buffer] = []
    for item in items:
        properties = item.properties.encode("utf-8", "replace")
        size = _FIXED_BYTES + len(item.body) + len(properties)
        parts.append(_ITEM_HEAD.pack(size, 0, 0, item.flag, len(item.body)))
        parts.append(item.body)
        parts.append(_LENGTH.pack(len(properties)))
        parts.append(properties)
    return b"".join(parts)


def _text(data: memoryview) -> str:
    return str(data, "utf-8", "replace")
