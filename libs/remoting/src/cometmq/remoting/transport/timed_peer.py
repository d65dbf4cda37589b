# SPDX-License-Identifier: Apache-2.0
"""The deadlines of a connection's own requests, the time that serving it takes, and the end of one
that breaks the protocol.
"""

import asyncio
from abc import abstractmethod

from cometmq.remoting.errors import RemoteProtocolError
from cometmq.remoting.transport.flow.outbox import Outbox
from cometmq.remoting.transport.flow.turns import Pace
from cometmq.remoting.transport.gated_peer import GatedPeer


class TimedPeer(GatedPeer):
    """A connection whose own requests have deadlines."""

    close_reason: str
    pace: Pace
    has_received: bool
    _active_ms: int
    _outbox: Outbox
    _timer: asyncio.TimerHandle | None
    _timer_ms: int

    @abstractmethod
    def abort(self) -> None:
        """Close the connection immediately."""

    def active_ms(self) -> int:
        """Return when bytes last arrived; the time is that of the first call after them."""
        if self.has_received:
            self.has_received = False
            self._active_ms = self._hub.now_ms()
        return self._active_ms

    @property
    def written_bytes(self) -> int:
        """All output so far, sent or not."""
        return self._outbox.sent_bytes

    @property
    def certificate(self) -> bytes | None:
        """The certificate that the server has shown to this client, in DER form; None without."""
        tls = self._transport.get_extra_info("ssl_object")
        found: bytes | None = None if tls is None else tls.getpeercert(binary_form=True)
        return found

    def fileno(self) -> int:
        """Return the number of the socket; -1 if it is closed."""
        sock = self._transport.get_extra_info("socket")
        return -1 if sock is None else int(sock.fileno())

    def _refuse(self, error: RemoteProtocolError) -> None:
        """End the connection of a peer that breaks the protocol."""
        self._hub.stats.protocol_errors += 1
        self._hub.log.warning("connection.refused", peer=self.address, error=str(error))
        self.close_reason = (
            f"was closed: what comes from there is not RocketMQ's protocol ({error})"
        )
        alert = b"" if self._pipe is None else self._pipe.alert()
        if alert and self._is_open:  # without it, the peer could not tell the reason
            self._is_open = False
            self._transport.write(alert)
            self._transport.close()
        else:
            self.abort()

    def _arm(self, deadline_ms: int) -> None:
        """Set the timer to this deadline, unless an earlier one is set."""
        if self._timer is None or deadline_ms < self._timer_ms:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_ms = deadline_ms
            self._timer = self._hub.loop.call_at(deadline_ms / 1000 + 0.001, self._expire)

    def _expire(self) -> None:
        self._timer = None
        self._connection.expire(self._hub.now_ms())
        if (next_ms := self._connection.next_deadline_ms) is not None:
            self._arm(next_ms)

    def charge(self, spent_s: float) -> None:
        """Note time that the program has spent on requests after they were served."""
        self.pace.note(spent_s, 0)

    def _note_time(self, spent_s: float, count: int) -> None:
        if self.pace.note(spent_s, count):
            self._hub.turns.note(spent_s)
