# SPDX-License-Identifier: Apache-2.0
"""A connection to a server whose requests wait while there is no room for large answers.

Handlers of requests with large answers run only while ``has_room``. Other requests are served
meanwhile, so a client that sends and consumes on one connection keeps sending. If several requests
wait, the server stops serving the connection, and keeps what it has received as bytes: a decoded
request would take five times as much memory.
"""

import asyncio
import functools
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from cometmq.remoting.command import Call
from cometmq.remoting.errors import RemoteProtocolError
from cometmq.remoting.frame import frame_prefix
from cometmq.remoting.raw import Body
from cometmq.remoting.transport.dispatch import Dispatcher
from cometmq.remoting.transport.flow.budget import LARGE_BYTES
from cometmq.remoting.transport.flow.room import WAITING_MAX
from cometmq.remoting.transport.flow.turns import SLOW
from cometmq.remoting.transport.hub import Hub
from cometmq.remoting.transport.protocol import CALL_BYTES, UNSENT_OUTPUT, PeerProtocol
from cometmq.remoting.transport.resets import set_reset

_KERNEL_BYTES: Final = 4 << 20  # the largest send buffer, by default (tcp_wmem)

NO_ROOM: Final = 8
"""A reason not to serve a connection: requests wait until large answers may be built again."""
WORKING: Final = 16
"""Another reason: requests wait until the work of an earlier one has ended."""
WAITS: Final = NO_ROOM | WORKING


class RoomPeer(PeerProtocol):
    """A connection to a server."""

    def __init__(self, hub: "Hub[PeerProtocol]", dispatcher: Dispatcher[Any]) -> None:
        super().__init__(hub, dispatcher)
        self._held = b""  # received bytes that are not decoded yet
        self.direct_bytes = 0
        """The size of the answers sent directly, which the outbox does not count; native code stops
        counting at 64 MiB.
        """

    @property
    def buffered_bytes(self) -> int:
        """The approximate memory used by unsent output and by received bytes not yet served."""
        return super().buffered_bytes + len(self._held)

    @property
    def waiting_bytes(self) -> int:
        """The approximate memory used by the requests that wait for room."""
        return len(self._held) + self._hub.room.count_of(self) * CALL_BYTES

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the connection with the hub; it is reset if this process dies."""
        set_reset(transport, is_on=True)
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the connection and fail its pending requests."""
        if not self._is_reset:
            set_reset(self._transport, is_on=False)
        self._held = b""
        self._hub.room.drop(self)
        super().connection_lost(exc)

    @property
    def has_room(self) -> bool:
        """Whether a large answer may be built now; otherwise, the request must wait."""
        hub, budget = self._hub, self._hub.budget
        if budget.turn_left <= 0 or hub.room.precedes(self):
            return False
        if budget.left > budget.plenty:
            return not self._pauses & UNSENT_OUTPUT
        if budget.left <= budget.reserved_bytes:
            if hub.room and not self._reads_well:
                return False  # requests that wait are served first
            if not hub.room:
                budget.measure(hub.now_ms())
        return self.may_build

    @property
    def may_build(self) -> bool:
        """Whether a large answer may be built now, regardless of the requests that wait."""
        if self._pauses & UNSENT_OUTPUT:
            return False
        return self._hub.budget.admits(self.held_bytes, reads_well=self._reads_well)

    @property
    def _reads_well(self) -> bool:
        """Whether the peer has taken all answers, and more of them than the kernel can hold."""
        taken_bytes = self.direct_bytes + self._outbox.sent_bytes
        return taken_bytes > _KERNEL_BYTES and not (self.unsent_bytes or self._connection.out)

    def check(self, now_ms: int) -> None:
        """Close the connection if it is idle, or if its peer has stopped reading."""
        is_stalled = self.unsent_bytes and self._hub.room.has(self)
        if is_stalled and not self._pauses & UNSENT_OUTPUT:
            self._close_stalled(now_ms)
        else:
            super().check(now_ms)

    @property
    def is_crowded(self) -> bool:
        """Whether a large answer would have to wait now; any thread may ask."""
        if self._pauses & UNSENT_OUTPUT:
            return True
        reads_well = self._reads_well
        return not self._hub.budget.admits(self.unsent_bytes, reads_well=reads_well)

    def when_room(self, work: Callable[[], None]) -> None:
        """Call ``work`` once ``has_room``, unless the connection ends before."""
        if self._is_open:
            self._hub.stats.requests_postponed += 1
            self._hub.budget.holders.add(self)
            self._hub.room.wait(self, work)

    def postpone(self, call: Call[Any]) -> bool:
        """Serve a call once ``has_room``; return False if the connection has too many of them."""
        if self._hub.room.count_of(self) >= WAITING_MAX:
            self._pause(NO_ROOM)
            return False
        self.when_room(functools.partial(self._dispatcher.serve_postponed, self, call))
        return True

    def _wait_for_room(self) -> None:
        """Serve nothing more before there is room; the caller keeps the requests as bytes."""
        self._pause(NO_ROOM)
        self.when_room(_nothing)

    def go_on(self) -> None:
        """Serve the requests that wait as received bytes."""
        self._resume_from(NO_ROOM)

    def wait_for_work(self) -> None:
        """Serve nothing more until `work_ended`; what arrives meanwhile waits as bytes."""
        self._pause(WORKING)

    def work_ended(self) -> None:
        """Serve what has arrived since `wait_for_work`."""
        self._resume_from(WORKING)

    def _resume_from(self, reason: int) -> None:
        if self._pauses & reason and self._is_open:
            self._pauses &= ~reason
            if not self._pauses & UNSENT_OUTPUT:
                self._serve_backlog()
            self._read_on()

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

    def _defer(self, data: bytes) -> bool:
        """Let received bytes wait for a turn, if this connection or this turn takes long."""
        if self.pace.rank != SLOW and not self._hub.turns.is_long:
            return False
        if self._held or self._backlog or self._is_behind or not self._may_serve:
            return False  # they wait in any case
        self._held = data
        self._fall_behind()
        return True

    def _receive(self, data: bytes) -> None:
        if self._pauses & WAITS or self._held:
            self._held += data
        else:
            super()._receive(data)

    _take_in = _receive

    def _stopped_serving(self) -> None:
        if self._pauses & WAITS:
            self._held = self._encoded_backlog() + self._connection.take_tail() + self._held

    def _encoded_backlog(self) -> bytes:
        """Return the backlog as received, and clear it."""
        calls, self._backlog = self._backlog, []
        parts: list[bytes] = []
        for call in calls:
            prefix = frame_prefix(call.serialization, len(call.head), len(call.body))
            parts += (prefix, call.head, call.body)
        return b"".join(parts)

    def _serve_backlog(self) -> None:
        if self._pauses & WAITS:
            return
        super()._serve_backlog()
        if self._held and self._may_serve and not (self._backlog or self._is_behind):
            data, self._held = self._held, b""
            try:
                self._take_in(data)
            except RemoteProtocolError as error:
                self._refuse(error)
            self.uncharged_bytes += len(data) - len(self._held)

    @property
    def _may_serve(self) -> bool:
        """Whether requests may be served now, in the order in which they came."""
        return self._is_open and not self._pauses & (WAITS | UNSENT_OUTPUT)


def _nothing() -> None:
    """The work of a connection whose requests wait as bytes: `go_on` serves them."""
