# SPDX-License-Identifier: Apache-2.0
"""Detects TLS in the first bytes of a connection, refuses what the settings forbid, and performs
the TLS handshake.
"""

import asyncio
import contextlib
from time import monotonic
from typing import Final

from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.command import Reply
from cometmq.remoting.errors import RemoteProtocolError
from cometmq.remoting.frame import end_of_frames
from cometmq.remoting.raw import FLAG_ONEWAY
from cometmq.remoting.transport.flow.connected import HANDSHAKE, LEAVING, Connected
from cometmq.remoting.transport.flow.places import host_of
from cometmq.remoting.transport.flow.turns import HANDSHAKES
from cometmq.remoting.transport.hub import Hub
from cometmq.remoting.transport.tls import (
    NO_TLS_ALERT,
    REFUSED_LINGER_S,
    Pipe,
    TlsGate,
    UnsupportedPeerError,
)

_TLS_HANDSHAKE: Final = 0x16
REFUSED_FRAMES_MAX: Final = 128
"""Number of frames in one chunk of a refused connection above which nothing more is read."""
HANDSHAKE_BYTES_MAX: Final = 128 * 1024
"""Number of bytes that a peer may send before its handshake is complete; certificate chains take
most of them.
"""
HANDSHAKE_TIMEOUT_MS: Final = 10_000
"""How long a handshake may take, not counting the time in which it waits for its turn."""
HOST_SHARE: Final = 4
HOST_MIN: Final = 16
"""A host may have incomplete handshakes on a quarter of the connections, or this many."""


class TlsState:
    """The TLS of a server's connection; it is dropped if the first bytes are not TLS."""

    def __init__(
        self, peer: Connected, hub: Hub, gate: TlsGate, transport: asyncio.Transport
    ) -> None:
        self._peer = peer
        self._hub = hub
        self._gate: TlsGate | None = gate
        self._transport = transport
        self._refusal = ""
        self._begun_ms: int | None = None  # of a handshake that is not complete
        self._received_bytes = 0
        self._waiting = b""  # received bytes that wait for a turn
        self._is_due = False  # whether the waiting bytes are processed now
        self.pipe: Pipe | None = None
        self.is_plain = False
        """Whether the connection is admitted without TLS."""
        self.is_sealed = False
        """Whether received bytes are still encrypted."""

    def admit(self, data: bytes) -> bytes:
        """Return received bytes decrypted; none if the connection is refused."""
        if self._gate is not None and not self._open(self._gate, data):
            return b""
        if not self.is_sealed:
            return data
        if self._begun_ms is not None:
            return self._shake(data)
        assert self.pipe is not None
        return self._decrypt(self.pipe, data)

    def _open(self, gate: TlsGate, data: bytes) -> bool:
        """Detect TLS by the first byte; return False if the connection is refused."""
        if self._refusal:
            self._answer_refused(data)
            return False
        peer, is_tls = self._peer, data[0] == _TLS_HANDSHAKE
        try:
            self.pipe = gate.open(is_tls=is_tls)
            if self.pipe is not None:
                self._begin_handshake()
        except RemoteProtocolError as error:
            self._hub.stats.protocol_errors += 1
            self._hub.log.warning("connection.refused", peer=peer.address, error=str(error))
            if is_tls:
                self._transport.write(NO_TLS_ALERT)
                peer.is_open = False
                self._transport.close()
            else:
                self._refusal = str(error)
                self._answer_refused(data)
                self._hub.loop.call_later(REFUSED_LINGER_S, peer.close)
            return False
        self._gate = None
        self.is_plain = self.pipe is None
        return True

    def _answer_refused(self, data: bytes) -> None:
        """Answer the first requests on a refused connection with the reason for the refusal.

        Compatibility: RocketMQ closes the connection without a reply.
        """
        outlet, connection = self._peer.outlet, self._peer.connection
        data = connection.join(data)
        end = end_of_frames(data, REFUSED_FRAMES_MAX)
        if end < len(data):
            self._peer.reading.pause(LEAVING)
        with contextlib.suppress(RemoteProtocolError):
            for call in connection.receive(data[:end], self._hub.clock_ms()):
                if not call.flag & FLAG_ONEWAY:
                    outlet.deliver(call, Reply(ResponseCode.SYSTEM_ERROR, remark=self._refusal))
        outlet.flush()

    # The handshake

    def _begin_handshake(self) -> None:
        assert self._hub.tls is not None
        counts, host = self._hub.tls.handshakes, host_of(self._peer)
        if counts[host] >= max(self._hub.places.connections_max // HOST_SHARE, HOST_MIN):
            raise RemoteProtocolError("too many incomplete TLS handshakes from this host")
        counts[host] += 1
        self._begun_ms = self._hub.now_ms()
        self.is_sealed = True

    def end_handshake(self) -> None:
        """Forget a handshake that is complete, or whose connection has ended."""
        if self._begun_ms is not None:
            assert self._hub.tls is not None
            counts, host = self._hub.tls.handshakes, host_of(self._peer)
            self._begun_ms = None
            counts[host] -= 1
            if not counts[host]:
                del counts[host]

    def _shake(self, data: bytes) -> bytes:
        """Continue the handshake now, or let the bytes wait for a later turn of the loop."""
        turns = self._hub.turns
        self._received_bytes += len(data)
        if self._received_bytes > HANDSHAKE_BYTES_MAX:
            raise RemoteProtocolError(
                f"the TLS handshake has more than {HANDSHAKE_BYTES_MAX} bytes"
            )
        if self._waiting or not (self._is_due or turns.may_shake):
            if not self._waiting:
                turns.add(HANDSHAKES, self._peer, self.shake_on)
                self._peer.reading.pause(HANDSHAKE)
            self._waiting += data
            return b""
        assert self.pipe is not None
        begun = monotonic()
        try:
            return self._decrypt(self.pipe, data)
        finally:
            turns.note_shaken(monotonic() - begun)
            if self.pipe.is_ready:
                self.end_handshake()

    def shake_on(self) -> None:
        """Continue the handshake with the bytes that have waited."""
        peer = self._peer
        if self._begun_ms is None or not peer.is_open:
            return
        data, self._waiting = self._waiting, b""
        self._received_bytes -= len(data)
        self._begun_ms = self._hub.now_ms()
        peer.reading.pauses &= ~HANDSHAKE
        peer.reading.resume()
        self._is_due = True
        peer.data_received(data)
        self._is_due = False

    def is_late(self, now_ms: int) -> bool:
        """Return whether the handshake has taken too long."""
        if self._begun_ms is None or self._waiting:
            return False
        return now_ms - self._begun_ms > HANDSHAKE_TIMEOUT_MS

    def _decrypt(self, pipe: Pipe, data: bytes) -> bytes:
        try:
            plain, answer = pipe.decrypt(data)
        except UnsupportedPeerError as unsupported:
            pipe = self.pipe = unsupported.pipe
            plain, answer = pipe.decrypt(unsupported.received)
        if answer:
            self._transport.write(answer)
        if pipe.is_finished:
            self._transport.close()
        return plain
