# SPDX-License-Identifier: Apache-2.0
"""Notices that peers have ended connections from which nothing is read at the moment.

An event loop notices an end only when it reads the bytes before it. The connections of strangers
wait for that, sometimes for seconds, and a peer that is gone needs neither its place nor its turn.
"""

import asyncio
import select
import socket
from collections.abc import Callable
from typing import Final

_BATCH_MAX: Final = 64


class Ends:
    """Watches the connections of one port; Linux only, like the rest of it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._epoll = select.epoll()
        self._ended: dict[int, Callable[[], None]] = {}

    def begin(self) -> None:
        """Watch until `close`."""
        self._loop.add_reader(self._epoll.fileno(), self._tell)

    def watch(self, sock: socket.socket, ended: Callable[[], None]) -> None:
        """Call `ended` once the peer will send nothing more, or has reset the connection."""
        self._ended[sock.fileno()] = ended
        self._epoll.register(sock, select.EPOLLRDHUP | select.EPOLLONESHOT)

    def forget(self, sock: socket.socket) -> None:
        """Stop watching; call this before the socket is closed, whose number may be used again."""
        if self._ended.pop(sock.fileno(), None) is not None:
            self._epoll.unregister(sock)

    def close(self) -> None:
        """Stop watching all."""
        if not self._epoll.closed:
            self._loop.remove_reader(self._epoll.fileno())
            self._epoll.close()
            self._ended.clear()

    def _tell(self) -> None:
        for number, _ in self._epoll.poll(0, _BATCH_MAX):
            if (ended := self._ended.get(number)) is not None:
                ended()
