# SPDX-License-Identifier: Apache-2.0
"""One socket: an asyncio protocol around ``Connection``, with limits in both directions.

Invariants
    Unsent output above the high-water mark stops reading *and* serving. A request whose answer may
    be large is not served at all while the connection, or all of them, hold too much output: it
    waits (``room_peer.py``). The connection is closed above the hard limit, or if the peer reads
    nothing for a while. Only a limited number of a connection's requests, and only for a limited
    time, are served in a row. While the others wait for a later turn of the loop (``turns.py``),
    nothing more is read from that connection. All
    answers to one chunk, and all answers given in one turn of the loop, are sent in one write.
"""

import asyncio
import functools
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any, Final, cast

import msgspec

from cometmq.remoting.command import Call, Request, Response
from cometmq.remoting.connection import Connection
from cometmq.remoting.errors import ConnectionLost, Overloaded, RemoteProtocolError
from cometmq.remoting.raw import FLAG_ONEWAY, Body
from cometmq.remoting.transport.addresses import NO_HOST, peer_address
from cometmq.remoting.transport.dispatch import Answer, Dispatcher
from cometmq.remoting.transport.flow.budget import LARGE_BYTES, TIGHT_WRITE_BYTES
from cometmq.remoting.transport.flow.outbox import Outbox
from cometmq.remoting.transport.flow.turns import SLOW_S, Pace
from cometmq.remoting.transport.handshakes import HANDSHAKE_TIMEOUT_MS, Handshake
from cometmq.remoting.transport.hub import Hub
from cometmq.remoting.transport.tasks import settle
from cometmq.remoting.transport.timed_peer import TimedPeer
from cometmq.remoting.transport.tls import Pipe, tls_advice
from cometmq.remoting.types import Buffer

# Reasons not to read from a connection; several may apply at once.
UNSENT_OUTPUT: Final = 1  # the peer does not read its answers
BACKLOG: Final = 2  # received requests are waiting for the next turn
LEAVING: Final = 4  # this end is stopping and accepts no more requests

CALL_BYTES: Final = 1_024  # memory of a small request with its decoded header


class PeerProtocol(TimedPeer):
    """One connection, which handlers see as a ``Peer``."""

    def __init__(self, hub: "Hub[PeerProtocol]", dispatcher: Dispatcher[Any]) -> None:
        self._hub = hub
        self._dispatcher = dispatcher
        self._connection = Connection(hub.codec, self)
        self._transport: asyncio.Transport = cast("asyncio.Transport", None)
        self._encode_reply = hub.codec.encoder.encode_reply
        self._answer_bytes_max = hub.codec.frame_bytes_max
        self._flush_bytes = hub.settings.write_high_water_bytes
        self._gate = hub.tls
        self._refusal = ""
        self._pipe: Pipe | None = None
        self._is_sealed = False
        self._handshake: Handshake | None = None
        self._is_open = False
        self._is_reset = False
        self.close_reason = "was closed"
        """The reason given in the errors of pending requests and of requests made after the
        connection has ended.
        """
        self._end: Exception | None = None  # the network error that ended the connection
        self.is_dirty = False
        self._pauses = 0
        self._stops_reading = ~UNSENT_OUTPUT if hub.settings.reads_while_unsent else ~0
        self.is_restrained = False
        self._backlog: list[Call[Any]] = []
        self._noted_bytes = 0  # pending output that the budget has counted
        self._timer, self._timer_ms = None, 0
        self._active_ms = 0  # as known at the last check
        self.has_received = False  # since the last check
        self._outbox = Outbox()
        self.in_flight = 0
        self.address, self.host = "", NO_HOST
        self.pace = Pace()
        self.uncharged_bytes = 0
        """The size of the requests served since `Hub.charge` was called last."""
        self.state: dict[str, object] = {}

    # -- asyncio's side ---------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the connection with the hub."""
        hub, settings = self._hub, self._hub.settings
        self._transport = cast("asyncio.Transport", transport)
        self._set_water_marks(settings.write_high_water_bytes, settings.write_low_water_bytes)
        self.address, self.host = peer_address(transport.get_extra_info("peername"))
        self._is_open = True
        self._active_ms = hub.now_ms()
        hub.peers.add(self)
        hub.stats.connections_opened += 1
        hub.stats.connections += 1
        if hub.on_open is not None:
            hub.on_open(self)

    def data_received(self, data: bytes) -> None:
        """Serve the requests that these bytes complete."""
        hub, stats = self._hub, self._hub.stats
        stats.bytes_received += len(data)
        self.has_received = True
        before, begun = stats.requests, monotonic()
        try:
            if self._gate is not None and not self._open_gate(self._gate, data):
                return
            if self._is_sealed:
                data = self._unseal(data)
            if self._is_open and data and not self._defer(data):
                self.uncharged_bytes += len(data)
                self._take_in(data)
        except RemoteProtocolError as error:
            self._refuse(error)
        spent_s = monotonic() - begun
        if spent_s > SLOW_S or not self.pace.is_steady:
            self._note_time(spent_s, stats.requests - before)
        if self._connection.buffered_bytes > LARGE_BYTES:
            hub.note_incomplete(len(data))

    def eof_received(self) -> None:
        """Return None to close the transport, because half-open connections are not kept."""

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the connection and fail its pending requests."""
        hub = self._hub
        self._is_open = False
        self._end_handshake()
        if self._timer is not None:
            self._timer.cancel()
        hub.discard(self)
        hub.stats.connections -= 1
        hub.stats.in_flight -= self.in_flight
        self.in_flight = 0
        self._backlog.clear()
        self._connection.take()
        hub.budget.holders.discard(self)
        if exc is not None:
            self.close_reason, self._end = f"ended: {exc}{tls_advice(exc)}", exc
        self._connection.lost(self._lost())
        try:
            if hub.on_close is not None:
                hub.on_close(self)
        finally:
            self.state.clear()

    def pause_writing(self) -> None:
        """Stop serving a peer that does not read; a server also stops reading from it."""
        self.stalled_ms(self._hub.now_ms())
        self._pause(UNSENT_OUTPUT)

    def resume_writing(self) -> None:
        """Serve the backlog, then resume reading."""
        self._pauses &= ~UNSENT_OUTPUT
        if self.is_restrained:
            self.is_restrained = False
            settings = self._hub.settings
            self._set_water_marks(settings.write_high_water_bytes, settings.write_low_water_bytes)
        # The backlog goes first: it was received before the bytes in the socket.
        self._serve_backlog()
        self._read_on()

    # -- the handlers' side: Peer -----------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether the connection is still usable."""
        return self._is_open

    @property
    def is_writable(self) -> bool:
        """Whether unsent output is below its high-water mark."""
        return self._is_open and not self._pauses & UNSENT_OUTPUT

    @property
    def has_room(self) -> bool:
        """Whether a large answer may be built now; see ``RoomPeer``."""
        return self.is_writable

    @property
    def is_crowded(self) -> bool:
        """Whether a large answer would have to wait now; any thread may ask."""
        return not self.is_writable

    def when_room(self, work: Callable[[], None]) -> None:
        """Call ``work`` now, because only a server's connections wait for room."""
        work()

    @property
    def is_encrypted(self) -> bool:
        """Whether the connection uses TLS."""
        return self._pipe is not None

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
        self._connection.send(Request(code, header, body, ext, is_oneway=True))
        self._mark_dirty()
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
        """Send a request and wait for its answer."""
        if not self._is_open:
            raise self._lost()
        if not self.is_writable:
            raise Overloaded(f"too much unsent output to {self.address}")
        future: asyncio.Future[Response] = self._hub.loop.create_future()
        deadline_ms = self._hub.now_ms() + timeout_ms
        opaque = self._connection.invoke(
            Request(code, header, body, ext),
            deadline_ms=deadline_ms,
            done=functools.partial(settle, future),
        )
        self._mark_dirty()
        self._arm(deadline_ms)
        try:
            return await future
        finally:
            self._connection.forget(opaque)

    def reply(self, call: Call[Any], reply: Answer) -> None:
        """Send the answer to a call whose handler did not answer immediately."""
        if call.flag & FLAG_ONEWAY or not self._is_open:
            return
        self._dispatcher.answered(self)
        self.deliver(call, reply)
        self._mark_dirty()

    def close(self) -> None:
        """Close the connection after its pending output is sent."""
        if self._is_open:
            self.flush()
            if self._pipe is not None:
                self._transport.write(self._pipe.close())
            self._transport.close()

    def reset(self) -> None:
        """Send the pending output and end the connection so that its peer expects no more answers.

        The peer may lose output that it has not received yet.
        """
        if self._is_open:
            self.flush()
            self._is_reset = True
            self.abort()

    # -- the hub's side ---------------------------------------------------------------------

    def stop_reading(self) -> None:
        """Accept no more requests; requests already received are still answered."""
        self._pause(LEAVING)

    def deliver(self, call: Call[Any], answer: Answer) -> bool:
        """Encode an answer; return False if the peer must catch up before it is served further.

        An answer that cannot be encoded is a bug in its handler; a failure is sent instead, also of
        an answer whose frame no peer would accept.
        """
        dispatcher, connection = self._dispatcher, self._connection
        if dispatcher.after:
            dispatcher.run_after(call, answer)
        out, serialization, opaque = connection.out, call.serialization, call.opaque
        sent_count = len(out)
        try:
            size = self._encode_reply(out, serialization, opaque, answer)
        except Exception as error:  # noqa: BLE001  # as in dispatch.py
            size = self._encode_reply(out, serialization, opaque, dispatcher.failure(call, error))
        if size > self._answer_bytes_max:
            del out[sent_count:]
            size = self._encode_reply(out, serialization, opaque, dispatcher.too_large(call, size))
        connection.out_bytes += size
        if connection.out_bytes > LARGE_BYTES:
            self._note_output()
        return self._is_open and not self._pauses & UNSENT_OUTPUT

    def _note_output(self) -> None:
        """Count pending output, and write it if it is large enough."""
        budget, out_bytes = self._hub.budget, self._connection.out_bytes
        more_bytes = out_bytes - self._noted_bytes
        budget.left -= more_bytes
        self._noted_bytes = out_bytes
        self._hub.note_large(more_bytes)
        budget.holders.add(self)
        if out_bytes > self._flush_bytes or (out_bytes > TIGHT_WRITE_BYTES and budget.is_tight):
            self.flush()

    def flush(self) -> None:
        """Write the pending output."""
        self.is_dirty = False
        if not self._connection.out or not self._is_open:
            return
        data = self._connection.take()
        if self._noted_bytes:
            self._hub.budget.left += self._noted_bytes
            self._noted_bytes = 0
        self._hub.prepare_write()
        if self._pipe is not None:
            data = self._pipe.encrypt(data)  # in the order in which the records are written
        self._hub.stats.bytes_sent += len(data)
        self._outbox.sent_bytes += len(data)
        self._write(data, len(data))

    def _write(self, data: Buffer, whole_bytes: int) -> None:
        """Write output, which keeps ``whole_bytes`` of memory until the kernel has taken all."""
        hub = self._hub
        self._transport.write(data)
        hub.budget.left -= whole_bytes
        hub.budget.holders.add(self)
        self._outbox.note(whole_bytes)
        if hub.budget.left < hub.budget.floor:
            hub.budget.measure(hub.now_ms())
        if self._pauses & UNSENT_OUTPUT and self.unsent_bytes > hub.settings.unsent_bytes_max:
            hub.stats.overflow_closed += 1
            hub.log.warning("connection.overflowed", peer=self.address, bytes=self.unsent_bytes)
            self.abort()

    def abort(self) -> None:
        """Close the connection immediately; unsent output is lost."""
        if self._transport is not None:
            self._is_open = False
            self._transport.abort()

    def check(self, now_ms: int) -> None:
        """Close the connection if it is idle, or if its peer has stopped reading."""
        settings, stats = self._hub.settings, self._hub.stats
        active_ms = self.active_ms()
        if self._is_handshake_late(now_ms):
            late = f"the TLS handshake takes more than {HANDSHAKE_TIMEOUT_MS // 1000} s"
            self._refuse(RemoteProtocolError(late))
        elif self._pauses & UNSENT_OUTPUT:
            self._close_stalled(now_ms)
        elif now_ms - active_ms < settings.idle_timeout_ms:
            return
        elif self._transport.is_closing():
            self.abort()  # already closing, but the peer does not read the rest
        else:
            stats.idle_closed += 1
            self._hub.log.info("connection.idle", peer=self.address)
            self.close()

    def _close_stalled(self, now_ms: int) -> None:
        if self.stalled_ms(now_ms) >= self._hub.settings.stall_timeout_ms:
            self._hub.stats.stalled_closed += 1
            self._hub.log.warning("connection.stalled", peer=self.address)
            self.abort()

    def restrain(self) -> None:
        """Pause until only a quarter of the unsent output is left, ignoring the high-water mark."""
        size = self.unsent_bytes
        if not size:
            return  # what the connection holds are requests, or output of this turn
        self.is_restrained = True
        if self._transport.is_closing():
            self.pause_writing()
        else:
            self._set_water_marks(size // 2, size // 4)

    def stalled_ms(self, now_ms: int) -> int:
        """Return how long the peer of a paused connection has read nothing."""
        return self._outbox.stalled_ms(self.unsent_bytes, now_ms)

    @property
    def unsent_bytes(self) -> int:
        """Output that the kernel has not accepted yet."""
        return self._transport.get_write_buffer_size() if self._is_open else 0

    @property
    def held_bytes(self) -> int:
        """The memory used by output that the kernel has not taken yet."""
        return self._outbox.held_bytes(self.unsent_bytes) + self._connection.out_bytes

    @property
    def waiting_bytes(self) -> int:
        """The size of the requests that wait for room; only a server's connections have any."""
        return 0

    @property
    def pending_count(self) -> int:
        """The number of requests sent from this end that await an answer."""
        return self._connection.pending_count

    @property
    def buffered_bytes(self) -> int:
        """The approximate memory that unsent output, the incomplete frame and the backlog use."""
        backlog_bytes = len(self._backlog) * CALL_BYTES
        return self.held_bytes + self._connection.buffered_bytes + backlog_bytes

    # -- private ----------------------------------------------------------------------------

    def _receive(self, data: bytes) -> None:
        connection = self._connection
        calls = connection.receive(data, self._hub.clock_ms())
        if self._backlog:
            self._backlog += calls
        elif calls:
            self._serve(calls)
        if connection.out or connection.faults:
            self._end_chunk()

    _take_in = _receive  # with a lane, it gets the chunk first; a method would cost one more call

    def _end_chunk(self) -> None:
        """Answer malformed requests with an error, and send all answers."""
        connection = self._connection
        if connection.faults:
            faults, connection.faults = connection.faults, []
            for fault in faults:
                self._dispatcher.fail(self, fault)
        if connection.out:
            if self._hub.is_gathering:
                self._mark_dirty()
            else:
                self.flush()

    def _serve(self, calls: list[Call[Any]]) -> None:
        calls_max = self._hub.calls_max // self.pace.divisor or 1
        chunk = calls if len(calls) <= calls_max else calls[:calls_max]
        served = self._dispatcher.serve(self, chunk)
        if served < len(calls):
            self._backlog = calls[served:]
            if served == len(chunk) or self._may_serve:
                self._fall_behind()
            else:
                self._stopped_serving()

    def _stopped_serving(self) -> None:
        """Note that the remaining requests wait until the peer has read its answers."""

    def _serve_backlog(self) -> None:
        if self._backlog and self._is_open and not self._pauses & BACKLOG:
            calls, self._backlog = self._backlog, []
            self._serve(calls)
            served = calls[: len(calls) - len(self._backlog)]
            self.uncharged_bytes += sum(len(call.head) + len(call.body) for call in served)
            self._end_chunk()

    @property
    def _is_behind(self) -> bool:
        """Whether received requests are waiting for their turn in the event loop."""
        return bool(self._pauses & BACKLOG)

    def _fall_behind(self) -> None:
        """Postpone the remaining requests, so that other connections get their turn first."""
        self._hub.fell_behind(1)
        self._pause(BACKLOG)
        self._hub.turns.add(self, self.pace.rank)

    def catch_up(self) -> None:
        """Serve requests that have waited for their turn."""
        stats = self._hub.stats
        self._pauses &= ~BACKLOG
        self._hub.fell_behind(-1)
        before, begun = stats.requests, monotonic()
        if not self._pauses & UNSENT_OUTPUT:
            self._serve_backlog()
        self._note_time(monotonic() - begun, stats.requests - before)
        self._read_on()

    @property
    def _may_serve(self) -> bool:
        """Whether requests may be served now, in the order in which they came."""
        return self._is_open and not self._pauses & UNSENT_OUTPUT

    def _defer(self, _data: bytes) -> bool:
        """Let received bytes wait for a turn; only a server's connections do so."""
        return False

    def _pause(self, reason: int) -> None:
        self._pauses |= reason
        if self._is_open and reason & self._stops_reading and not self._transport.is_closing():
            self._stop_reading()

    def _read_on(self) -> None:
        """Resume reading unless another reason to pause remains."""
        if not (self._pauses & self._stops_reading or self._transport.is_closing()):
            self._start_reading()

    def _stop_reading(self) -> None:
        self._transport.pause_reading()

    def _start_reading(self) -> None:
        self._transport.resume_reading()

    def _lost(self) -> ConnectionLost:
        lost = ConnectionLost(f"connection to {self.address} {self.close_reason}")
        lost.__cause__ = self._end
        return lost

    def _mark_dirty(self) -> None:
        if not self.is_dirty:
            self.is_dirty = True
            self._hub.mark_dirty(self)

    def _set_water_marks(self, high: int, low: int) -> None:
        self._transport.set_write_buffer_limits(high=high, low=low)
