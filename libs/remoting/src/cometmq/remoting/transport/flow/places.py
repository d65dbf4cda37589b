# SPDX-License-Identifier: Apache-2.0
"""Chooses the connection that a server closes for a new one when it has its maximum.

Connecting needs no account, and a silent connection costs its peer nothing. If new connections were
refused, a host that opens enough of them would exclude all other hosts. So a new one replaces
another: the oldest *stranger* of the host that has the most strangers, where a stranger is a
connection of which no request has been served. If there are none, it replaces a connection of
another host that has more than half of all connections. Otherwise the new connection is refused.

All steps take constant time, because a flood triggers them for each of its connections. Whether a
connection is still a stranger is therefore checked only when it is about to be replaced.

In names, a *guest* is a connection, and a *house* has all guests of one host. The connections of
one owner share its turns (`requester_of`).
"""

from typing import Final

from cometmq.remoting.transport.flow.connected import Connected
from cometmq.remoting.transport.flow.fair_queue import Requester


class _House:
    """The connections of one host: strangers and others (`known`), each with the oldest first."""

    __slots__ = ("known", "strangers")

    def __init__(self) -> None:
        self.strangers: dict[Connected, None] = {}
        self.known: dict[Connected, None] = {}

    def __len__(self) -> int:
        return len(self.strangers) + len(self.known)


class Places:
    """Counts the connections of one server by host, and chooses the connections to close."""

    __slots__ = ("_fullest", "_houses", "_most", "_ranks", "_total", "connections_max")

    def __init__(self, connections_max: int = 0) -> None:
        self.connections_max = connections_max
        """How many connections a server accepts; none while it stops."""
        self._houses: dict[bytes, _House] = {}
        self._ranks: dict[int, dict[_House, None]] = {}  # by the number of strangers
        self._most = 0
        self._total = 0
        self._fullest: _House | None = None  # the last one that had the majority

    def enter(self, guest: Connected) -> None:
        """Count a new connection."""
        house = self._houses.setdefault(host_of(guest), _House())
        house.strangers[guest] = None
        self._total += 1
        self._rank(house, 1)
        if 2 * len(house) > self._total:
            self._fullest = house

    def leave(self, guest: Connected) -> None:
        """Remove a connection that has ended; nothing happens if `yielder` has removed it
        before.
        """
        host = host_of(guest)
        house = self._houses.get(host)
        if house is None:
            return
        if guest in house.strangers:
            del house.strangers[guest]
            self._rank(house, -1)
        elif guest in house.known:
            del house.known[guest]
        else:
            return
        self._total -= 1
        if not len(house):
            del self._houses[host]

    def yielder(self, guest: Connected) -> Connected | None:
        """Remove and return the connection to close for `guest`, which is not counted yet; None if
        the server must refuse `guest`.
        """
        found = self._stranger() or self._of_majority(guest)
        if found is not None:
            self.leave(found)
        return found

    def _stranger(self) -> Connected | None:
        while self._most:
            house = next(iter(self._ranks[self._most]))
            guest = next(iter(house.strangers))
            if not guest.is_served:
                return guest
            del house.strangers[guest]
            house.known[guest] = None
            self._rank(house, -1)
        return None

    def _of_majority(self, guest: Connected) -> Connected | None:
        """Return the oldest connection of a host that has more than half of all; None if `guest` is
        of that host.
        """
        house = self._fullest
        if house is None or 2 * len(house) <= self._total:
            return None
        return None if house is self._houses.get(host_of(guest)) else next(iter(house.known))

    def _rank(self, house: _House, step: int) -> None:
        """Update the ranking after the number of a host's strangers has changed by `step`, 1 or
        -1.
        """
        count = len(house.strangers)
        before = self._ranks.get(count - step)
        if before is not None:
            before.pop(house, None)
            if not before:
                del self._ranks[count - step]
        if count:
            self._ranks.setdefault(count, {})[house] = None
        if count > self._most:
            self._most = count
        elif self._most and self._most not in self._ranks:
            self._most -= 1


def host_of(guest: Connected) -> bytes:
    """Return the IPv4 address, or the first 64 bits of the IPv6 address, without the port."""
    return guest.host[: 4 if len(guest.host) == 8 else 8]


ACCOUNT: Final = "account"
"""Key in `Peer.state` of the access key with which the connection last signed a request."""


def requester_of(peer: Connected) -> Requester:
    """Return the account of a connection, or its address before it has signed a request."""
    return Requester(peer.state.get(ACCOUNT) or host_of(peer), peer)
