# SPDX-License-Identifier: Apache-2.0
"""A connection to a server that has a lane; native code reads and writes some of its fields.

Its socket may be read and written directly (`DirectIO`).
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from cometmq.remoting.errors import RemoteProtocolError
from cometmq.remoting.transport.dispatch import Dispatcher
from cometmq.remoting.transport.flow.connected import ENDED, LaneConnected, Reading
from cometmq.remoting.transport.hub import Hub
from cometmq.remoting.transport.lane import ON_LOAN, Lane, Loan, Settled
from cometmq.remoting.transport.peer.lane_intake import MIXED, LaneIntake
from cometmq.remoting.transport.peer.outlet import Outlet
from cometmq.remoting.transport.protocol import Parts
from cometmq.remoting.transport.server_peer import ServerPeer
from cometmq.remoting.transport.settings import ConnectionSettings
from cometmq.remoting.types import Buffer

if TYPE_CHECKING:
    from cometmq.remoting.transport.direct import DirectIO

NO_FD: Final = -1


class DirectOutlet(Outlet):
    """Writes to the socket what the kernel takes at once, and the rest to the transport."""

    _peer: LaneConnected

    def __init__(self, peer: LaneConnected, hub: Hub, dispatcher: Dispatcher[Any]) -> None:
        super().__init__(peer, hub, dispatcher)
        self._direct = peer.direct

    @property
    def written_bytes(self) -> int:
        """All output so far, sent or not."""
        return self._peer.direct_bytes + super().written_bytes

    def write_rest(self, data: bytes, *, is_sealed: bool) -> None:
        """Write the output that the kernel has not accepted."""
        peer = self._peer
        if peer.is_open:
            self.end_loan()
            if not is_sealed and peer.tls is not None and peer.tls.pipe is not None:
                data = peer.tls.pipe.encrypt(data)
            peer.direct_fd = NO_FD
            self._count(len(data))
            self._write(data, len(data))

    def end_loan(self) -> None:
        """End the loan of this connection, if there is one, and write the rest of an answer that it
        has written in part. From then on, this object writes to the socket again.
        """
        peer = self._peer
        if peer.direct_fd != ON_LOAN or peer.loan is None:
            return
        peer.direct_fd = peer.fd
        rest = peer.loan.withdraw()
        if rest:
            self.write_rest(rest, is_sealed=False)

    def _write(self, data: Buffer, whole_bytes: int) -> None:
        direct, peer = self._direct, self._peer
        if peer.direct_fd == ON_LOAN:
            self.end_loan()
        if (
            direct is not None
            and isinstance(data, bytes)
            and (peer.direct_fd >= 0 or (peer.fd >= 0 and not self.unsent_bytes))
        ):
            sent = direct.sockets.send(peer.fd, data)
            if sent == len(data):
                peer.direct_fd = peer.fd
                return
            data = memoryview(data)[sent:]
        peer.direct_fd = NO_FD
        super()._write(data, whole_bytes)


class LaneReading(Reading):
    """Pauses and resumes reading, by the transport or directly."""

    def __init__(self, peer: "LanePeer", settings: ConnectionSettings) -> None:
        super().__init__(peer, settings)
        self._peer = peer

    def pause(self, reason: int) -> None:
        """Stop reading until the reason is removed and `resume` is called."""
        self._peer.habit = MIXED
        super().pause(reason)

    def drop(self) -> None:
        """Stop reading, because the connection has ended."""
        self._peer = ENDED

    def _stop(self) -> None:
        peer = self._peer
        if peer.fd >= 0 and peer.direct is not None:
            peer.direct.stop_reading(peer)
        else:
            super()._stop()

    def _start(self) -> None:
        peer = self._peer
        if peer.fd >= 0 and peer.direct is not None:
            peer.direct.start_reading(peer)
        else:
            super()._start()


class LanePeer(ServerPeer):
    """A connection whose requests are offered to a lane."""

    intake: LaneIntake
    outlet: DirectOutlet

    def __init__(
        self,
        hub: Hub,
        dispatcher: Dispatcher[Any],
        lane: Lane,
        direct: "DirectIO | None" = None,
    ) -> None:
        self.lane = lane
        self.direct = direct
        self.reply_rows = _reply_each if direct is None else direct.reply_rows
        self.is_limited = dispatcher.is_limited
        self.fd = NO_FD
        """The socket, while it is read and written directly; see `DirectIO`."""
        self.direct_fd = NO_FD
        """The same socket, but only while its transport has no unsent output."""
        self.direct_bytes = 0
        """The size of the answers sent directly, which the outlet does not count; native code stops
        counting at 64 MiB.
        """
        self.may_lend = False
        """Whether other threads may write to the socket."""
        self.loan: Loan | None = None
        """The newest answers that another thread may write and that are not settled; None if there
        are none.
        """
        self.is_polled = False
        self.habit = MIXED
        """What the last chunk contained; the next one probably contains the same."""
        super().__init__(hub, dispatcher, Parts(LaneReading, DirectOutlet, LaneIntake))

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the connection and fail its pending requests."""
        self.leave_direct()
        super().connection_lost(exc)

    def close(self) -> None:
        """Close the connection after its pending output is sent."""
        if self.direct is not None:
            self.direct.flush()
        super().close()
        self.leave_direct()

    def abort(self) -> None:
        """Close the connection immediately; unsent output is lost."""
        super().abort()
        self.leave_direct()

    def refuse(self, error: RemoteProtocolError) -> None:
        """End the connection of a peer that breaks the protocol."""
        self.leave_direct()
        super().refuse(error)

    # Direct input and output

    @property
    def session(self) -> Any:
        """The native TLS session; None if there is none."""
        pipe = None if self.tls is None else self.tls.pipe
        return None if pipe is None else pipe.session

    def join_direct(self) -> bool:
        """Read and write the socket directly from now on; return False to try again later."""
        if self.session is not None and self.outlet.unsent_bytes:
            return False  # the end of the handshake is sent first
        can_join = not self.is_encrypted or self.session is not None
        if self.direct is not None and can_join and not self.reading.pauses:
            self.direct.join(self, self._transport)
            self.may_lend = not self.is_encrypted
            self._seal()
        return True

    def leave_direct(self) -> None:
        """Let the transport read and write from now on."""
        if self.fd >= 0 and self.direct is not None:
            self.outlet.end_loan()
            self.direct.leave(self)
            self._seal()
            self.reading.resume()

    def _seal(self) -> None:
        """Choose whether received bytes are decrypted in Python: not while native code reads the
        socket.
        """
        if self.tls is not None:
            self.tls.is_sealed = self.fd < 0

    def input_ended(self) -> None:
        """Let the transport find the end of the input, or end the connection if its TLS session has
        ended or failed.
        """
        self.leave_direct()
        if self.tls is not None and self.is_open:
            self.data_received(b"")

    def receive_plain(self, data: bytes) -> None:
        """Serve bytes that were read directly, even if the connection has left since."""
        if self.tls is None:
            self.data_received(data)
            return
        self.tls.is_sealed = False
        try:
            self.data_received(data)
        finally:
            self._seal()

    # The lane's answers

    def reply_encoded(self, data: bytes, count: int) -> None:
        """Send the encoded answers to `count` requests that the lane has taken."""
        if self.is_open:
            self._account.answered(self, count)
            self.outlet.append(data)

    def may_lend_answers(self) -> bool:
        """Send the direct output, so that another thread may write to connections of this hub;
        return whether it may.

        It may not with `before_write`: this function must decide, at the time of the write, whether
        answers may be sent.
        """
        writes = self._hub.writes
        if self.direct is None or writes.check is not None:
            return False
        if self.direct.rows:
            self.direct.flush()
        if writes.is_gathering:
            writes.prepare()
        return True

    def settle(self, settled: Settled) -> None:
        """Count the answers that another thread has written for connections of this hub, and send
        the answers that it has not written.
        """
        count, sent_bytes, rest = settled
        stats = self._hub.stats
        stats.in_flight -= count
        stats.bytes_sent += sent_bytes
        unsent = []
        for peer, data, answer_count, is_written in rest:
            if not is_written:
                unsent.append((peer, data, answer_count))
                continue
            peer.note_answered(answer_count)
            if data:
                peer.outlet.write_rest(data, is_sealed=True)
        if unsent:
            self.reply_rows(unsent)

    def note_answered(self, count: int) -> None:
        """Subtract requests that another thread has answered from those in flight."""
        if self.is_open:
            self._account.answered(self, count)


def _reply_each(rows: Sequence[tuple[Any, bytes, int]]) -> None:
    """Send encoded answers to several connections of a server."""
    for peer, data, count in rows:
        peer.reply_encoded(data, count)
