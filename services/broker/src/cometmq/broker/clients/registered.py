# SPDX-License-Identifier: Apache-2.0
"""Bounds what connections register, and revokes it when an account loses its rights (pure).

A registration is a producer or consumer group of one connection. The registrations themselves are
in `producers.py` and `consumers.py`; this table has their sizes, owners and accounts.
"""

from collections.abc import Callable, Iterable
from typing import Final, TypeAlias

import msgspec

from cometmq.broker.limits import (
    CONNECTION_REGISTRATIONS,
    CONNECTION_SUBSCRIPTION_BYTES,
    REGISTRATIONS,
    SUBSCRIPTION_BYTES,
    Room,
)
from cometmq.remoting.bodies.heartbeat import SubscriptionData
from cometmq.remoting.command import Peer
from cometmq.runtime.incremental import Steps
from cometmq.runtime.limits import Limits

Place: TypeAlias = tuple[str, bool]
"""A group, and whether the connection consumes in it."""

STEP_CHECKS: Final = 1_000
"""Number of registrations whose rights one step checks in about 2 ms."""
REVOKE_COST: Final = 20
"""Revoking a connection counts as this many checks, because it takes as long."""

_ENTRY_BYTES: Final = 420  # of one subscription or group, beside its texts
_TAG_BYTES: Final = 50


class _Registration(msgspec.Struct):
    owner: str
    """The access key or address that added it, against whose limit its size always counts."""
    account: str | None
    """The access key that added it; None if no account was needed."""
    size: int


class _Connection(msgspec.Struct):
    places: dict[Place, _Registration] = {}
    size: int = 0


class Registered:
    def __init__(self, limits: Limits) -> None:
        self.count = 0
        self.size = 0
        self.rights_checks = 0
        """Number of calls of `check_rights`."""
        self._connections: dict[Peer, _Connection] = {}
        self._limits = limits

    def admit(self, peer: Peer, group: str, size: int, room: Room, *, consumes: bool) -> None:
        """Note a registration or its new size; raise LimitReached if there is no room for it."""
        known = self._connections.get(peer)
        place = (group, consumes)
        old = None if known is None else known.places.get(place)
        if old is not None and old.size == size:
            return  # a heartbeat like the last one
        count, total = (0, 0) if known is None else (len(known.places), known.size)
        by = _Registration(room.peer, room.account, 0) if old is None else old
        owner, more = by.owner, size - by.size
        room.check(CONNECTION_REGISTRATIONS, count + (old is None), "a connection")
        if more > 0:
            room.check(CONNECTION_SUBSCRIPTION_BYTES, total + more, "a connection")
            self._limits.admit(SUBSCRIPTION_BYTES, self.size, owner, more)
        if old is None:
            try:
                self._limits.admit(REGISTRATIONS, self.count, owner)
            except Exception:
                self._limits.release(SUBSCRIPTION_BYTES, owner, more)
                raise
            self.count += 1
        if known is None:
            known = self._connections[peer] = _Connection()
        if more < 0:
            self._limits.release(SUBSCRIPTION_BYTES, owner, -more)
        known.places[place] = _Registration(owner, by.account, size)
        known.size += more
        self.size += more

    def leave(self, peer: Peer, group: str, *, consumes: bool) -> None:
        """Forget a group of a connection, if it is registered."""
        known = self._connections.get(peer)
        gone = None if known is None else known.places.pop((group, consumes), None)
        if known is None or gone is None:
            return
        self._release(gone)
        known.size -= gone.size
        if not known.places:
            del self._connections[peer]

    def drop(self, peer: Peer) -> None:
        """Forget a closed connection."""
        known = self._connections.pop(peer, None)
        if known is not None:
            for gone in known.places.values():
                self._release(gone)

    def check_rights(
        self, may_stay: Callable[[Peer, str | None, Place], bool], revoke: Callable[[Peer], None]
    ) -> Steps[None]:
        """Call `revoke` for each connection with a registration that its account
        may no longer have.

        Registrations that are added after the first step are not checked: they needed the right.
        """
        self.rights_checks += 1
        left = STEP_CHECKS
        for peer, known in list(self._connections.items()):
            for place, it in list(known.places.items()):
                if left <= 0:
                    left = STEP_CHECKS
                    yield
                left -= 1
                if not may_stay(peer, it.account, place):
                    left -= REVOKE_COST
                    revoke(peer)
                    break

    def _release(self, gone: _Registration) -> None:
        self.count -= 1
        self.size -= gone.size
        self._limits.release(REGISTRATIONS, gone.owner)
        self._limits.release(SUBSCRIPTION_BYTES, gone.owner, gone.size)


def registration_size(client_id: str, group: str) -> int:
    """Estimate the memory of a registration in bytes, without its subscriptions."""
    return _ENTRY_BYTES + len(client_id) + len(group)


def subscriptions_size(asked: Iterable[SubscriptionData]) -> int:
    """Estimate the memory of subscriptions in bytes."""
    return sum(map(_subscription_size, asked))


def _subscription_size(wanted: SubscriptionData) -> int:
    texts = len(wanted.topic) + len(wanted.sub_string) + len(wanted.expression_type)
    source = len(wanted.filter_class_source or "")
    tags = sum(map(len, wanted.tags_set)) + _TAG_BYTES * len(wanted.tags_set)
    codes = _TAG_BYTES * len(wanted.code_set)
    return _ENTRY_BYTES + texts + source + tags + codes
