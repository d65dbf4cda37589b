# SPDX-License-Identifier: Apache-2.0
"""One connection without its socket: turns bytes into calls, and answers and requests into bytes.

The transport passes the peer's bytes to `receive`, serves the calls that it returns, and sends
what accumulates in `out`. Requests to the peer are kept in a table, keyed by opaque, until their
answer, their deadline (`expire`) or the end of the connection (`lost`).

Invariants: a request's `done` is called exactly once, with a `Response` or an error. Nothing
more is read after a RemoteProtocolError. A header that cannot be read fails only its own request,
if its opaque can be read.
"""

import sys
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

import msgspec

from cometmq.remoting.codes import ResponseCode, request_name
from cometmq.remoting.command import Call, Peer, Request, Response
from cometmq.remoting.commands.table import Command
from cometmq.remoting.errors import (
    CometError,
    CommandError,
    RemoteProtocolError,
    RequestTimeout,
    ServerError,
)
from cometmq.remoting.frame import FRAME_BYTES_MAX, HEADER_BYTES_MAX, FrameReader
from cometmq.remoting.header import envelope_of
from cometmq.remoting.raw import RawCommand
from cometmq.remoting.typed_decode import HeaderFault, RequestDecoder, convert_ext
from cometmq.remoting.typed_encode import FrameEncoder
from cometmq.remoting.types import Buffer, Serialization

Done = Callable[[Response | CometError], None]

_OPAQUE_MAX: Final = 0x7FFF_FFFF


class Codec:
    """The command catalogue with its decoder and encoder; connections share it."""

    __slots__ = (
        "decoder",
        "encoder",
        "frame_bytes_max",
        "header_bytes_max",
        "reply_types",
        "serialization",
    )

    def __init__(
        self,
        commands: Mapping[int, Command],
        *,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        header_bytes_max: int = HEADER_BYTES_MAX,
        serialization: Serialization = Serialization.JSON,
    ) -> None:
        self.decoder = RequestDecoder(commands)
        self.encoder = FrameEncoder()
        self.frame_bytes_max = frame_bytes_max
        self.header_bytes_max = header_bytes_max
        self.reply_types = {code: command.reply_type for code, command in commands.items()}
        self.serialization = int(serialization)


class _Pending(msgspec.Struct, gc=False):
    code: int
    deadline_ms: int
    done: Done


class Connection:
    """The protocol state of one connection, at either end."""

    __slots__ = (
        "_codec",
        "_next_opaque",
        "_peer",
        "_pending",
        "_reader",
        "_unasked_left",
        "abandoned_count",
        "faults",
        "out",
        "out_bytes",
    )

    def __init__(self, codec: Codec, peer: Peer, *, unasked_max: int = sys.maxsize) -> None:
        """Accept at most `unasked_max` answers that belong to no request. Answers to oneway and
        abandoned requests do not count.
        """
        self._codec = codec
        self._peer = peer
        self._reader = FrameReader(codec.frame_bytes_max, codec.header_bytes_max)
        self._pending: dict[int, _Pending] = {}
        self._next_opaque = 0
        self.out: list[Buffer] = []
        self.out_bytes = 0
        self.faults: list[HeaderFault] = []
        self._unasked_left = unasked_max
        self.abandoned_count = 0
        """The number of requests whose caller has stopped waiting."""

    @property
    def buffered_bytes(self) -> int:
        """The number of received bytes that belong to an incomplete frame."""
        return self._reader.buffered_bytes

    @property
    def missing_bytes(self) -> int:
        """The number of bytes of the incomplete frame that have not been received; 0 without such a
        frame.
        """
        return self._reader.missing_bytes

    @property
    def begun_frames(self) -> int:
        """A counter of incomplete frames; it grows when another one begins."""
        return self._reader.begun_count

    @property
    def pending_count(self) -> int:
        """The number of requests sent from this end that await an answer."""
        return len(self._pending)

    @property
    def next_deadline_ms(self) -> int | None:
        """The earliest deadline of the pending requests; None if there are none."""
        return min((pending.deadline_ms for pending in self._pending.values()), default=None)

    def join(self, data: bytes) -> bytes:
        """Return the bytes of an incomplete frame and `data`; see `FrameReader.join`."""
        return self._reader.join(data)

    def take_tail(self) -> bytes:
        """Return the bytes of an incomplete frame, and forget them."""
        return self._reader.take_tail()

    def receive_whole(self, data: bytes, now_ms: int) -> list[Call[Any]]:
        """Return the calls in whole frames; bytes kept for an incomplete frame are unaffected."""
        return self.receive(data, now_ms, is_whole=True)

    def receive(self, data: bytes, now_ms: int, *, is_whole: bool = False) -> list[Call[Any]]:
        """Return the calls that `data` completes; deliver answers to their requests immediately.

        Calls whose fields do not fit their command are added to `faults`.
        """
        frames = self._reader.split(data) if is_whole else self._reader.feed(data)
        calls: list[Call[Any]] = []
        decode, append, peer = self._codec.decoder.decode, calls.append, self._peer
        for serialization, head, body in frames:
            try:
                call = decode(serialization, head)
            except HeaderFault as fault:
                call = fault.call
                self.faults.append(fault)
            except RemoteProtocolError as error:
                refused = self._refuse(serialization, head, error)
                if refused is None:
                    continue
                call = refused
            else:
                if isinstance(call, RawCommand):
                    self._settle(call, body)
                    continue
                append(call)
            # Overwrite every field, because a JSON header may have set any of them.
            call.body, call.head, call.peer = body, head, peer
            call.serialization, call.received_ms, call.is_answered = serialization, now_ms, False
        return calls

    def take(self) -> Buffer:
        """Return the content of `out` as one buffer and clear it."""
        out, self.out, self.out_bytes = self.out, [], 0
        return out[0] if len(out) == 1 else b"".join(out)

    def send(self, request: Request) -> None:
        """Queue a oneway request in `out`."""
        self._unasked_left += 1  # some peers answer it
        self._encode(self._opaque(), request)

    def invoke(self, request: Request, *, deadline_ms: int, done: Done) -> int:
        """Queue a request in `out` and register it; return its opaque."""
        opaque = self._opaque()
        self._encode(opaque, request)
        self._pending[opaque] = _Pending(request.code, deadline_ms, done)
        return opaque

    def forget(self, opaque: int) -> None:
        """Stop waiting for an answer; `done` is not called."""
        if self._pending.pop(opaque, None) is not None:
            self._abandon(1)

    def expire(self, now_ms: int) -> None:
        """Fail the requests whose deadline has passed."""
        late = [opaque for opaque, p in self._pending.items() if p.deadline_ms <= now_ms]
        self._abandon(len(late))
        for opaque in late:
            pending = self._pending.pop(opaque)
            pending.done(RequestTimeout(f"no answer to {request_name(pending.code)} in time"))

    def lost(self, error: CometError) -> None:
        """Fail all requests, because the connection has ended; forget what has been received.

        The peer is forgotten, too: as long as both refer to each other, they take memory until
        the garbage collector finds them. Nothing can be received afterwards.
        """
        self._reader.clear()
        self._peer = cast("Peer", None)
        # The table is replaced first, because a callback may send a new request, which must not
        # fail.
        pending, self._pending = self._pending, {}
        for request in pending.values():
            request.done(error)

    def _opaque(self) -> int:
        # The numbers wrap around after 2**31 requests, and an old request may still be pending.
        opaque = self._next_opaque
        while opaque in self._pending:
            opaque = (opaque + 1) & _OPAQUE_MAX
        self._next_opaque = (opaque + 1) & _OPAQUE_MAX
        return opaque

    def _encode(self, opaque: int, request: Request) -> None:
        codec = self._codec
        self.out_bytes += codec.encoder.encode_request(
            self.out, codec.serialization, opaque, request
        )

    def _refuse(
        self, serialization: int, head: bytes, error: RemoteProtocolError
    ) -> Call[Any] | None:
        """Return the call of an unreadable request, now in `faults`; fail the request of an
        unreadable answer, and return None. Raise the error if the header has no readable opaque.
        """
        raw = envelope_of(serialization, head)
        if raw is None:
            raise error
        if raw.is_reply:
            self._settle(raw, b"", error)
            return None
        call: Call[Any] = Call(raw.code, None, raw.opaque, raw.flag, 0, 0, None)
        self.faults.append(HeaderFault(call, ServerError(str(error))))
        return call

    def _settle(self, raw: RawCommand, body: bytes, error: CometError | None = None) -> None:
        """Pass an answer, or why it is unreadable, to its request; drop it if none is waiting.

        Raise RemoteProtocolError if the peer sends more answers than there were requests: decoding
        them would keep the loop from its other connections.
        """
        pending = self._pending.pop(raw.opaque, None)
        if pending is not None:
            reply_type = self._codec.reply_types.get(pending.code)
            pending.done(error or self._response(raw, body, reply_type))
            return
        self._unasked_left -= 1
        if self._unasked_left < 0:
            raise RemoteProtocolError("answers to no request")

    def _abandon(self, count: int) -> None:
        self.abandoned_count += count
        self._unasked_left += count

    def _response(
        self, raw: RawCommand, body: bytes, reply_type: type[msgspec.Struct] | None
    ) -> Response | CometError:
        header = None
        if reply_type is not None:
            try:
                header = convert_ext(raw.ext, reply_type)
            except CommandError as error:
                # Error answers lack the fields of a success.
                if raw.code == ResponseCode.SUCCESS:
                    return RemoteProtocolError(f"answer without its fields: {error.remark}")
        return Response(raw.code, header, raw.ext, body, raw.remark, raw.version)
