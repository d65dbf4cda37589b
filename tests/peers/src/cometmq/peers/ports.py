# SPDX-License-Identifier: Apache-2.0
"""Free loopback ports."""

import contextlib
import socket
from typing import Final

HOST: Final = "127.0.0.1"
# A broker listens on p, on p - 2 (VIP) and, for replication, on p + 1.
_BROKER_NEIGHBOURS: Final = (-2, 0, 1)
_ATTEMPTS: Final = 200


def _is_free(port: int) -> bool:
    """Whether the port can be bound now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):
            probe.bind((HOST, port))
            return True
    return False


def free_port() -> int:
    """A port that the kernel hands out."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def free_broker_port() -> int:
    """A listen port whose VIP and replication neighbours are free too."""
    for _ in range(_ATTEMPTS):
        port = free_port()
        if all(_is_free(port + distance) for distance in _BROKER_NEIGHBOURS):
            return port
    raise OSError("no free broker port")
