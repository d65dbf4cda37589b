# SPDX-License-Identifier: Apache-2.0
"""Connected producers by group (pure).

A client is identified by its connection. It registers with each heartbeat, and leaves by request,
by closing the connection, or by missing its heartbeats. Times are monotonic.
"""

from collections.abc import Collection
from typing import Final

import msgspec

from cometmq.remoting.command import Peer
from cometmq.remoting.names import INNER_PRODUCER_GROUP
from cometmq.runtime.incremental import Steps

CLIENT_SILENCE_MS: Final = 120_000  # heartbeats come every 30 s
STEP_CLIENTS: Final = 10_000
"""Number of registrations that one step examines in about 2 ms."""


class Client(msgspec.Struct):
    """A client on one connection; a client program may have several clients and connections.

    Each group has its own, because a client may leave one group without a word and go on with its
    heartbeats for another.
    """

    peer: Peer
    client_id: str
    language: int
    version: int
    seen_ms: int

    def is_silent(self, now_ms: int) -> bool:
        """Return whether the client has missed its heartbeats for too long."""
        return now_ms - self.seen_ms > CLIENT_SILENCE_MS


class Memberships:
    """Which connections are registered in which groups: group -> connection -> client."""

    def __init__(self) -> None:
        self._members: dict[str, dict[Peer, Client]] = {}
        self._joined: dict[Peer, set[str]] = {}

    def _join(self, group: str, client: Client) -> Client | None:
        """Add or refresh a client; return the one that its connection had in the group before."""
        clients = self._members.setdefault(group, {})
        known = clients.get(client.peer)
        if known is not None and known.client_id == client.client_id:
            known.seen_ms = client.seen_ms
        else:
            clients[client.peer] = msgspec.structs.replace(client)
            self._joined.setdefault(client.peer, set()).add(group)
        return known

    def _leave(self, group: str, peer: Peer) -> Client | None:
        """Remove a connection from a group, and the group if that was its last connection."""
        clients = self._members.get(group, {})
        client = clients.pop(peer, None)
        if client is not None:
            if not clients:
                del self._members[group]
            self._joined[peer].discard(group)
            if not self._joined[peer]:
                del self._joined[peer]
        return client

    def groups_of(self, peer: Peer) -> list[str]:
        """Return the groups in which a connection is registered."""
        return list(self._joined.get(peer, ()))

    def has_member(self, group: str, peer: Peer) -> bool:
        return peer in self._members.get(group, ())

    def left_by(self, client: Client, named: Collection[str]) -> list[str]:
        """Return the groups of a client on its connection, without the named ones."""
        left = self._joined.get(client.peer, set()).difference(named)
        return [it for it in left if self._members[it][client.peer].client_id == client.client_id]

    def peers_of(self, client_id: str) -> set[Peer]:
        return {
            peer
            for clients in self._members.values()
            for peer, client in clients.items()
            if client.client_id == client_id
        }

    def silent(self, now_ms: int) -> Steps[dict[Peer, list[str]]]:
        """Find the connections that have missed their heartbeats, each with its silent groups."""
        found: dict[Peer, list[str]] = {}
        count = 0
        for name, clients in list(self._members.items()):
            count += 1 + len(clients)
            if count > STEP_CLIENTS:
                yield
                count = len(clients)
            for peer, client in clients.items():
                if client.is_silent(now_ms):
                    found.setdefault(peer, []).append(name)
        return found

    @property
    def group_count(self) -> int:
        return len(self._members)

    @property
    def client_count(self) -> int:
        """The number of registrations: a client counts once in each of its groups."""
        return sum(map(len, self._members.values()))


class Producers(Memberships):
    """Also maps each client id to its connections.

    Compatibility: in RocketMQ, a client id no longer leads to a connection as soon as one of the
    client's groups leaves or one of its older connections closes. Here it does until the
    connection's last group leaves.
    """

    def __init__(self) -> None:
        super().__init__()
        # client id -> connection -> number of its groups
        self._places: dict[str, dict[Peer, int]] = {}

    def register(self, group: str, client: Client) -> None:
        """Add or refresh a client of the group."""
        known = self._join(group, client)
        if known is None or known.client_id != client.client_id:
            if known is not None:
                self._leave_place(known)
            places = self._places.setdefault(client.client_id, {})
            places[client.peer] = places.get(client.peer, 0) + 1

    def unregister(self, group: str, peer: Peer) -> None:
        """Remove a connection from a group, and the group if that was its last connection."""
        client = self._leave(group, peer)
        if client is not None:
            self._leave_place(client)

    def groups(self) -> list[tuple[str, list[Client]]]:
        return [(group, list(clients.values())) for group, clients in self._members.items()]

    def clients(self, group: str) -> list[Client]:
        """Return the clients of a group; empty if the group is not connected."""
        return list(self._members.get(group, {}).values())

    def find(self, client_id: str) -> Peer | None:
        """Return the newest open connection of a client's producers, for replies to its requests.

        The inner producer of Java's consumers is left out. It sends no requests, and anyone may
        register it with any client id, so it could get the replies to another client.
        """
        places = self._places.get(client_id, {})
        return next(
            (peer for peer in reversed(places) if peer.is_open and self._sends(peer, client_id)),
            None,
        )

    def _sends(self, peer: Peer, client_id: str) -> bool:
        return any(
            self._members[group][peer].client_id == client_id
            for group in self._joined[peer]
            if group != INNER_PRODUCER_GROUP
        )

    def _leave_place(self, client: Client) -> None:
        """Count one group less for a client's connection, and forget it after the last."""
        places = self._places[client.client_id]
        places[client.peer] -= 1
        if not places[client.peer]:
            del places[client.peer]
        if not places:
            del self._places[client.client_id]
