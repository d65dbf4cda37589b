# SPDX-License-Identifier: Apache-2.0
"""Incomplete frames take a bounded amount of memory, and none after their connection."""

import asyncio
import struct
from typing import Any

import pytest

from cometmq.remoting import OK, RequestCode
from cometmq.remoting.transport import ServerSettings

QUERY = RequestCode.QUERY_CONSUMER_OFFSET


async def test_incomplete_frames_are_bounded_between_two_checks(
    start_server: Any, eventually: Any, connect_raw: Any
) -> None:
    """A second is enough to send gigabytes."""
    settings = ServerSettings(buffered_bytes_max=4 * 1024 * 1024, check_interval_ms=3_600_000)
    server, port = await start_server({QUERY: lambda _, call: OK}, settings)
    for _ in range(6):
        _, writer = await connect_raw(port)
        writer.write(struct.pack(">II", 16 * 1024 * 1024, 100) + bytes(2 * 1024 * 1024))

    await eventually(lambda: server.stats().overflow_closed >= 3)
    await eventually(lambda: server.stats().buffered_bytes <= 5 * 1024 * 1024)


async def test_a_long_header_ends_the_connection_before_it_is_received(
    start_server: Any, connect_raw: Any
) -> None:
    """A header is decoded in one step, and before the account of its sender is known."""
    server, port = await start_server({QUERY: lambda _, call: OK})
    reader, writer = await connect_raw(port)

    writer.write(struct.pack(">II", 4 * 1024 * 1024, 2 * 1024 * 1024) + bytes(4_096))

    assert await asyncio.wait_for(reader.read(), 60) == b""
    assert server.stats().protocol_errors == 1


async def test_the_incomplete_frame_of_a_closed_connection_takes_no_memory(
    start_server: Any, eventually: Any, connect_raw: Any
) -> None:
    server, port = await start_server({QUERY: lambda _, call: OK})
    _, writer = await connect_raw(port)
    writer.write(struct.pack(">II", 8 * 1024 * 1024, 100) + bytes(4 * 1024 * 1024))
    await eventually(lambda: server.stats().buffered_bytes > 4 * 1024 * 1024)
    (peer,) = server.peers
    writer.transport.abort()
    await eventually(lambda: not server.peers)
    assert peer.buffered_bytes == 0


@pytest.mark.load
async def test_much_memory_of_incomplete_frames_is_returned(
    start_server: Any, eventually: Any, connect_raw: Any
) -> None:
    released: list[int] = []
    settings = ServerSettings(check_interval_ms=20)
    server, port = await start_server(
        {QUERY: lambda _, call: OK}, settings, release_memory=lambda: released.append(1)
    )
    writers = []
    for _ in range(4):
        _, writer = await connect_raw(port)
        writer.write(struct.pack(">II", 16 * 1024 * 1024, 100) + bytes(10 * 1024 * 1024))
        writers.append(writer)
    await eventually(lambda: server.stats().buffered_bytes > 40 * 1024 * 1024)
    await eventually(lambda: server._hub.memory._last_bytes > 40 * 1024 * 1024)
    assert not released
    for writer in writers:
        writer.transport.abort()
    await eventually(lambda: released)
