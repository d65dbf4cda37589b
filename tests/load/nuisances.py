# SPDX-License-Identifier: Apache-2.0
"""Runs misbehaving peers, each kind in its own process until it is killed."""

import asyncio
import ctypes
import multiprocessing
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from tests.load.frames import list_frame, pull_frame, send_frame

from cometmq.remoting.frame import FrameReader

FLOOD_TOPIC: Final = "flood"
BIG_TOPIC: Final = "big"
QUIET_TOPIC: Final = "quiet"
FLOOD_FRAMES: Final = 1_024
FLOOD_BODY: Final = b"f" * 128
FLOOD_NICE: Final = 10
LONG_TOPIC: Final = "long"
LIST_COUNT: Final = 10_000
LISTS: Final = 4
STALLED_PULLS: Final = 2_000
HOLD_MS: Final = 15_000
READ_BYTES: Final = 1 << 18
READY_S: Final = 30.0
_LIST: Final = list_frame(LONG_TOPIC, LIST_COUNT, 1)
_SO_ATTACH_FILTER: Final = 26
_DROP_ALL: Final = struct.pack("=HBBI", 0x06, 0, 0, 0)  # one instruction: return 0 bytes


def flood(address: str, connections: int, ready: Any) -> None:
    """Send at full speed without waiting for answers.

    The process has a low priority, so that it slows down others through the broker, and not by
    taking the processors that it shares with them.
    """
    os.nice(FLOOD_NICE)
    asyncio.run(_flood(address, connections, ready))


async def _flood(address: str, connections: int, ready: Any) -> None:
    host, _, port = address.rpartition(":")
    chunk = b"".join(send_frame(FLOOD_TOPIC, 0, FLOOD_BODY, n) for n in range(FLOOD_FRAMES))
    async with asyncio.TaskGroup() as group:
        for _ in range(connections):
            reader, writer = await asyncio.open_connection(host, int(port), limit=READ_BYTES)
            group.create_task(_write(writer, chunk))
            group.create_task(_drop_answers(reader))
        ready.set()


async def _write(writer: asyncio.StreamWriter, chunk: bytes) -> None:
    while True:
        writer.write(chunk)
        await writer.drain()
        await asyncio.sleep(0)


async def _drop_answers(reader: asyncio.StreamReader) -> None:
    while await reader.read(READ_BYTES):
        pass


class _Lister(asyncio.Protocol):
    """Asks for long lists, LISTS at a time, and reads them."""

    def __init__(self) -> None:
        self._frames = FrameReader()
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._transport.write(LISTS * _LIST)

    def data_received(self, data: bytes) -> None:
        self._transport.write(sum(1 for _ in self._frames.feed(data)) * _LIST)


def list_entries(address: str, connections: int, ready: Any) -> None:
    """Ask for long lists of queue entries on each connection, as fast as the answers are read."""
    os.nice(FLOOD_NICE)
    asyncio.run(_list_entries(address, connections, ready))


async def _list_entries(address: str, connections: int, ready: Any) -> None:
    host, _, port = address.rpartition(":")
    for _ in range(connections):
        await asyncio.get_running_loop().create_connection(_Lister, host, int(port))
    ready.set()
    await asyncio.Event().wait()


def stall(address: str, connections: int, ready: Any) -> None:
    """Request far more than a connection can buffer, and never read."""
    pulls = b"".join(pull_frame(BIG_TOPIC, 0, 0, n) for n in range(STALLED_PULLS))
    sockets = [_connected(address) for _ in range(connections)]
    for one in sockets:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        one.setblocking(False)
        one.send(pulls)  # as many as fit, because the broker stops reading
    ready.set()
    threading.Event().wait()


def vanish(address: str, connections: int, ready: Any) -> None:
    """Leave pulls held by the broker, then vanish.

    A socket filter drops all incoming packets, so nothing is acknowledged and no reset is sent, as
    if the cable had been cut.
    """
    program = ctypes.create_string_buffer(_DROP_ALL)
    filter_all = struct.pack("HL", 1, ctypes.addressof(program))
    sockets = [_connected(address) for _ in range(connections)]
    for number, one in enumerate(sockets):
        one.sendall(pull_frame(QUIET_TOPIC, 0, 0, number, hold_ms=HOLD_MS))
        one.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, filter_all)
    ready.set()
    threading.Event().wait()


def _connected(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)))


@contextmanager
def disturbing(
    kind: Callable[[str, int, Any], None], address: str, connections: int
) -> Iterator[None]:
    """Run peers of one kind inside the context; fail if they exit early."""
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    process = context.Process(target=kind, args=(address, connections, ready), daemon=True)
    process.start()
    try:
        assert ready.wait(READY_S), f"{kind.__name__} did not start"
        yield
        assert process.is_alive(), f"{kind.__name__} has ended"
    finally:
        process.kill()
        process.join()
