# SPDX-License-Identifier: Apache-2.0
"""Copies files over loopback without a protocol, to find the upper limit of the machine.

The sender uses sendfile, and the receiver writes all bytes to one file; neither syncs.
"""

import multiprocessing
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from macro.native import BenchError

CHUNK_BYTES: Final = 1 << 20
HOST: Final = "127.0.0.1"


def copy(sources: Sequence[Path], size: int, target: Path) -> float:
    """Copy the first `size` bytes of a sequence of files to one file; return the seconds taken."""
    with socket.create_server((HOST, 0)) as listener:
        port = listener.getsockname()[1]
        sender = multiprocessing.get_context("fork").Process(
            target=_send, args=(sources, size, port)
        )
        sender.start()
        connection, _ = listener.accept()
        started_s = time.monotonic()
        received = _receive(connection, target)
        elapsed_s = time.monotonic() - started_s
        sender.join()
    if received != size:
        raise BenchError(f"the plain copy has {received} of {size} bytes")
    return elapsed_s


def _receive(connection: socket.socket, target: Path) -> int:
    buffer, received = memoryview(bytearray(CHUNK_BYTES)), 0
    with connection, target.open("wb", buffering=0) as file:
        while count := connection.recv_into(buffer):
            file.write(buffer[:count])
            received += count
    return received


def _send(sources: Sequence[Path], size: int, port: int) -> None:
    with socket.create_connection((HOST, port)) as connection:
        for source in sources:
            if size <= 0:
                break
            with source.open("rb") as file:
                size -= connection.sendfile(file, count=min(size, source.stat().st_size))
