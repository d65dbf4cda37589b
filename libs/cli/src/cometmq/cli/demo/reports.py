# SPDX-License-Identifier: Apache-2.0
"""Reports of a consumer process on its standard output, each preceded by its length."""

import asyncio
import struct
from collections.abc import AsyncIterator
from typing import Final

import msgspec

_LENGTH: Final = struct.Struct(">I")
_encoder = msgspec.msgpack.Encoder()


class Line(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One received message; `key` is the file name, a colon, and the line number."""

    key: str
    queue_id: int
    queue_offset: int
    text: bytes


class Report(msgspec.Struct, array_like=True, frozen=True):
    """A list of consumed messages, and the number of assigned queues if it has changed."""

    lines: list[Line] = []
    queue_count: int | None = None


_decoder = msgspec.msgpack.Decoder(Report)


def encode_report(report: Report) -> bytes:
    """Return an encoded report, preceded by its length."""
    data = _encoder.encode(report)
    return _LENGTH.pack(len(data)) + data


async def read_reports(stream: asyncio.StreamReader) -> AsyncIterator[Report]:
    """Yield reports until the process exits."""
    while True:
        try:
            (length,) = _LENGTH.unpack(await stream.readexactly(_LENGTH.size))
            data = await stream.readexactly(length)
        except asyncio.IncompleteReadError:
            return
        yield _decoder.decode(data)
