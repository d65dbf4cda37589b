# SPDX-License-Identifier: Apache-2.0
"""The input of a connection whose peer speaks HTTP: it is answered once, and ends soon."""

from typing import Any, Final

from cometmq.remoting.command import Call
from cometmq.remoting.http_clients import Farewell, HttpSpoken
from cometmq.remoting.response_codes import ResponseCode
from cometmq.remoting.transport.dispatch import Dispatcher
from cometmq.remoting.transport.flow.connected import Connected
from cometmq.remoting.transport.hub import Hub
from cometmq.remoting.transport.peer.intake import Intake

HTTP_LINGER_S: Final = 1.0
"""How long the connection stays open. A gRPC client first waits for the server's settings, then
opens the stream whose answer shows the reason.
"""


class HttpIntake(Intake):
    """Answers an HTTP client so that its user sees why it is not served."""

    def __init__(
        self, error: HttpSpoken, peer: Connected, hub: Hub[Any], dispatcher: Dispatcher[Any]
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
