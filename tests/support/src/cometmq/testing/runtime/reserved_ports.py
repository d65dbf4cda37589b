# SPDX-License-Identifier: Apache-2.0
"""Reserve free loopback ports for servers that start later, or that stop and start again.

A server that restarts may find its port in use if the port is ephemeral, which the kernel gives to
outgoing connections, or above 22,000, where programs choose theirs. The ports of this module are
below. Each stays reserved until this process ends, whether its server is up or down. To reserve a
block of TCP ports, a process holds the UDP port with the block's first number, which leaves no file
behind.
"""

import secrets
import socket
from collections.abc import Collection
from typing import Final

from cometmq.runtime.places import is_free

HOST: Final = "127.0.0.1"
BROKER_NEIGHBOURS: Final = (-2, 0, 1)
"""Distances of the ports that a broker needs: two below (VIP), its own, and one above (slaves)."""
# Above the well-known ports of brokers.
_PORTS: Final = range(12_000, 22_000)
_BLOCK: Final = 50  # one descriptor each
_rest: Final[list[range]] = []  # what this process has not yet given out of its last block


def reserve_port(distances: Collection[int] = (0,)) -> int:
    """Reserve a free port and its neighbours at the given distances; return the port.

    Raise OSError if none was found. Child processes may use the port; after a fork, only one of the
    two processes may reserve further ports.
    """
    span = max(distances) - min(distances) + 1
    while True:
        rest = _rest.pop() if _rest else _reserve_block()
        if len(rest) < span:
            continue
        _rest.append(rest[span:])
        port = rest[0] - min(distances)
        if all(is_free(HOST, port + distance) for distance in distances):
            return port


def _reserve_block() -> range:
    firsts = _PORTS[::_BLOCK]
    for first in secrets.SystemRandom().sample(firsts, len(firsts)):
        holder = socket.socket(type=socket.SOCK_DGRAM)
        try:
            holder.bind((HOST, first))
        except OSError:
            holder.close()
        else:
            holder.detach()  # only the end of the process closes it
            return range(first, first + _BLOCK)
    raise OSError(f"all ports of {_PORTS[0]}..{_PORTS[-1]} are reserved")
