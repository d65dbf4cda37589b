# SPDX-License-Identifier: Apache-2.0
"""What each connection has registered: its groups, and the size of their subscriptions (pure).

The tables of consumers and producers hold the registrations themselves; this table bounds them.
"""

from typing import Final, TypeAlias

import msgspec

from cometmq.broker.limits import (
    CONNECTION_REGISTRATIONS,
    CONNECTION_SUBSCRIPTION_BYTES,
    REGISTRATIONS,
    SUBSCRIPTION_BYTES,
    Room,
)
from cometmq.remoting.bodies.heartbeat import ConsumerData, SubscriptionData
from cometmq.remoting.command import Peer
from cometmq.runtime.limits import Limits

Place: TypeAlias = tuple[str, bool]
"""A group, and whether the connection consumes in it."""

_ENTRY_BYTES: Final = 100  # of one subscription or group, beside its texts
_TAG_BYTES: Final = 50


class _Connection(msgspec.Struct):
    owner: str
    """The account or address that the registrations count for."""
    sizes: dict[Place, int] = {}
    size: int = 0


class Registered:
    def __init__(self, limits: Limits) -> None:
        self.count = 0
        self.size = 0
        self._connections: dict[Peer, _Connection] = {}
        self._limits = limits

    def admit(self, peer: Peer, group: str, size: int, room: Room, *, consumes: bool) -> None:
        """Count a registration, or its new size; raise LimitReached if there is no room for it."""
        known = self._connections.get(peer)
        place = (group, consumes)
        old = None if known is None else known.sizes.get(place)
        if known is not None and old == size:
            return  # a heartbeat like the last one
        count, total = (0, 0) if known is None else (len(known.sizes), known.size)
        more = size - (old or 0)
        room.check(CONNECTION_REGISTRATIONS, count + (old is None), "a connection")
        if more > 0:
            room.check(CONNECTION_SUBSCRIPTION_BYTES, total + more, "a connection")
            room.admit(SUBSCRIPTION_BYTES, self.size, more)
        if old is None:
            try:
                room.admit(REGISTRATIONS, self.count)
            except Exception:
                self._limits.release(SUBSCRIPTION_BYTES, room.peer, more)
                raise
            self.count += 1
        if known is None:
            known = self._connections[peer] = _Connection(room.peer)
        if more < 0:
            self._limits.release(SUBSCRIPTION_BYTES, known.owner, -more)
        known.sizes[place] = size
        known.size += more
        self.size += more

    def leave(self, peer: Peer, group: str, *, consumes: bool) -> None:
        """Forget a group of a connection, if it is registered."""
        known = self._connections.get(peer)
        size = None if known is None else known.sizes.pop((group, consumes), None)
        if known is None or size is None:
            return
        self._release(known.owner, 1, size)
        known.size -= size
        if not known.sizes:
            del self._connections[peer]

    def drop(self, peer: Peer) -> None:
        """Forget a closed connection."""
        known = self._connections.pop(peer, None)
        if known is not None:
            self._release(known.owner, len(known.sizes), known.size)

    def _release(self, owner: str, count: int, size: int) -> None:
        self.count -= count
        self.size -= size
        self._limits.release(REGISTRATIONS, owner, count)
        self._limits.release(SUBSCRIPTION_BYTES, owner, size)


def consumer_size(client_id: str, data: ConsumerData) -> int:
    """Return about how many bytes a consumer's registration takes."""
    base = _ENTRY_BYTES + len(client_id) + len(data.group_name)
    return base + sum(map(_subscription_size, data.subscription_data_set))


def producer_size(client_id: str, group: str) -> int:
    return _ENTRY_BYTES + len(client_id) + len(group)


def _subscription_size(wanted: SubscriptionData) -> int:
    texts = len(wanted.topic) + len(wanted.sub_string) + len(wanted.expression_type)
    source = len(wanted.filter_class_source or "")
    tags = sum(map(len, wanted.tags_set)) + _TAG_BYTES * len(wanted.tags_set)
    codes = _TAG_BYTES * len(wanted.code_set)
    return _ENTRY_BYTES + texts + source + tags + codes
