# SPDX-License-Identifier: Apache-2.0
"""Distinguishes a connection that hangs from a slow one."""

import array
import fcntl
import termios

from cometmq.remoting.transport.protocol import PeerProtocol


class Watch:
    """Detects whether any byte moves on a connection from now on.

    Bytes that arrive count, and so does output that was unsent at the start and has reached the
    other host. Later output does not count, because a host accepts it even if its processes are
    stopped.
    """

    def __init__(self, peer: PeerProtocol) -> None:
        self._peer = peer
        self._active_ms = peer.active_ms()
        self._waiting_bytes = undelivered_bytes(peer)
        self._delivered_bytes = peer.outlet.written_bytes - self._waiting_bytes

    def has_moved(self) -> bool:
        """Return whether anything has moved; a closed connection has not."""
        peer = self._peer
        if not peer.is_open:
            return False
        if peer.active_ms() != self._active_ms:
            return True
        if not self._waiting_bytes:
            return False
        return peer.outlet.written_bytes - undelivered_bytes(peer) > self._delivered_bytes


def undelivered_bytes(peer: PeerProtocol) -> int:
    """Return the bytes that the peer has not acknowledged, as far as the system reports them."""
    queued, sock = array.array("i", [0]), peer.info("socket")
    try:
        fcntl.ioctl(-1 if sock is None else sock.fileno(), termios.TIOCOUTQ, queued)
    except (OSError, ValueError):  # the socket is closed, or the system does not tell
        queued[0] = 0
    return peer.outlet.unsent_bytes + queued[0]
