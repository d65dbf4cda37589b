# SPDX-License-Identifier: Apache-2.0
"""Connected producers by group (pure): whom to ask about transactions, whom to show.

A client is known by its connection: it registers with each heartbeat and leaves by request,
by closing the connection, or by silence.
"""

from collections.abc import Iterator
from typing import Final

import msgspec

from cometmq.remoting.command import Peer

CLIENT_SILENCE_MS: Final = 120_000


class Client(msgspec.Struct):
    """One client program on one connection."""

    peer: Peer
    client_id: str
    language: int
    version: int
    seen_ms: int

    def is_silent(self, now_ms: int) -> bool:
        """Tell whether the client missed its heartbeats for too long."""
        return now_ms - self.seen_ms > CLIENT_SILENCE_MS


class Producers:
    """group -> connection -> client."""

    def __init__(self) -> None:
        """Start without clients."""
        self._groups: dict[str, dict[Peer, Client]] = {}
        self._next: dict[str, int] = {}

    def register(self, group: str, client: Client) -> None:
        """Add or refresh a client of the group."""
        clients = self._groups.setdefault(group, {})
        known = clients.get(client.peer)
        if known is None or known.client_id != client.client_id:
            clients[client.peer] = client
        else:
            known.seen_ms = client.seen_ms

    def unregister(self, group: str, peer: Peer) -> None:
        """Remove the connection from the group; the last one removes the group."""
        clients = self._groups.get(group)
        if clients is None or clients.pop(peer, None) is None:
            return
        if not clients:
            del self._groups[group]
            self._next.pop(group, None)

    def drop(self, peer: Peer) -> None:
        """Forget a closed connection in all groups."""
        for group in [group for group, clients in self._groups.items() if peer in clients]:
            self.unregister(group, peer)

    def silent(self, now_ms: int) -> set[Peer]:
        """Return the connections whose clients should be given up."""
        return {client.peer for client in self._all() if client.is_silent(now_ms)}

    def clients(self, group: str) -> list[Client]:
        """Return the clients of a group; empty when it is not connected."""
        return list(self._groups.get(group, {}).values())

    def groups(self) -> dict[str, list[Client]]:
        """Return all groups with their clients."""
        return {group: list(clients.values()) for group, clients in self._groups.items()}

    def find(self, client_id: str) -> Client | None:
        """Return a connected client by its id (for replies that go to a requester)."""
        for client in self._all():
            if client.client_id == client_id and client.peer.is_open:
                return client
        return None

    def any_writable(self, group: str) -> Client | None:
        """Return a client of the group that can take a request, in turn; None if none can."""
        clients = self.clients(group)
        start = self._next.get(group, 0)
        for step in range(len(clients)):
            client = clients[(start + step) % len(clients)]
            if client.peer.is_open and client.peer.is_writable:
                self._next[group] = (start + step + 1) % len(clients)
                return client
        return None

    @property
    def group_count(self) -> int:
        """Return the number of connected groups."""
        return len(self._groups)

    @property
    def client_count(self) -> int:
        """Return the number of registrations."""
        return sum(map(len, self._groups.values()))

    def _all(self) -> Iterator[Client]:
        for clients in self._groups.values():
            yield from clients.values()
