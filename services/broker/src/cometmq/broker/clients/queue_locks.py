# SPDX-License-Identifier: Apache-2.0
"""Queue locks of orderly consumers: at most one client of a group holds each queue (pure).

Compatibility: a lock expires 60 s after its last renewal; clients renew their locks every 20 s and
consider them lost after 30 s. Locks are not persisted: after a restart, the first client that
requests a lock gets it.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from cometmq.remoting.bodies.queues import MessageQueue

LOCK_LIFE_MS: Final = 60_000
COUNT_MAX: Final = 200_000  # of all groups together: about 100 MB


class QueueLock(msgspec.Struct):
    """The client that holds a queue, and the time of its last renewal."""

    client_id: str
    granted_ms: int

    def is_expired(self, now_ms: int) -> bool:
        """Return whether another client may take the queue."""
        return now_ms - self.granted_ms > LOCK_LIFE_MS


class QueueLocks:
    """All locks, as group -> queue -> lock."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[MessageQueue, QueueLock]] = {}
        self.version = 0
        """A version that changes when a lock gets another holder or none; renewals do not count."""

    def lock(
        self, group: str, client_id: str, queues: Iterable[MessageQueue], *, now_ms: int
    ) -> list[MessageQueue]:
        """Lock the queues that no other client holds; return those that this client now holds."""
        table = self._groups.setdefault(group, {})
        room = COUNT_MAX - self.count
        granted = []
        for queue in queues:
            held = table.get(queue)
            if held is not None and held.client_id == client_id:
                held.granted_ms = now_ms
            elif (held is None and room) or (held is not None and held.is_expired(now_ms)):
                room -= held is None
                table[queue] = QueueLock(client_id, now_ms)
                self.version += 1
            else:
                continue
            granted.append(queue)
        if not table:
            del self._groups[group]
        return granted

    def held(self, group: str, queues: Iterable[MessageQueue]) -> list[QueueLock]:
        """Return the locks on these queues, all of which must be held by clients of the group."""
        table = self._groups.get(group, {})
        return [table[queue] for queue in queues]

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
                del table[queue]
                self.version += 1
        if not table:
            del self._groups[group]

    def clear(self) -> None:
        """Drop all locks after a role change: clients lock their queues again at the new master."""
        self._groups.clear()
        self.version += 1

    def expire(self, *, now_ms: int) -> int:
        """Drop expired locks, so that dead groups use no memory; return how many were dropped."""
        dropped = 0
        for group, table in list(self._groups.items()):
            expired = [queue for queue, held in table.items() if held.is_expired(now_ms)]
            for queue in expired:
                del table[queue]
            dropped += len(expired)
            if not table:
                del self._groups[group]
        self.version += dropped
        return dropped

    @property
    def count(self) -> int:
        """The number of locks, including expired ones that have not been dropped yet."""
        return sum(map(len, self._groups.values()))
