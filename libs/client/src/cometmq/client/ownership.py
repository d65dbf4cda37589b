# SPDX-License-Identifier: Apache-2.0
"""Taking queues and leaving them, in an order in which nothing is lost and the application knows.

A queue that is taken: locked if the consumer is orderly, its first offset found, the application
told, then read. A queue that is left: no longer read, what runs finished or disowned, its offset
stored, the application told, then unlocked.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Final

import msgspec

from cometmq.client.background import Background, described
from cometmq.client.listener import called
from cometmq.client.namespace import RETRY_PREFIX, Namespace
from cometmq.client.offsets import OffsetStore
from cometmq.client.process_queue import ProcessQueue
from cometmq.client.queue_locks import QueueLocks
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.errors import CometError
from cometmq.remoting.log import Log

QueuesCallback = Callable[[list[MessageQueue]], Awaitable[None] | None]
"""A coroutine function, or a plain one, which is called on a thread."""

FORCED_LEAVE_MS: Final = 60_000
"""How long a queue without a lock waits for its listener before the application is told anyway,
and how long the end waits for an application that is being told."""


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
        background: Background,
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
        """Tell the application that queues are ours no longer."""
        await self._tell(self._callbacks.revoked, queues)

    async def leave(self, held: Collection[ProcessQueue], *, is_lost: bool = False) -> None:
        """Let queues go; `is_lost` means that somebody else has them already.

        What takes its time goes on in the background; until its end they cannot be taken again.
        """
        queues = [one.queue for one in held]
        if self._locks is None and self._callbacks.revoked is None:
            self._disown(held)
            await self._offsets.persist(queues)
            self._forget(queues)
            return
        for one in held:
            one.is_leaving = True
        if is_lost or self._locks is None:
            self._disown(held)
            if not is_lost:
                await self._offsets.persist(queues)
        for part in self._apart(held):
            task = self._background.spawn(self._finish(part, is_lost=is_lost), name="leave-queues")
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
        await self.commit(queues)
        await self.told_revoked(queues)
        if self._locks is not None:
            await self._locks.release_all()

    async def commit(self, queues: Iterable[MessageQueue]) -> None:
        """Store offsets, and return when that has succeeded or failed."""
        try:
            await self._offsets.commit(queues)
        except (CometError, OSError) as error:
            self._log.warning("offset.unsaved", error=described(error))

    def _apart(self, held: Collection[ProcessQueue]) -> list[Collection[ProcessQueue]]:
        """Return lists that leave each by itself: a busy queue keeps no other one locked."""
        if self._locks is None:
            return [held]
        idle = [one for one in held if one.calls.is_idle]
        return [idle, *([one] for one in held if not one.calls.is_idle)]

    async def _finish(self, held: Collection[ProcessQueue], *, is_lost: bool) -> None:
        queues = [one.queue for one in held]
        try:
            await self._wait(held)
            self._disown(held)
            if not is_lost:
                await self.commit(queues)
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
            self._log.warning("callback.failed", error=described(error))

    def _disown(self, held: Iterable[ProcessQueue]) -> None:
        for one in held:
            one.is_dropped = True

    def _forget(self, queues: Iterable[MessageQueue]) -> None:
        for queue in queues:
            self._offsets.forget(queue)
