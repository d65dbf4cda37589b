# SPDX-License-Identifier: Apache-2.0
"""Takes and leaves queues without losing messages, and calls the application at each step.

To take a queue: lock it if the consumer is orderly, find its first offset, call `on_assigned`, then
read. To leave a queue: stop reading, wait for running listener calls or ignore their results, store
its offset, call `on_revoked`, then unlock.

Invariants
    The offset of a locked queue is stored only while the lock is certainly valid, because the next
    owner may have stored a higher one. A queue without a lock is handed to its next owner at once,
    so its offset is stored immediately, in a single attempt. The lock is released even if the store
    or the application fails.
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from cometmq.client.application_calls import Failures, tell
from cometmq.client.clock import monotonic_ms
from cometmq.client.consume.queues.locks import QueueLocks
from cometmq.client.consume.queues.parts import ConsumerParts, QueuesCallback
from cometmq.client.consume.queues.process_queue import ProcessQueue
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.names import RETRY_PREFIX

FORCED_LEAVE_MS: Final = 60_000
"""Time limit for the listener of a queue without a lock, and for an `on_revoked` callback."""

LEAVE_COMMIT_MS: Final = 20_000
"""Time limit for storing the offsets of locked queues that are being left, with retries."""

END_COMMIT_MS: Final = 5_000
"""Time limit for storing offsets on close, with retries, while the caller is waiting."""

COMMIT_RETRY_MS: Final = 500

GIVEN_UP_SHOWN_MAX: Final = 16
"""Number of unstored offsets that one event lists."""


class Ownership:
    """Runs the steps of taking and leaving the queues of one consumer."""

    def __init__(self, parts: ConsumerParts, locks: QueueLocks | None = None) -> None:
        """`locks` are those of an orderly consumer."""
        self._callbacks = parts.callbacks
        self._group = parts.callbacks.group
        self._offsets = parts.offsets
        self._background = parts.background
        self._namespace = parts.instance.namespace
        self._failed = parts.instance.outages.failed
        self._log = parts.instance.log
        self._locks = locks
        self._leaving: dict[MessageQueue, asyncio.Task[None]] = {}
        self._assigning = asyncio.Lock()

    async def claim(self, queues: Collection[MessageQueue]) -> list[MessageQueue]:
        """Return the queues that may be read now; the caller retries the others later."""
        free = [queue for queue in queues if queue not in self._leaving]
        return free if self._locks is None else await self._locks.acquire(free)

    async def disclaim(self, queues: Collection[MessageQueue]) -> None:
        """Release claims on queues that turned out not to be readable."""
        if self._locks is not None:
            await self._locks.release(queues)

    async def taken(self, queues: Iterable[MessageQueue]) -> None:
        """Call `on_assigned`, for one topic of one broker at a time."""
        async with self._assigning:
            await self._tell("on_assigned", self._callbacks.assigned, queues)

    async def told_revoked(self, queues: Iterable[MessageQueue]) -> None:
        """Call `on_revoked`, and wait up to a minute for it."""
        try:
            async with asyncio.timeout(FORCED_LEAVE_MS / 1000):
                await self._tell("on_revoked", self._callbacks.revoked, queues)
        except TimeoutError:
            self._log.warning(
                "callback.failed",
                group=self._group,
                callback="on_revoked",
                error=f"it took longer than {FORCED_LEAVE_MS} ms, and was cancelled",
            )

    async def leave(self, held: Collection[ProcessQueue], *, is_lost: bool = False) -> None:
        """Leave queues; `is_lost` means that another member owns them already.

        Slow steps continue in the background; until they end, the queues cannot be taken again.
        """
        queues = [one.queue for one in held]
        # There is nothing to wait for: the next owner may repeat the calls that are still running.
        if self._locks is None and self._callbacks.revoked is None:
            self._disown(held)
            await self.persist(queues)
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
        """Leave all queues; the results of listener calls that are still running are ignored.

        With `is_drained`, first wait up to a minute for queues that were being left already.
        """
        self._disown(held)
        if self._leaving and is_drained:
            _, late = await asyncio.wait(
                set(self._leaving.values()), timeout=FORCED_LEAVE_MS / 1000
            )
            if late:
                self._log.warning("queues.undrained", group=self._group, count=len(self._leaving))
        queues = [one.queue for one in held]
        late_leavers = () if self._locks is None else self._leaving
        await self._store([*queues, *late_leavers], END_COMMIT_MS)
        await self.told_revoked(queues)
        if self._locks is not None:
            await self._locks.release_all()

    async def commit(self, queues: Iterable[MessageQueue]) -> bool:
        """Store offsets; return whether that succeeded."""
        try:
            with Failures():
                await self._offsets.commit(queues)
        except Exception as error:  # noqa: BLE001  # an offset store may be application code
            self._failed("offset.unsaved", error, group=self._group)
            return False
        return True

    async def persist(self, queues: Iterable[MessageQueue]) -> None:
        """Store offsets without waiting for an answer; a failure is logged."""
        try:
            with Failures():
                await self._offsets.persist(queues)
        except Exception as error:  # noqa: BLE001  # an offset store may be application code
            self._failed("offset.unsaved", error, group=self._group)

    async def _store(self, queues: Collection[MessageQueue], limit_ms: int) -> None:
        """Store offsets, retrying for up to `limit_ms` while the queues are ours.

        If an offset cannot be stored, the next owner of the queue receives its messages again.
        """
        deadline_ms = monotonic_ms() + limit_ms
        while True:
            is_done = await self.commit(self._ours(queues)) and not self._waits_for_locks(queues)
            if is_done or monotonic_ms() >= deadline_ms:
                break
            await asyncio.sleep(COMMIT_RETRY_MS / 1000)
        lost = {
            queue: offset
            for queue in queues
            if (offset := self._offsets.unsaved(queue)) is not None
        }
        if lost:
            self._log.warning(
                "offset.given_up",
                group=self._group,
                count=len(lost),
                offsets=self._shown(lost),
                advice="the messages between the committed offsets and these are redelivered",
            )

    def _shown(self, offsets: Mapping[MessageQueue, int]) -> list[str]:
        """Return the first offsets in the form `topic@broker:queue=offset`."""
        shown: list[str] = []
        for full in sorted(offsets)[:GIVEN_UP_SHOWN_MAX]:
            queue = self._namespace.unwrap_queue(full)
            shown.append(f"{queue.topic}@{queue.broker_name}:{queue.queue_id}={offsets[full]}")
        return shown if len(offsets) == len(shown) else [*shown, "..."]

    def _ours(self, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        locks = self._locks
        return [queue for queue in queues if locks is None or locks.is_valid(queue)]

    def _waits_for_locks(self, queues: Iterable[MessageQueue]) -> bool:
        """Return whether an offset cannot be stored until an expired lock is renewed."""
        locks = self._locks
        if locks is None:
            return False
        waits = any(
            self._offsets.unsaved(queue) is not None
            for queue in queues
            if locks.is_held(queue) and not locks.is_valid(queue)
        )
        if waits:
            locks.renew_now()
        return waits

    def _apart(self, held: Collection[ProcessQueue]) -> list[Collection[ProcessQueue]]:
        """Split queues into groups that can be left independently, so that none keeps the others
        locked.

        Otherwise a busy listener or an unresponsive broker would delay all queues.
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
            # Stored before the wait: without locks, the next owner may start at the stored offset
            # at any time.
            if self._locks is None:
                await self.commit(queues)
            await self._wait(held)
            self._disown(held)
            # Stored after the wait: the lock keeps others away, so the next owner starts after the
            # last call.
            if self._locks is not None:
                await self._store(queues, LEAVE_COMMIT_MS)
            await self.told_revoked(queues)
            await self.disclaim(queues)
        finally:
            self._forget(queues)
            for queue in queues:
                self._leaving.pop(queue, None)

    async def _wait(self, held: Iterable[ProcessQueue]) -> None:
        """Wait for the listener; there is no time limit while a lock keeps other members away."""
        limit_s = None if self._locks is not None else FORCED_LEAVE_MS / 1000
        try:
            async with asyncio.timeout(limit_s):
                for one in held:
                    await one.calls.idle()
        except TimeoutError:
            self._log.warning("queues.undrained", group=self._group, count=len(list(held)))

    async def _tell(
        self, name: str, callback: QueuesCallback | None, queues: Iterable[MessageQueue]
    ) -> None:
        visible = sorted(
            self._namespace.unwrap_queue(queue)
            for queue in queues
            if not queue.topic.startswith(RETRY_PREFIX)
        )
        if callback is not None and visible:
            await tell(
                callback,
                visible,
                client=self._callbacks.client,
                name=name,
                group=self._group,
                log=self._log,
                topics=sorted({queue.topic for queue in visible}),
                queue_count=len(visible),
            )

    def _disown(self, held: Iterable[ProcessQueue]) -> None:
        for one in held:
            one.is_dropped = True

    def _forget(self, queues: Iterable[MessageQueue]) -> None:
        for queue in queues:
            self._offsets.forget(queue)
