# SPDX-License-Identifier: Apache-2.0
"""A connection as its parts and all shared objects know it: why it is not read or served, and its
end.

Once a connection has ended, its parts refer to `ENDED`. As long as a connection and its parts refer
to each other, only a full garbage collection would free them; such a collection visits all objects
of a program and holds the loop meanwhile. Without these references, a connection is freed as soon
as no other object uses it.

Some objects call a part after the end: a queue in which the connection waited, a thread that writes
its answers, or a handler that answers late. They then find a closed connection.
"""

import asyncio
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from cometmq.remoting.transport.settings import ConnectionSettings

if TYPE_CHECKING:
    from cometmq.remoting.transport.lane_peer import LanePeer
    from cometmq.remoting.transport.protocol import PeerProtocol

    Connected: TypeAlias = PeerProtocol
    LaneConnected: TypeAlias = LanePeer
else:  # the classes of connections import this module
    Connected = LaneConnected = Any

# Reasons not to read from a connection; several may apply at once.
UNSENT_OUTPUT: Final = 1  # the peer does not read its answers
BACKLOG: Final = 2  # received requests are waiting for the next turn
LEAVING: Final = 4  # this end is stopping and accepts no more requests
NO_ROOM: Final = 8  # requests wait until large answers may be built again
WORKING: Final = 16  # requests wait until the work of an earlier one has ended
HANDSHAKE: Final = 32  # the TLS handshake waits for its turn
LONG_FRAME: Final = 64  # unfinished frames take much memory, and others take their turn
CROWD: Final = 128  # many slow handlers run, and the connection has its share of them
ASKS_MUCH: Final = 256  # a server asks its client more than is fair
WAITS: Final = NO_ROOM | WORKING | CROWD | ASKS_MUCH


class Reading:
    """Pauses and resumes the reading of a transport, for any number of reasons at once."""

    def __init__(self, _peer: object, settings: ConnectionSettings) -> None:
        self._transport: asyncio.Transport = cast("asyncio.Transport", None)
        self._stops = ~UNSENT_OUTPUT if settings.reads_while_unsent else ~0
        self.pauses = 0

    def begin(self, transport: asyncio.Transport) -> None:
        """Control this transport, which is already reading."""
        self._transport = transport

    def pause(self, reason: int) -> None:
        """Stop reading until the reason is removed and `resume` is called."""
        self.pauses |= reason
        if reason & self._stops and not self._transport.is_closing():
            self._stop()

    def resume(self) -> None:
        """Read on, unless a reason remains."""
        if not (self.pauses & self._stops or self._transport.is_closing()):
            self._start()

    def drop(self) -> None:
        """Drop the transport, whose connection has ended."""

    def _stop(self) -> None:
        self._transport.pause_reading()

    def _start(self) -> None:
        self._transport.resume_reading()


class _Ended:
    """A closed connection that stands for all of them."""

    __slots__ = ()
    address = ""
    direct = None
    direct_bytes = 0
    direct_fd = -1
    fd = -1
    has_room = False
    is_encrypted = False
    is_limited = False
    is_open = False
    is_writable = False
    loan = None
    may_build = False
    has_small_room = False
    tls = None

    is_served = property(lambda _: True, lambda _, __: None)
    is_dirty = property(lambda _: True, lambda _, __: None)  # it has no output to be written
    habit = property(lambda _: 0, lambda _, __: None)

    @staticmethod
    def close(*_: object) -> None:
        """Do nothing: the connection has ended."""

    abort = refuse = note_long_frame = when_room = close


ENDED: Final[Any] = _Ended()
