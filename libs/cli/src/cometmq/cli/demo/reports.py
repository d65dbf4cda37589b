# SPDX-License-Identifier: Apache-2.0
"""What a consumer process writes to its standard output: reports, each behind its length."""

import asyncio
import struct
from collections.abc import AsyncIterator
from typing import Final

import msgspec

_LENGTH: Final = struct.Struct(">I")
_encoder = msgspec.msgpack.Encoder()


class Line(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One received message; `key` is file name, colon, line number."""

    key: str
    queue_id: int
    queue_offset: int
    text: bytes


class Report(msgspec.Struct, array_like=True, frozen=True):
    """Messages that were consumed, and how many queues the process has if that changed."""

    lines: list[Line] = []
    queue_count: int | None = None


_decoder = msgspec.msgpack.Decoder(Report)


def encode_report(report: Report) -> bytes:
    """Return the bytes of one report."""
    data = _encoder.encode(report)
    return _LENGTH.pack(len(data)) + data


async def read_reports(stream: asyncio.StreamReader) -> AsyncIterator[Report]:
    """Yield reports until the process ends."""
    while True:
        try:
            (length,) = _LENGTH.unpack(await stream.readexactly(_LENGTH.size))
            data = await stream.readexactly(length)
        except asyncio.IncompleteReadError:
            return
        yield _decoder.decode(data)
