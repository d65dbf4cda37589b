# SPDX-License-Identifier: Apache-2.0
"""Queue locks of orderly consumers: at most one client of a group holds each queue (pure).

Compatibility: a lock expires 60 s after its last renewal; clients renew their locks every 20 s and
consider them lost after 30 s. Locks are not persisted: after a restart, the first client that
requests a lock gets it.
"""

from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from cometmq.broker.limits import QUEUE_LOCKS, Room
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.runtime.incremental import Steps, finish
from cometmq.runtime.limits import LimitReached

LOCK_LIFE_MS: Final = 60_000
STEP_LOCKS: Final = 5_000
"""Number of locks that one step examines in 1 ms, or in 3 ms if all have expired."""


class QueueLock(msgspec.Struct):
    """The client that holds the lock of a queue, and when it last renewed it."""

    client_id: str
    granted_ms: int
    peer: str = ""
    """The account or address that took the lock."""

    def is_expired(self, now_ms: int) -> bool:
        """Return whether another client may take the queue."""
        return now_ms - self.granted_ms > LOCK_LIFE_MS


class QueueLocks:
    """All locks, as group -> queue -> lock."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[MessageQueue, QueueLock]] = {}
        self.count = 0
        """The number of locks, including expired ones that have not been dropped yet."""
        self.refusal: LimitReached | None = None
        """The limit because of which the last call of `lock` left queues unlocked, if any."""
        self.released: Callable[[str], None] = lambda _peer: None
        """Called with the peer of each lock that ends."""
        self.version = 0
        """Changes when a lock gets another holder or ends, not when it is renewed."""

    def lock(
        self,
        group: str,
        client_id: str,
        queues: Iterable[MessageQueue],
        *,
        now_ms: int,
        room: Room | None = None,
    ) -> list[MessageQueue]:
        """Lock the queues that no other client holds; return the queues that this client now holds.

        Set `refusal`.
        """
        table = self._groups.setdefault(group, {})
        granted: list[MessageQueue] = []
        self.refusal = None
        for queue in queues:
            held = table.get(queue)
            if held is not None and held.client_id == client_id:
                held.granted_ms = now_ms
            elif held is None or held.is_expired(now_ms):
                if self.refusal is not None:
                    continue
                if held is not None:
                    self._drop(table, queue)
                try:
                    self._take(table, queue, client_id, now_ms, room)
                except LimitReached as error:
                    self.refusal = error
                    continue
            else:
                continue
            granted.append(queue)
        if not table:
            del self._groups[group]
        return granted

    def _take(
        self,
        table: dict[MessageQueue, QueueLock],
        queue: MessageQueue,
        client_id: str,
        now_ms: int,
        room: Room | None,
    ) -> None:
        peer = ""
        if room is not None:
            room.admit(QUEUE_LOCKS, self.count)
            peer = room.peer
        table[queue] = QueueLock(client_id, now_ms, peer)
        self.count += 1
        self.version += 1

    def _drop(self, table: dict[MessageQueue, QueueLock], queue: MessageQueue) -> None:
        self.released(table.pop(queue).peer)
        self.count -= 1
        self.version += 1

    def held(
        self, group: str, client_id: str, queues: Iterable[MessageQueue]
    ) -> dict[MessageQueue, QueueLock]:
        """Return the locks that a client holds on these queues."""
        table = self._groups.get(group, {})
        found = ((queue, table.get(queue)) for queue in queues)
        return {queue: it for queue, it in found if it is not None and it.client_id == client_id}

    def renew(self, locks: Iterable[QueueLock], *, now_ms: int) -> None:
        """Renew locks that `held` has returned since `version` last changed."""
        for held in locks:
            held.granted_ms = now_ms

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Release the queues that the client holds; queues of other clients remain locked."""
        table = self._groups.get(group)
        if table is None:
            return
        for queue in queues:
            held = table.get(queue)
            if held is not None and held.client_id == client_id:
                self._drop(table, queue)
        if not table:
            del self._groups[group]

    def clear(self) -> None:
        """Drop all locks after a role change: clients lock their queues again at the new master."""
        for table in self._groups.values():
            for held in table.values():
                self.released(held.peer)
        self._groups.clear()
        self.count = 0
        self.version += 1

    def expire(self, *, now_ms: int) -> int:
        """Drop the expired locks for which no client asks; return how many."""
        return finish(self.expiring(now_ms=now_ms))

    def expiring(self, *, now_ms: int) -> Steps[int]:
        """Drop expired locks in steps; see `expire`."""
        dropped = count = 0
        for group, table in list(self._groups.items()):
            for queue, held in list(table.items()):
                count += 1
                if not count % STEP_LOCKS:
                    yield
                if held.is_expired(now_ms) and table.get(queue) is held:
                    self._drop(table, queue)
                    dropped += 1
            if not table and self._groups.get(group) is table:
                del self._groups[group]
        return dropped
