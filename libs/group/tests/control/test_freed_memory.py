# SPDX-License-Identifier: Apache-2.0
"""A flood of HTTP/2 header frames costs memory only while it lasts."""

import asyncio
import contextlib
import struct
import time

import pytest

from cometmq.control.server import ControlServer
from cometmq.runtime.process.memory import GROWTH_BYTES, anonymous_bytes

HEADERS, SETTINGS, CONTINUATION = 1, 4, 9
FLOOD_S = 2.0
RETURN_S = 10.0


def frame(kind: int, stream: int, payload: bytes) -> bytes:
    """Return a frame without flags, so that a block of headers never ends."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, 0, stream) + payload


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, b"")
HEADER = b"\x00\x03x-a\x7f\x99\x74" + b"a" * (127 + 0x19 + (0x74 << 7))  # a literal of 15,000 bytes


async def flood(port: int, end_s: float) -> None:
    while time.monotonic() < end_s:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(PREFACE + frame(HEADERS, 1, HEADER))
                while time.monotonic() < end_s:
                    writer.write(frame(CONTINUATION, 1, HEADER) * 8)
                    await writer.drain()
            finally:
                writer.transport.abort()


@pytest.mark.load
async def test_the_memory_of_a_flood_of_headers_is_returned(
    server: ControlServer,
) -> None:
    before = anonymous_bytes()
    end_s = time.monotonic() + FLOOD_S
    async with asyncio.TaskGroup() as group:
        for _ in range(20):
            group.create_task(flood(server.port, end_s))
    async with asyncio.timeout(RETURN_S):
        while anonymous_bytes() > before + 2 * GROWTH_BYTES:  # noqa: ASYNC110  # no event
            await asyncio.sleep(0.1)
