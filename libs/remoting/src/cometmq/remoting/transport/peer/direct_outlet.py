# SPDX-License-Identifier: Apache-2.0
"""The output of a connection whose socket is read and written directly (`DirectIO`)."""

from typing import Any, Final

from cometmq.remoting.transport.dispatch import Dispatcher
from cometmq.remoting.transport.hub import Hub
from cometmq.remoting.transport.lane import LaneConnected
from cometmq.remoting.transport.loans import ON_LOAN
from cometmq.remoting.transport.peer.outlet import Outlet
from cometmq.remoting.types import Buffer

NO_FD: Final = -1


class DirectOutlet(Outlet):
    """Writes to the socket what the kernel takes at once, and the rest to the transport."""

    _peer: LaneConnected

    def __init__(self, peer: LaneConnected, hub: Hub[Any], dispatcher: Dispatcher[Any]) -> None:
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
