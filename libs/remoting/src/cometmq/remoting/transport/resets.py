# SPDX-License-Identifier: Apache-2.0
"""How the kernel ends a connection when its socket is closed, or its process dies.

Java clients (4.9) fail the requests that wait on a connection at once if it is reset. After an
orderly end they wait for their timeouts: a pull for 30 s. So the sockets of a server are set to
reset their connections unless the program closes them itself. Otherwise, consumers would wait for
the pulls that a killed broker held.
"""

import asyncio
import socket
import struct
from contextlib import suppress
from typing import Final

_LINGER: Final = struct.Struct("ii")
_RESET: Final = _LINGER.pack(1, 0)
_SEND: Final = _LINGER.pack(0, 0)


def set_reset(transport: asyncio.BaseTransport, *, is_on: bool) -> None:
    """Choose whether closing the socket resets the connection, or sends what is left and ends it.

    Do nothing if the transport has no open socket.
    """
    fileno = getattr(transport.get_extra_info("socket"), "fileno", None)
    number = -1 if fileno is None else fileno()
    if number < 0:
        return
    # uvloop's sockets have no setsockopt.
    ours = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, fileno=number)
    try:
        with suppress(OSError):  # the connection has ended
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET if is_on else _SEND)
    finally:
        ours.detach()
