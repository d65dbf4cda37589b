# SPDX-License-Identifier: Apache-2.0
"""One socket: an asyncio protocol with limits in both directions.

Its parts (`peer`) have their own state: input (`Reading`, `Intake`), output (`Outlet`), the
requests of this end (`OwnRequests`), and TLS (`TlsState`).

Invariants
    - Unsent output above the high-water mark stops reading *and* serving. The connection is closed
      above the hard limit, or if the peer reads nothing for a while.
    - A request whose answer may be large waits while this connection, or all together, hold too
      much output (`server_peer.py`).
    - Only a limited number of a connection's requests are served in a row, and only for a limited
      time. While the others wait for a later turn of the loop (`turns.py`), nothing more is read.
    - All answers to one chunk, and all answers given in one turn of the loop, are sent in one
      write.
"""

import asyncio
import functools
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, cast

import msgspec

from cometmq.remoting.command import Call, Request, Response
from cometmq.remoting.connection import Connection
from cometmq.remoting.errors import ConnectionLost, Overloaded, RemoteProtocolError
from cometmq.remoting.raw import FLAG_ONEWAY, Body
from cometmq.remoting.transport.addresses import NO_HOST, peer_address
from cometmq.remoting.transport.bodies import weight_of
from cometmq.remoting.transport.dispatch import Answer, Dispatcher
from cometmq.remoting.transport.flow.budget import LARGE_BYTES
from cometmq.remoting.transport.flow.connected import UNSENT_OUTPUT, Reading
from cometmq.remoting.transport.flow.turns import BRIEF_S, SLOW_S
from cometmq.remoting.transport.hub import Hub
from cometmq.remoting.transport.peer.intake import Intake
from cometmq.remoting.transport.peer.outlet import Outlet
from cometmq.remoting.transport.peer.tls_state import HANDSHAKE_TIMEOUT_MS, TlsState
from cometmq.remoting.transport.tasks import settle
from cometmq.remoting.transport.tls import tls_advice

PACE_MS: Final = 1_500
"""The shortest time over which the speed of an incomplete answer is measured."""
ANSWER_MS: Final = 120_000
"""An answer that needs longer than this for its missing bytes counts as lost. The value is the time
for which an idle connection is kept.
"""


class _Incomplete(msgspec.Struct):
    """An incomplete answer, as it was at the beginning of a measurement."""

    number: int
    missing_bytes: int
    since_ms: int
    abandoned_count: int
    """The number of requests that had been abandoned before the answer began."""
    was_slow: bool = False
    """Whether the answer was too slow in the last measurement. Two slow measurements in a row are
    needed, because after a delay of the loop, one shows only the bytes that were read before."""


class OwnRequests:
    """Sends the requests of this end, and fails them at their deadline or when the connection
    ends.
    """

    def __init__(self, hub: Hub, connection: Connection) -> None:
        self._hub = hub
        self._connection = connection
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._cause: Exception | None = None  # the network error that ended the connection
        self._incomplete: _Incomplete | None = None
        self.has_answered = False
        """Whether bytes had arrived at the last check, or before the connection ended."""
        self.close_reason = "was closed"
        """The reason given in the errors of pending requests and of requests made after the
        connection has ended.
        """

    def begin(self, request: Request, timeout_ms: int) -> tuple[asyncio.Future[Response], int]:
        """Queue a request; return the future of its answer, and its opaque."""
        future: asyncio.Future[Response] = self._hub.loop.create_future()
        deadline_ms = self._hub.now_ms() + timeout_ms
        opaque = self._connection.invoke(
            request, deadline_ms=deadline_ms, done=functools.partial(settle, future)
        )
        if self._timer is None or deadline_ms < self._timer_ms:
            self._arm(deadline_ms)
        return future, opaque

    def _arm(self, deadline_ms: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = deadline_ms
        self._timer = self._hub.loop.call_at(deadline_ms / 1000 + 0.001, self._expire)

    def _expire(self) -> None:
        self._timer = None
        self._connection.expire(self._hub.now_ms())
        if (next_ms := self._connection.next_deadline_ms) is not None:
            self._arm(next_ms)

    def are_blocked(self, now_ms: int) -> bool:
        """Return whether pending requests cannot get an answer because an incomplete answer blocks
        them; called by a timer.

        That is so if the incomplete answer would need longer than ANSWER_MS at its present speed,
        and if a request was abandoned since it began. All later bytes of the server would count as
        a part of the incomplete answer.
        """
        connection, before = self._connection, self._incomplete
        number, missing = connection.begun_frames, connection.missing_bytes
        if not missing:
            self._incomplete = None
        elif before is None or before.number != number:
            self._incomplete = _Incomplete(number, missing, now_ms, connection.abandoned_count)
        elif (passed_ms := now_ms - before.since_ms) >= PACE_MS:
            arrived = before.missing_bytes - missing
            was_slow, is_slow = before.was_slow, missing * passed_ms > arrived * ANSWER_MS
            before.missing_bytes, before.since_ms, before.was_slow = missing, now_ms, is_slow
            return was_slow and is_slow and connection.abandoned_count > before.abandoned_count
        return False

    def lost(self, address: str) -> ConnectionLost:
        """Return the error for requests that fail because the connection has ended."""
        lost = ConnectionLost(f"connection to {address} {self.close_reason}")
        lost.__cause__ = self._cause
        lost.has_answered = self.has_answered
        return lost

    def fail(self, address: str, cause: Exception | None) -> None:
        """Fail all requests, because the connection has ended."""
        if self._timer is not None:
            self._timer.cancel()
        if cause is not None:
            self.close_reason, self._cause = f"ended: {cause}{tls_advice(cause)}", cause
        self._connection.lost(self.lost(address))


class Parts(NamedTuple):
    """The classes of a connection's parts."""

    reading: type[Reading] = Reading
    outlet: type[Outlet] = Outlet
    intake: type[Intake] = Intake


PARTS: Final = Parts()


class PeerProtocol(asyncio.Protocol):
    """One connection, which handlers see as a `Peer`."""

    is_served = False
    """Whether one of its requests was served, and not refused; see `Places`."""

    def __init__(self, hub: Hub, dispatcher: Dispatcher[Any], parts: Parts = PARTS) -> None:
        self._hub = hub
        self._transport: asyncio.Transport = cast("asyncio.Transport", None)
        self._account = dispatcher.in_flight
        self._is_reset = False
        self._has_long_frame = False
        self._active_ms = 0  # as known at the last check
        self.connection: Connection = Connection(
            hub.codec, self, unasked_max=hub.settings.unasked_max
        )
        self.is_open = False
        self.is_dirty = False
        """Whether output waits for the end of this turn of the loop."""
        self.has_received = False
        """Whether bytes have arrived since the last check."""
        self.in_flight = 0
        self.address, self.host = "", NO_HOST
        self.state: dict[str, object] = {}
        self.tls: TlsState | None = None
        self.requests = OwnRequests(hub, self.connection)
        self.reading: Reading = parts.reading(self, hub.settings)
        self.outlet: Outlet = parts.outlet(self, hub, dispatcher)
        self.intake: Intake = parts.intake(self, hub, dispatcher)

    # -- asyncio's side ---------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the connection with the hub."""
        hub = self._hub
        self._transport = cast("asyncio.Transport", transport)
        self.reading.begin(self._transport)
        self.outlet.begin(self._transport)
        self.address, self.host = peer_address(transport.get_extra_info("peername"))
        if hub.tls is not None:
            self.tls = TlsState(self, hub, hub.tls, self._transport)
        self.is_open = True
        self._active_ms = hub.now_ms()
        hub.peers.add(self)
        hub.stats.connections_opened += 1
        hub.stats.connections += 1
        if hub.on_open is not None:
            hub.on_open(self)

    def data_received(self, data: bytes) -> None:
        """Serve the requests that these bytes complete."""
        hub, stats, intake = self._hub, self._hub.stats, self.intake
        stats.bytes_received += len(data)
        self.has_received = True
        before, clock = stats.requests, hub.turns.clock
        begun_s = clock()
        plain = data
        try:
            if self.tls is not None:
                plain = self.tls.admit(data)
                if self.tls.is_plain:
                    self.tls = None
            if self.is_open and plain:
                intake.receive(plain)
        except RemoteProtocolError as error:
            self.refuse(error)
        spent_s = clock() - begun_s
        if spent_s > BRIEF_S:
            hub.turns.spend(spent_s)
        if spent_s > SLOW_S or not intake.pace.is_steady:
            intake.note_time(spent_s, stats.requests - before)
        if self.connection.buffered_bytes > LARGE_BYTES:
            hub.memory.note_incomplete(len(plain))
            self.note_long_frame()
        elif self._has_long_frame:
            self.note_long_frame()

    def note_long_frame(self) -> None:
        """Update the account of unfinished frames, if the frame of this connection is or was
        long.
        """
        is_long = self.connection.buffered_bytes > LARGE_BYTES
        if is_long or self._has_long_frame:
            self._has_long_frame = is_long
            self._hub.frames.note(self, self._hub.now_ms())

    def eof_received(self) -> bool | None:
        """Return None to close the transport, because half-open connections are not kept."""

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the connection and fail its pending requests."""
        hub = self._hub
        self.is_open = False
        if self.tls is not None:
            self.tls.end_handshake()
        hub.discard(self)
        hub.stats.connections -= 1
        self._account.forget(self)
        self.intake.drop()
        self.outlet.drop()
        self.reading.drop()
        self.requests.has_answered |= self.has_received
        self.requests.fail(self.address, exc)
        if self._has_long_frame:
            hub.frames.note(self, hub.now_ms())
        try:
            if hub.on_close is not None:
                hub.on_close(self)
        finally:
            self.state.clear()
            self.tls = None  # they refer to each other; see `ENDED`

    def pause_writing(self) -> None:
        """Stop serving a peer that does not read; a server also stops reading from it."""
        self.outlet.block()

    def resume_writing(self) -> None:
        """Serve the requests that wait, then resume reading."""
        self.outlet.unblock()
        # They go first: they were received before the bytes in the socket.
        self.intake.serve_waiting()
        self.reading.resume()

    # -- the handlers' side: Peer -----------------------------------------------------------

    @property
    def is_writable(self) -> bool:
        """Whether unsent output is below its high-water mark."""
        return self.is_open and not self.reading.pauses & UNSENT_OUTPUT

    has_room = may_build = is_writable
    """Whether a large answer may be built now; see `ServerPeer`."""

    @property
    def has_small_room(self) -> bool:
        """Whether an answer that is not large may be built now; see `ServerPeer`."""
        return False

    @property
    def is_crowded(self) -> bool:
        """Estimate on any thread, without measuring, whether a large answer would have to wait
        now.
        """
        return not self.is_writable

    def charge(self, spent_s: float) -> None:
        """Charge this connection for processor time spent on its requests after they were
        served.
        """
        self.intake.charge(spent_s)

    def when_room(self, work: Callable[[], None]) -> None:
        """Call `work` now, because only a server's connections wait for room."""
        work()

    @property
    def is_encrypted(self) -> bool:
        """Whether the connection uses TLS."""
        return self.tls is not None and self.tls.pipe is not None

    def send(
        self,
        code: int,
        header: msgspec.Struct | None = None,
        body: Body = b"",
        ext: Mapping[str, str] | None = None,
    ) -> bool:
        """Send a oneway request; return False if the connection is closed or not writable."""
        if not self.is_writable:
            return False
        self.connection.send(Request(code, header, body, ext, is_oneway=True))
        self.outlet.mark_dirty()
        return True

    async def invoke(
        self,
        code: int,
        header: msgspec.Struct | None = None,
        body: Body = b"",
        *,
        timeout_ms: int,
        ext: Mapping[str, str] | None = None,
    ) -> Response:
        """Send a request and wait for its answer; raise Overloaded, ConnectionLost or
        RequestTimeout.
        """
        if not self.is_open:
            raise self.requests.lost(self.address)
        if not self.is_writable:
            raise Overloaded(f"too much unsent output to {self.address}")
        future, opaque = self.requests.begin(Request(code, header, body, ext), timeout_ms)
        self.outlet.mark_dirty()
        try:
            return await future
        finally:
            self.connection.forget(opaque)

    def reply(self, call: Call[Any], reply: Answer) -> None:
        """Send the answer to a call whose handler did not answer immediately."""
        if call.flag & FLAG_ONEWAY or not self.is_open:
            return
        self._account.answered(self, weight_of(call))
        self.outlet.deliver(call, reply)
        self.outlet.mark_dirty()

    def close(self) -> None:
        """Close the connection after its pending output is sent."""
        if self.is_open:
            self.outlet.flush()
            if self.tls is not None and self.tls.pipe is not None:
                self._transport.write(self.tls.pipe.close())
            self._transport.close()

    def reset(self) -> None:
        """Send the pending output and reset the connection, so that the peer fails its pending
        requests at once.

        The peer may lose output that it has not received yet.
        """
        if self.is_open:
            self.outlet.flush()
            self._is_reset = True
            self.abort()

    # -- the end ----------------------------------------------------------------------------

    def abort(self) -> None:
        """Close the connection immediately; unsent output is lost."""
        if self._transport is not None:
            self.is_open = False
            self._transport.abort()

    def refuse(self, error: RemoteProtocolError) -> None:
        """End the connection of a peer that breaks the protocol."""
        self._hub.stats.protocol_errors += 1
        self._hub.log.warning("connection.refused", peer=self.address, error=str(error))
        self.requests.close_reason = (
            f"was closed: what comes from there is not RocketMQ's protocol ({error})"
        )
        pipe = None if self.tls is None else self.tls.pipe
        alert = b"" if pipe is None else pipe.alert()
        if alert and self.is_open:  # without it, the peer could not tell the reason
            self.is_open = False
            self._transport.write(alert)
            self._transport.close()
        else:
            self.abort()

    def check(self, now_ms: int) -> None:
        """Close the connection if it is idle, or if its peer has stopped reading, or stopped in the
        middle of an answer.
        """
        hub, active_ms = self._hub, self.active_ms()
        if self.tls is not None and self.tls.is_late(now_ms):
            late = f"the TLS handshake takes more than {HANDSHAKE_TIMEOUT_MS // 1000} s"
            self.refuse(RemoteProtocolError(late))
        elif self.requests.are_blocked(now_ms) and not self.reading.pauses:
            self.requests.close_reason = "was closed: the rest of an answer does not arrive"
            hub.stats.stalled_closed += 1
            hub.log.warning("connection.incomplete", peer=self.address)
            self.abort()
        elif self.reading.pauses & UNSENT_OUTPUT:
            self.outlet.end_stall(now_ms)
        elif now_ms - active_ms < hub.settings.idle_timeout_ms:
            return
        elif self._transport.is_closing():
            self.abort()  # already closing, but the peer does not read the rest
        else:
            hub.stats.idle_closed += 1
            hub.log.info("connection.idle", peer=self.address)
            self.close()

    def active_ms(self) -> int:
        """Return when bytes arrived last, in ms of the hub's clock, as precisely as this is called:
        the time of the first call after they arrived.
        """
        if self.has_received:
            self.has_received = False
            self.requests.has_answered = True
            self._active_ms = self._hub.now_ms()
        return self._active_ms

    @property
    def buffered_bytes(self) -> int:
        """The approximate memory that unsent output and unserved input use."""
        return self.outlet.held_bytes + self.intake.buffered_bytes

    def info(self, name: str) -> Any:
        """Return a property of the transport or its socket; see asyncio's `get_extra_info`."""
        return self._transport.get_extra_info(name)
