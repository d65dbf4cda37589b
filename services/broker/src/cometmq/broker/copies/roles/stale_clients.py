# SPDX-License-Identifier: Apache-2.0
"""Closes the connections of clients that have stayed with a former master.

In a broker group with one address (`groupAddress`), the route does not change with the master, so
clients would keep their connections to the former master, which forwards their requests. The former
master therefore closes all connections of clients, each while none of its requests is in progress.
It does so three times, because a client may reconnect before the address has moved. CometMQ's
client reconnects earlier by itself, when it sees that a request was forwarded.
"""

from collections.abc import Callable, Collection
from typing import Any, Final, Protocol

AFTER_MS: Final = (3_000, 6_000, 12_000)
"""Times after the end of a leadership at which the connections are closed."""


class Client(Protocol):
    """A connection of a client."""

    @property
    def is_open(self) -> bool:
        """Whether the connection is still usable."""

    def reset(self) -> None:
        """Send the pending output, and reset the connection."""


class StaleClients:
    """Closes the connections of clients to a broker that was the master."""

    def __init__(
        self,
        clients: Callable[[], Collection[Client]],
        is_busy: Callable[[Any], bool],
        now_ms: Callable[[], int],
    ) -> None:
        self._clients = clients
        self._is_busy = is_busy
        self._now_ms = now_ms
        self._due_ms: list[int] = []
        self._left: set[Client] = set()

    def begin(self) -> None:
        """Note that another broker becomes the master."""
        self._due_ms = [self._now_ms() + after_ms for after_ms in AFTER_MS]

    def end(self) -> None:
        """Note that this broker is the master again."""
        self._due_ms.clear()
        self._left.clear()

    def tick(self) -> None:
        """Close the connections that are due and have no request under way."""
        if self._due_ms and self._now_ms() >= self._due_ms[0]:
            self._due_ms.pop(0)
            self._left = set(self._clients())
        for one in tuple(self._left):
            if not one.is_open:
                self._left.discard(one)
            elif not self._is_busy(one):
                self._left.discard(one)
                one.reset()
