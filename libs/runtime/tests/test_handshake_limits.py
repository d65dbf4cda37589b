# SPDX-License-Identifier: Apache-2.0
"""The transport enforces the limits of frames and TLS handshakes that the reference shows."""

import asyncio
from contextlib import AsyncExitStack

from cometmq.remoting.frame import FRAME_BYTES_MAX, REQUEST_HEADER_BYTES_MAX
from cometmq.remoting.transport.server import Server
from cometmq.remoting.transport.settings import ServerSettings

DEADLINE_S = 60


async def test_larger_frames_and_headers_end_their_connection() -> None:
    frame, header = FRAME_BYTES_MAX, REQUEST_HEADER_BYTES_MAX
    async with AsyncExitStack() as stack:
        server = Server({}, None, ServerSettings(), clock_ms=lambda: 0)
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
