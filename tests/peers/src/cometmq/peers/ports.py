# SPDX-License-Identifier: Apache-2.0
"""Free loopback ports that stay free while a server is down.

The kernel gives outgoing connections a port of its ephemeral range, so a server that stops and
starts again on such a port may find it taken. Ours come from below that range, by chance: test
runs side by side seldom meet, and a port in use is passed over.
"""

import contextlib
import secrets
import socket
from typing import Final

HOST: Final = "127.0.0.1"
# Above the well-known ports of brokers, below Linux's ephemeral range (32768 to 60999).
_PORTS: Final = range(12_000, 32_000)
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


def _free_port(neighbours: tuple[int, ...]) -> int:
    """A port that is free together with its neighbours."""
    for _ in range(_ATTEMPTS):
        port = _PORTS[secrets.randbelow(len(_PORTS))]
        if all(_is_free(port + distance) for distance in neighbours):
            return port
    raise OSError("no free port")


def free_port() -> int:
    """A port for a server with one listener."""
    return _free_port((0,))


def free_broker_port() -> int:
    """A listen port whose VIP and replication neighbours are free too."""
    return _free_port(_BROKER_NEIGHBOURS)
