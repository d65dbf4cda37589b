# SPDX-License-Identifier: Apache-2.0
"""The first bytes of a connection: whether it uses TLS, and whether its server accepts that."""

import asyncio
import contextlib
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Final

from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.command import Call, Reply
from cometmq.remoting.connection import Connection
from cometmq.remoting.errors import RemoteProtocolError
from cometmq.remoting.raw import FLAG_ONEWAY
from cometmq.remoting.transport.dispatch import Answer
from cometmq.remoting.transport.tls import NO_TLS_ALERT, REFUSED_LINGER_S, TlsGate, TlsPipe

if TYPE_CHECKING:
    from cometmq.remoting.transport.hub import Hub

_TLS_HANDSHAKE: Final = 0x16


class GatedPeer(asyncio.Protocol):
    """A connection that may use TLS."""

    _hub: "Hub[Any]"
    _connection: Connection
    _transport: asyncio.Transport
    _gate: TlsGate | None
    _pipe: TlsPipe | None
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

    def _decrypt(self, pipe: TlsPipe, data: bytes) -> bytes:
        plain, answer = pipe.decrypt(data)
        if answer:
            self._transport.write(answer)
        if pipe.is_finished:
            self._transport.close()
        return plain
