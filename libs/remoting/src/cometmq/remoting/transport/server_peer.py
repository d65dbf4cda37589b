# SPDX-License-Identifier: Apache-2.0
"""A connection to a server whose requests wait while there is no room for large answers.

Handlers of requests with large answers run only while `has_room`. Other requests are served
meanwhile, so a client that sends and consumes on one connection keeps sending. If several requests
wait, the server stops serving the connection (`Intake`).

Java clients (4.9) fail the requests that wait on a connection at once if it is reset. After an
orderly end they wait for their timeouts: a pull for 30 s. So the sockets of a server are set to
reset their connections unless the program closes them itself. Otherwise, consumers would wait for
the pulls that a killed broker held.
"""

import asyncio
import socket
import struct
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final

import msgspec

from cometmq.remoting.command import Call
from cometmq.remoting.errors import RemoteProtocolError
from cometmq.remoting.http_clients import Farewell, HttpSpoken
from cometmq.remoting.raw import Body
from cometmq.remoting.response_codes import ResponseCode
from cometmq.remoting.transport.dispatch import Dispatcher
from cometmq.remoting.transport.flow.budget import LARGE_BYTES
from cometmq.remoting.transport.flow.connected import UNSENT_OUTPUT, Connected
from cometmq.remoting.transport.hub import Hub
from cometmq.remoting.transport.peer.intake import Intake
from cometmq.remoting.transport.protocol import PeerProtocol

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


HTTP_LINGER_S: Final = 1.0
"""How long the connection stays open. A gRPC client first waits for the server's settings, then
opens the stream whose answer shows the reason.
"""


class HttpIntake(Intake):
    """Answers an HTTP client so that its user sees why it is not served."""

    def __init__(
        self, error: HttpSpoken, peer: Connected, hub: Hub, dispatcher: Dispatcher[Any]
    ) -> None:
        super().__init__(peer, hub, dispatcher)
        self._farewell = Farewell(error)
        hub.stats.protocol_errors += 1
        hub.log.warning("connection.refused", peer=peer.address, error=str(error))
        call: Call[None] = Call(error.code, None, peer=peer)
        dispatcher.note_refused(call, ResponseCode.SYSTEM_ERROR, str(error))
        hub.loop.call_later(HTTP_LINGER_S, self._end)
        self._send(self._farewell.feed(error.data))

    def receive(self, data: bytes) -> None:
        """Answer these bytes."""
        self._send(self._farewell.feed(data))

    def _end(self) -> None:
        if self._peer.is_open:
            self._send(self._farewell.end())
            self._peer.close()

    def _send(self, data: bytes) -> None:
        if data:
            self._outlet.append(data)
            self._outlet.flush()


_KERNEL_BYTES: Final = 4 << 20  # the largest send buffer, by default (tcp_wmem)


class ServerPeer(PeerProtocol):
    """A connection that a client has opened to this server."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the connection, which is reset if this process dies. If the server has too many,
        close this or another one at once.
        """
        set_reset(transport, is_on=True)
        super().connection_made(transport)
        hub = self._hub
        if len(hub.peers) > hub.places.connections_max:
            hub.stats.connections_refused += 1
            one: PeerProtocol = self
            if hub.places.connections_max:  # otherwise the server stops
                one = hub.places.yielder(self) or self
                hub.log.warning("connection.refused", peer=one.address, error="too many")
            one.abort()
        if self.is_open:
            hub.places.enter(self)

    def eof_received(self) -> bool:
        """Return True to close the transport soon (`Turns.end`), not now."""
        self._hub.turns.end(self, self._transport.close)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the connection and fail its pending requests: soon if the peer has reset it, now
        if this end closes it.
        """
        if not self._is_reset:
            set_reset(self._transport, is_on=False)
        if self.is_open and exc is not None:
            self.is_open = False
            self._hub.turns.end(self, partial(super().connection_lost, exc))
        else:
            super().connection_lost(exc)

    @property
    def has_room(self) -> bool:
        """Whether a large answer may be built now; otherwise, the request must wait."""
        hub, budget = self._hub, self._hub.budget
        if budget.turn_left <= 0 or hub.room.precedes(self):
            return False
        if budget.left > budget.plenty:
            return not self.reading.pauses & UNSENT_OUTPUT
        if budget.left <= budget.reserved_bytes:
            if hub.room and not self._reads_well:
                return False  # requests that wait are served first
            if not hub.room:
                budget.measure(hub.now_ms())
        return self.may_build

    @property
    def may_build(self) -> bool:
        """Whether a large answer may be built now, regardless of the requests that wait."""
        if self.reading.pauses & UNSENT_OUTPUT:
            return False
        return self._hub.budget.admits(self.outlet.held_bytes, reads_well=self._reads_well)

    @property
    def has_small_room(self) -> bool:
        """Whether an answer of at most LARGE_BYTES may be built now, although there is no room for
        a larger one: a peer that holds little waits for none of those that do not read.
        """
        hub, budget = self._hub, self._hub.budget
        is_full = budget.left <= -budget.reserved_bytes
        if is_full or self.reading.pauses & UNSENT_OUTPUT or hub.room.has(self):
            return False
        return self.outlet.held_bytes < LARGE_BYTES

    @property
    def is_crowded(self) -> bool:
        """Estimate on any thread, without measuring, whether a large answer would have to wait
        now.
        """
        if self.reading.pauses & UNSENT_OUTPUT:
            return True
        reads_well = self._reads_well
        return not self._hub.budget.admits(self.outlet.unsent_bytes, reads_well=reads_well)

    @property
    def _reads_well(self) -> bool:
        """Whether the peer has taken all answers, and more of them than the kernel can hold."""
        outlet = self.outlet
        is_empty = not (outlet.unsent_bytes or self.connection.out)
        return is_empty and outlet.written_bytes > _KERNEL_BYTES

    def when_room(self, work: Callable[[], None]) -> None:
        """Queue `work`: a later turn of the loop calls it when a large answer may be built. If the
        connection ends first, it is never called.
        """
        if self.is_open:
            self._hub.stats.requests_postponed += 1
            self._hub.budget.holders.add(self)
            self._hub.room.wait(self, work)

    def refuse(self, error: RemoteProtocolError) -> None:
        """End the connection of a peer that breaks the protocol: that of an HTTP client soon, after
        an answer that its user sees.
        """
        if isinstance(error, HttpSpoken) and self.is_open:
            old = self.intake
            self.intake = HttpIntake(error, self, self._hub, old.dispatcher)
            old.drop()
        else:
            super().refuse(error)

    def send(
        self,
        code: int,
        header: msgspec.Struct | None = None,
        body: Body = b"",
        ext: Mapping[str, str] | None = None,
    ) -> bool:
        """Send a oneway request; return False if the connection is closed or not writable."""
        if len(body) > LARGE_BYTES and not self.has_room:
            return False
        return super().send(code, header, body, ext)

    def check(self, now_ms: int) -> None:
        """Close the connection if it is idle, or if its peer has stopped reading."""
        is_stalled = self.outlet.unsent_bytes and self._hub.room.has(self)
        if is_stalled and not self.reading.pauses & UNSENT_OUTPUT:
            self.outlet.end_stall(now_ms)
        else:
            super().check(now_ms)
