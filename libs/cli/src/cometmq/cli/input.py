# SPDX-License-Identifier: Apache-2.0
"""Reads lines from a file, a pipe or a keyboard without blocking the loop.

A daemon thread reads the bare file descriptor, so that waiting for a keyboard does not keep the
process from exiting.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from concurrent.futures import CancelledError
from pathlib import Path
from threading import Thread
from typing import Final

from cometmq.client.errors import InvalidArgument

CHUNK_BYTES: Final = 1 << 16
CHUNKS_MAX: Final = 8


def has_content(file: Path) -> bool:
    """Return whether a file has content that writing to it would destroy; devices and pipes have
    none.
    """
    return file.is_file() and file.stat().st_size > 0


async def read_lines(descriptor: int, *, bytes_max: int = sys.maxsize) -> AsyncIterator[bytes]:
    """Yield lines without their line feeds; raise OSError if reading fails, and InvalidArgument if
    a line is longer than `bytes_max`.
    """
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[bytes | OSError] = asyncio.Queue(CHUNKS_MAX)

    def read() -> None:
        chunk: bytes | OSError = b"-"
        while chunk and isinstance(chunk, bytes):
            try:
                chunk = os.read(descriptor, CHUNK_BYTES)
            except OSError as error:
                chunk = error
            waiting = chunks.put(chunk)
            try:
                asyncio.run_coroutine_threadsafe(waiting, loop).result()
            except (RuntimeError, CancelledError):  # the loop is closed, or about to be
                waiting.close()
                return

    Thread(target=read, name="read-lines", daemon=True).start()
    parts: list[bytes] = []  # of a line: joining them with each chunk would be quadratic
    while chunk := await chunks.get():
        if isinstance(chunk, OSError):
            raise chunk
        first, *lines = chunk.split(b"\n")
        parts.append(first)
        if len(parts) * CHUNK_BYTES > bytes_max and sum(map(len, parts)) > bytes_max:
            raise InvalidArgument(f"a line of the input has more than {bytes_max:,} bytes")
        for line in lines:
            yield b"".join(parts)
            parts = [line]
    if rest := b"".join(parts):
        yield rest
