# SPDX-License-Identifier: Apache-2.0
"""Assigns free loopback ports that remain free while a server is down.

The kernel assigns ephemeral ports to outgoing connections, so a server that restarts on such a port
may find it in use. Our ports are drawn at random from below that range, skipping ports in use. A
port remains reserved until this process ends, whether its server is up or down: all test runs on a
machine reserve ports by locking files in one folder.
"""

import contextlib
import fcntl
import os
import secrets
import socket
import tempfile
from pathlib import Path
from typing import Final

HOST: Final = "127.0.0.1"
# Above the well-known ports of brokers, and below the ports that programs choose themselves.
_PORTS: Final = range(12_000, 17_000)
# A broker listens on p, on p - 2 (VIP) and, for replication, on p + 1.
_BROKER_NEIGHBOURS: Final = (-2, 0, 1)
_ATTEMPTS: Final = 200
_LOCKS: Final = Path(tempfile.gettempdir()) / f"cometmq-ports-{os.getuid()}"


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):
            probe.bind((HOST, port))
            return True
    return False


def _reserve(port: int) -> int | None:
    """Lock a port until this process ends; return the descriptor, or None if it is in use."""
    descriptor = os.open(_LOCKS / str(port), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def _take(ports: list[int]) -> bool:
    held: list[int] = []
    for port in ports:
        descriptor = _reserve(port)
        if descriptor is not None:
            held.append(descriptor)
        if descriptor is None or not _is_free(port):
            for each in held:
                os.close(each)
            return False
    return True


def _free_port(neighbours: tuple[int, ...]) -> int:
    _LOCKS.mkdir(mode=0o700, exist_ok=True)
    for _ in range(_ATTEMPTS):
        port = _PORTS[secrets.randbelow(len(_PORTS))]
        if _take([port + distance for distance in neighbours]):
            return port
    raise OSError("no free port")


def free_port() -> int:
    return _free_port((0,))


def free_broker_port() -> int:
    return _free_port(_BROKER_NEIGHBOURS)
