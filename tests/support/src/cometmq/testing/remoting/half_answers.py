# SPDX-License-Identifier: Apache-2.0
"""A relay before a server that sends half of an answer and then keeps the connection open."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final

_PREFIX_BYTES: Final = 4
_SHOWN_BYTES_MIN: Final = 9
"""A frame's prefix and the beginning of its header."""


class HalfAnswers:
    """Relays connections to a server; a connection that begins while `is_broken` gets half of one
    answer.

    Later bytes of its client are relayed, but no further answer.
    """

    def __init__(self, port: int) -> None:
        """Relay to `port`, on loopback."""
        self._server_port = port
        self._ends: list[asyncio.StreamWriter] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.is_broken = True
        self.broken_count = 0
        """The number of connections that got half of an answer."""
        self.address = ""
        """Where clients connect."""

    async def start(self) -> None:
        """Listen on loopback."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        """Close all connections."""
        assert self._server is not None
        self._server.close()
        for end in self._ends:
            end.transport.abort()
        while self._tasks:
            await asyncio.wait(self._tasks)
        for end in self._ends:
            with contextlib.suppress(OSError):
                await end.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._ends.append(writer)
        is_broken = self.is_broken
        below, above = await asyncio.open_connection("127.0.0.1", self._server_port)
        self._ends.append(above)
        back = self._halve(below, writer) if is_broken else _relay(below, writer)
        for work in (_relay(reader, above), back):
            task = asyncio.get_running_loop().create_task(work)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _halve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            answers = await reader.read(65_536)  # of several requests, if they came close together
            if answers:
                self.broken_count += 1
                size = _PREFIX_BYTES + int.from_bytes(answers[:_PREFIX_BYTES], "big")
                writer.write(answers[: max(_SHOWN_BYTES_MIN, size // 2)])


async def _relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    writer.transport.abort()


@contextlib.asynccontextmanager
async def half_answers(address: str) -> AsyncIterator[HalfAnswers]:
    """Run a relay before the server at `address`, which is on loopback."""
    relay = HalfAnswers(int(address.rpartition(":")[2]))
    await relay.start()
    try:
        yield relay
    finally:
        await relay.close()
