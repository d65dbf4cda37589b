# SPDX-License-Identifier: Apache-2.0
"""The documented limits of frames and TLS handshakes are those that the transport enforces."""

import asyncio
from contextlib import AsyncExitStack

from cometmq.remoting.transport.peer.tls_state import (
    HANDSHAKE_BYTES_MAX,
    HANDSHAKE_TIMEOUT_MS,
    HOST_SHARE,
)
from cometmq.remoting.transport.server import Server
from cometmq.remoting.transport.settings import ServerSettings
from cometmq.remoting.transport.tls import IDLE_RECORDS_MAX
from cometmq.runtime.limits import FRAME_LIMITS, HANDSHAKE_LIMITS

DEADLINE_S = 60


async def test_the_table_of_limits_has_every_limit_of_handshakes() -> None:
    bounds = {limit.name: limit.fixed for limit in HANDSHAKE_LIMITS}
    assert bounds["handshakes"] == 100 // HOST_SHARE
    assert bounds["handshake_bytes"] == HANDSHAKE_BYTES_MAX
    assert bounds["handshake_ms"] == HANDSHAKE_TIMEOUT_MS
    assert bounds["idle_records"] == IDLE_RECORDS_MAX
    assert len(bounds) == len(HANDSHAKE_LIMITS) == 4


async def test_the_table_of_limits_has_every_limit_of_frames() -> None:
    settings = ServerSettings()
    bounds = {limit.name: limit.fixed for limit in FRAME_LIMITS}
    assert bounds.pop("unfinished_frame_bytes") == settings.frames_bytes_max
    frame, header = bounds.pop("frame_bytes"), bounds.pop("header_bytes")
    assert not bounds
    async with AsyncExitStack() as stack:
        server = Server({}, None, settings, clock_ms=lambda: 0)
        stack.push_async_callback(server.close, 0)
        port = await server.listen("127.0.0.1", 0)
        largest, *others = [
            await begin_frame(stack, port, *sizes)
            for sizes in ((frame, header), (frame + 1, header), (frame, header + 1))
        ]
        for reader in others:
            assert await asyncio.wait_for(reader.read(), DEADLINE_S) == b""
        assert not largest.at_eof()


async def begin_frame(
    stack: AsyncExitStack, port: int, frame_bytes: int, header_bytes: int
) -> asyncio.StreamReader:
    """Send what precedes the header of a frame."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    stack.push_async_callback(writer.wait_closed)
    stack.callback(writer.close)
    writer.write(frame_bytes.to_bytes(4, "big") + header_bytes.to_bytes(4, "big"))
    return reader
