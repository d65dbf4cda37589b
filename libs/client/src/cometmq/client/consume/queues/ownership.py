# SPDX-License-Identifier: Apache-2.0
"""Taking queues and leaving them, in an order in which nothing is lost and the application knows.

A queue that is taken: locked if the consumer is orderly, its first offset found, the application
told, then read. A queue that is left: no longer read, what runs finished or disowned, its offset
stored, the application told, then unlocked.

Invariants
    The offset of a locked queue is stored while the lock is certainly ours, and never later: its
    next owner may have stored more. Without locks the next owner begins at once, so there is one
    try, at once. Whatever the store or the application does, the lock is given back.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Final

import msgspec

from cometmq.client.clock import monotonic_ms
from cometmq.client.consume.queues.locks import QueueLocks
from cometmq.client.consume.queues.offsets import OffsetStore
from cometmq.client.consume.queues.process_queue import ProcessQueue
from cometmq.client.listener import called
from cometmq.client.namespace import RETRY_PREFIX, Namespace
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.log import Log
from cometmq.remoting.transport.tasks import TaskSet, describe

QueuesCallback = Callable[[list[MessageQueue]], Awaitable[None] | None]
"""A coroutine function, or a plain one, which is called on a thread."""

FORCED_LEAVE_MS: Final = 60_000
"""How long a queue without a lock waits for its listener before the application is told anyway,
and how long anything waits for an application that is being told of what it lost."""

LEAVE_COMMIT_MS: Final = 20_000
"""How long storing the offsets of locked queues that leave is tried again."""

END_COMMIT_MS: Final = 5_000
"""The same at the end, for which somebody waits."""

COMMIT_RETRY_MS: Final = 500


class OwnershipCallbacks(msgspec.Struct):
    """Whom to tell about the own queues; the retry topic's are not mentioned."""

    assigned: QueuesCallback | None = None
    revoked: QueuesCallback | None = None


class Ownership:
    """What happens around the queues of one consumer when they come and go."""

    def __init__(
        self,
        offsets: OffsetStore,
        *,
        callbacks: OwnershipCallbacks,
        locks: QueueLocks | None,
        namespace: Namespace,
        background: TaskSet,
        log: Log,
    ) -> None:
        """Start without queues."""
        self._offsets = offsets
        self._callbacks = callbacks
        self._locks = locks
        self._namespace = namespace
        self._background = background
        self._log = log
        self._leaving: dict[MessageQueue, asyncio.Task[None]] = {}

    async def claim(self, queues: Collection[MessageQueue]) -> list[MessageQueue]:
        """Return those of the queues that may be read now; the others have to be tried again."""
        free = [queue for queue in queues if queue not in self._leaving]
        return free if self._locks is None else await self._locks.acquire(free)

    async def disclaim(self, queues: Collection[MessageQueue]) -> None:
        """Give up claims on queues that were not read in the end."""
        if self._locks is not None:
            await self._locks.release(queues)

    async def taken(self, queues: Iterable[MessageQueue]) -> None:
        """Tell the application."""
        await self._tell(self._callbacks.assigned, queues)

    async def told_revoked(self, queues: Iterable[MessageQueue]) -> None:
        """Tell the application that queues are ours no longer, and wait a minute for it."""
        try:
            async with asyncio.timeout(FORCED_LEAVE_MS / 1000):
                await self._tell(self._callbacks.revoked, queues)
        except TimeoutError:
            self._log.warning("callback.failed", error=f"it took over {FORCED_LEAVE_MS} ms")

    async def leave(self, held: Collection[ProcessQueue], *, is_lost: bool = False) -> None:
        """Let queues go; `is_lost` means that somebody else has them already.

        What takes its time goes on in the background; until its end they cannot be taken again.
        """
        queues = [one.queue for one in held]
        if self._locks is None and self._callbacks.revoked is None:
            self._disown(held)
            await self._persist(queues)
            self._forget(queues)
            return
        for one in held:
            one.is_leaving = True
        if is_lost or self._locks is None:
            self._disown(held)
        if is_lost:
            self._forget(queues)
        for part in self._apart(held):
            task = self._background.spawn(self._finish(part), name="leave-queues")
            self._leaving.update(dict.fromkeys((one.queue for one in part), task))

    async def close(self, held: Collection[ProcessQueue], *, is_drained: bool) -> None:
        """Let all queues go; if not drained, what still runs is given up."""
        self._disown(held)
        if self._leaving and is_drained:
            _, late = await asyncio.wait(
                set(self._leaving.values()), timeout=FORCED_LEAVE_MS / 1000
            )
            if late:
                self._log.warning("queues.undrained", count=len(self._leaving))
        queues = [one.queue for one in held]
        late_leavers = () if self._locks is None else self._leaving
        await self._store([*queues, *late_leavers], END_COMMIT_MS)
        await self.told_revoked(queues)
        if self._locks is not None:
            await self._locks.release_all()

    async def commit(self, queues: Iterable[MessageQueue]) -> bool:
        """Store offsets, and return whether that has succeeded."""
        try:
            await self._offsets.commit(queues)
        except Exception as error:  # noqa: BLE001  # a store may be foreign code
            self._log.warning("offset.unsaved", error=describe(error))
            return False
        return True

    async def _persist(self, queues: Iterable[MessageQueue]) -> None:
        try:
            await self._offsets.persist(queues)
        except Exception as error:  # noqa: BLE001  # as above
            self._log.warning("offset.unsaved", error=describe(error))

    async def _store(self, queues: Collection[MessageQueue], limit_ms: int) -> None:
        """Store offsets, again and again while that fails, the queues are ours and there is time.

        What is lost all the same comes to the next owner again.
        """
        deadline_ms = monotonic_ms() + limit_ms
        while True:
            is_done = await self.commit(self._ours(queues)) and not self._waits_for_locks(queues)
            if is_done or monotonic_ms() >= deadline_ms:
                break
            await asyncio.sleep(COMMIT_RETRY_MS / 1000)
        lost = sum(self._offsets.unsaved(queue) is not None for queue in queues)
        if lost:
            self._log.warning("offset.given_up", count=lost)

    def _ours(self, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        locks = self._locks
        return [queue for queue in queues if locks is None or locks.is_valid(queue)]

    def _waits_for_locks(self, queues: Iterable[MessageQueue]) -> bool:
        """Whether an offset cannot be stored before a lock that ran out is renewed."""
        locks = self._locks
        if locks is None:
            return False
        waits = any(
            self._offsets.unsaved(queue) is not None
            for queue in queues
            if locks.is_held(queue) and not locks.is_valid(queue)
        )
        if waits:
            locks.renew_soon()
        return waits

    def _apart(self, held: Collection[ProcessQueue]) -> list[Collection[ProcessQueue]]:
        """Return lists that leave each by itself, so that none keeps the others locked.

        That would be a busy queue, or one whose broker does not answer.
        """
        if self._locks is None:
            return [held]
        idle: dict[str, list[ProcessQueue]] = {}
        for one in held:
            if one.calls.is_idle:
                idle.setdefault(one.queue.broker_name, []).append(one)
        return [*idle.values(), *([one] for one in held if not one.calls.is_idle)]

    async def _finish(self, held: Collection[ProcessQueue]) -> None:
        queues = [one.queue for one in held]
        try:
            if self._locks is None:
                await self.commit(queues)
            await self._wait(held)
            self._disown(held)
            if self._locks is not None:
                await self._store(queues, LEAVE_COMMIT_MS)
            await self.told_revoked(queues)
            await self.disclaim(queues)
        finally:
            self._forget(queues)
            for queue in queues:
                self._leaving.pop(queue, None)

    async def _wait(self, held: Iterable[ProcessQueue]) -> None:
        """Wait for the listener: as long as it takes if a lock keeps others away."""
        limit_s = None if self._locks is not None else FORCED_LEAVE_MS / 1000
        try:
            async with asyncio.timeout(limit_s):
                for one in held:
                    await one.calls.idle()
        except TimeoutError:
            self._log.warning("queues.undrained", count=len(list(held)))

    async def _tell(self, callback: QueuesCallback | None, queues: Iterable[MessageQueue]) -> None:
        visible = sorted(
            self._namespace.unwrap_queue(queue)
            for queue in queues
            if not queue.topic.startswith(RETRY_PREFIX)
        )
        if callback is None or not visible:
            return
        try:
            await called(callback, visible)
        except Exception as error:  # noqa: BLE001  # foreign code: the queues move all the same
            self._log.warning("callback.failed", error=describe(error), exc_info=error)

    def _disown(self, held: Iterable[ProcessQueue]) -> None:
        for one in held:
            one.is_dropped = True

    def _forget(self, queues: Iterable[MessageQueue]) -> None:
        for queue in queues:
            self._offsets.forget(queue)
