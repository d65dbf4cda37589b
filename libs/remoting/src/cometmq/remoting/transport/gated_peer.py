# SPDX-License-Identifier: Apache-2.0
"""The first bytes of a connection: whether it uses TLS, whether its server accepts that, and the
TLS handshake.
"""

import asyncio
import contextlib
from abc import abstractmethod
from time import monotonic
from typing import Any, Final

from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.command import Call, Reply
from cometmq.remoting.connection import Connection
from cometmq.remoting.errors import RemoteProtocolError
from cometmq.remoting.raw import FLAG_ONEWAY
from cometmq.remoting.transport.dispatch import Answer
from cometmq.remoting.transport.handshakes import (
    HANDSHAKE_BYTES_MAX,
    HANDSHAKE_TIMEOUT_MS,
    Handshake,
)
from cometmq.remoting.transport.hub import Hub
from cometmq.remoting.transport.tls import (
    NO_TLS_ALERT,
    REFUSED_LINGER_S,
    Pipe,
    TlsGate,
    UnsupportedPeerError,
)

_TLS_HANDSHAKE: Final = 0x16

HANDSHAKE: Final = 32
"""A reason not to read from a connection: its TLS handshake waits for its turn."""


class GatedPeer(asyncio.Protocol):
    """A connection that may use TLS."""

    _hub: Hub[Any]
    _connection: Connection
    _transport: asyncio.Transport
    _gate: TlsGate | None
    _pipe: Pipe | None
    _is_sealed: bool
    """Whether received bytes are still encrypted."""
    _handshake: Handshake | None
    _pauses: int
    _refusal: str
    _is_open: bool
    address: str

    @abstractmethod
    def deliver(self, call: Call[Any], answer: Answer) -> bool:
        """Encode an answer."""

    @abstractmethod
    def flush(self) -> None:
        """Write the pending output."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection after its pending output is sent."""

    @abstractmethod
    def _pause(self, reason: int) -> None:
        """Stop reading."""

    @abstractmethod
    def _read_on(self) -> None:
        """Resume reading unless another reason to pause remains."""

    def wait_for_work(self) -> None:
        """Go on, because only a server's handlers work in the order of the requests."""

    def work_ended(self) -> None:
        """Serve what has arrived since `wait_for_work`."""

    def _open_gate(self, gate: TlsGate, data: bytes) -> bool:
        """Detect TLS by the first byte; return False if the connection is refused."""
        if self._refusal:
            self._answer_refused(data)
            return False
        is_tls = data[0] == _TLS_HANDSHAKE
        try:
            self._pipe = gate.open(is_tls=is_tls)
            if self._pipe is not None:
                self._begin_handshake()
        except RemoteProtocolError as error:
            self._hub.stats.protocol_errors += 1
            self._hub.log.warning("connection.refused", peer=self.address, error=str(error))
            if is_tls:
                self._transport.write(NO_TLS_ALERT)
                self._is_open = False
                self._transport.close()
            else:
                self._refusal = str(error)
                self._answer_refused(data)
                self._hub.loop.call_later(REFUSED_LINGER_S, self.close)
            return False
        self._gate = None
        return True

    def _answer_refused(self, data: bytes) -> None:
        """Answer any requests on a refused connection with the reason for the refusal.

        Compatibility: RocketMQ closes the connection without a reply.
        """
        with contextlib.suppress(RemoteProtocolError):
            for call in self._connection.receive(data, self._hub.clock_ms()):
                if not call.flag & FLAG_ONEWAY:
                    self.deliver(call, Reply(ResponseCode.SYSTEM_ERROR, remark=self._refusal))
        self.flush()

    # The handshake

    @property
    def _host_name(self) -> str:
        return self.address.rpartition(":")[0]

    def _begin_handshake(self) -> None:
        if not self._hub.handshakes.begin(self._host_name):
            raise RemoteProtocolError("too many incomplete TLS handshakes from this host")
        self._handshake = Handshake(self._hub.now_ms())
        self._is_sealed = True

    def _end_handshake(self) -> None:
        if self._handshake is not None:
            self._handshake = None
            self._hub.handshakes.end(self._host_name)

    def _unseal(self, data: bytes) -> bytes:
        """Return the plain bytes of received ones."""
        if self._handshake is not None:
            return self._shake(self._handshake, data)
        assert self._pipe is not None
        return self._decrypt(self._pipe, data)

    def _shake(self, handshake: Handshake, data: bytes) -> bytes:
        """Continue the handshake now, or let the bytes wait for a later turn of the loop."""
        handshakes = self._hub.handshakes
        handshake.received_bytes += len(data)
        if handshake.received_bytes > HANDSHAKE_BYTES_MAX:
            raise RemoteProtocolError(
                f"the TLS handshake has more than {HANDSHAKE_BYTES_MAX} bytes"
            )
        if handshake.waiting or not (handshake.is_due or handshakes.may_continue):
            if not handshake.waiting:
                handshakes.wait(self._host_name, self)
                self._pause(HANDSHAKE)
            handshake.waiting += data
            return b""
        assert self._pipe is not None
        begun = monotonic()
        try:
            return self._decrypt(self._pipe, data)
        finally:
            handshakes.note(monotonic() - begun)
            if self._pipe.is_ready:
                self._end_handshake()

    def shake_on(self) -> None:
        """Continue the handshake with the bytes that have waited."""
        handshake = self._handshake
        if handshake is None or not self._is_open:
            return
        data, handshake.waiting = handshake.waiting, b""
        handshake.received_bytes -= len(data)
        handshake.begun_ms = self._hub.now_ms()
        self._pauses &= ~HANDSHAKE
        self._read_on()
        handshake.is_due = True
        self.data_received(data)
        handshake.is_due = False

    def _is_handshake_late(self, now_ms: int) -> bool:
        handshake = self._handshake
        if handshake is None or handshake.waiting:
            return False
        return now_ms - handshake.begun_ms > HANDSHAKE_TIMEOUT_MS

    def _decrypt(self, pipe: Pipe, data: bytes) -> bytes:
        try:
            plain, answer = pipe.decrypt(data)
        except UnsupportedPeerError as unsupported:
            pipe = self._pipe = unsupported.pipe
            plain, answer = pipe.decrypt(unsupported.received)
        if answer:
            self._transport.write(answer)
        if pipe.is_finished:
            self._transport.close()
        return plain
