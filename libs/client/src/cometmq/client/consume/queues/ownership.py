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
from contextlib import suppress
from typing import Final

from cometmq.client.application_calls import Failures, tell
from cometmq.client.clock import monotonic_ms
from cometmq.client.consume.queues.first_offsets import QueueOffsets
from cometmq.client.consume.queues.locks import QueueLocks
from cometmq.client.consume.queues.parts import ConsumerParts, QueuesCallback
from cometmq.client.consume.queues.reader import ProcessQueue
from cometmq.client.errors import InvalidArgument
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.bodies.running_info import ProcessQueueInfo
from cometmq.remoting.errors import CometError
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


class RecordedOffsets:
    """The offsets that the application records; those beyond the end of a queue are refused.

    A broker accepts an offset beyond the end of a queue, and any queue number; the group would then
    skip messages. For the same reason, such an offset must not be kept until the queue has grown.
    """

    def __init__(self, parts: ConsumerParts) -> None:
        self._parts = parts
        self._offsets = parts.offsets
        self.bounds = QueueOffsets(parts.instance)
        self.ends: dict[MessageQueue, int] = {}
        """The last known end of each queue."""
        self._noted: set[MessageQueue] = set()
        self._refusals: dict[MessageQueue, InvalidArgument] = {}
        """The errors for offsets dropped since the last `commit`; the next `commit` raises one."""
        self._logged: set[MessageQueue] = set()
        """The queues whose refusals have been logged."""

    async def find(self, queue: MessageQueue, *, from_store: bool) -> int | None:
        """Return the group's offset or None; read it from memory unless `from_store` is set."""
        position = None if from_store else self._offsets.position(queue)
        if position is not None:
            return position
        await self._parts.instance.routes.find_queue(queue)
        return await self._offsets.read(queue)

    def note(self, queue: MessageQueue, offset: int) -> None:
        self._noted.add(queue)
        self._refusals.pop(queue, None)
        self._logged.discard(queue)
        self._offsets.update(queue, offset, is_reset=True)

    def of_topic(self, topic: str) -> dict[MessageQueue, int]:
        noted = ((queue, self._offsets.position(queue)) for queue in self._noted)
        return {
            queue: offset for queue, offset in noted if queue.topic == topic and offset is not None
        }

    async def commit(self) -> None:
        """Store all recorded offsets that may be stored; raise InvalidArgument for the others."""
        await self._store()
        refusals, self._refusals = self._refusals, {}
        for error in refusals.values():
            raise error

    async def store(self) -> None:
        """Store all recorded offsets that may be stored; failures and refusals are logged."""
        try:
            await self._store()
        except (CometError, OSError) as error:
            self._failed(error)
        self._log_refusals()

    async def keep(self, interval_ms: int) -> None:
        while True:
            await asyncio.sleep(interval_ms / 1000)
            await self.store()

    async def leave(self, queues: Collection[MessageQueue], ownership: Ownership) -> None:
        """Store and forget the offsets of queues that another member owns now."""
        noted = self._noted.intersection(queues)
        await self._drop_refused(noted)
        self._log_refusals()
        await ownership.commit(self._noted.intersection(noted))
        for queue in queues:
            self._offsets.forget(queue)
        self._noted.difference_update(queues)

    async def _store(self) -> None:
        for topic in {queue.topic for queue in self._noted}:
            with suppress(CometError):  # queues whose broker remains unknown fail below
                await self._parts.instance.routes.find(topic)
        await self._drop_refused(self._noted)
        await self._offsets.commit(self._noted)

    async def _drop_refused(self, queues: Iterable[MessageQueue]) -> None:
        """Drop the recorded offsets that must not be stored."""
        for queue in sorted(queues):
            try:
                await self._check(queue)
            except InvalidArgument as error:
                self._offsets.forget(queue)
                self._noted.discard(queue)
                self._refusals[queue] = error
            except CometError:  # the commit that follows reports it
                continue

    async def _check(self, queue: MessageQueue) -> None:
        offset = self._offsets.unsaved(queue)
        if offset is None or offset <= self.ends.get(queue, -1):
            return
        end = self.ends[queue] = await self.bounds.max(queue)
        if offset > end and self._offsets.unsaved(queue) == offset:
            raise InvalidArgument(
                f"the offset {offset} is beyond the end of queue {queue.queue_id} of {queue.topic} "
                f"at {queue.broker_name}, and is not stored: give one of at most {end}, the end"
            )

    def _log_refusals(self) -> None:
        """Log each dropped offset once, because there may be no further call to raise its error."""
        for queue in self._refusals.keys() - self._logged:
            self._failed(self._refusals[queue])
        self._logged = set(self._refusals)

    def _failed(self, error: Exception) -> None:
        self._parts.instance.outages.failed("offset.unsaved", error, group=self._parts.group)


class Shares:
    """The member's share of each registered topic."""

    def __init__(self, parts: ConsumerParts, recorded: RecordedOffsets) -> None:
        self._ownership = Ownership(parts)
        self._recorded = recorded
        self._shares: dict[str, frozenset[MessageQueue]] = {}

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues of all registered topics that are assigned to this member."""
        return [queue for share in self._shares.values() for queue in share]

    def get(self, topic: str) -> frozenset[MessageQueue] | None:
        """Return our share of a topic, or None if it is not known yet."""
        return self._shares.get(topic)

    async def take(self, shares: Mapping[str, Collection[MessageQueue]]) -> bool:
        """Record our shares, and tell the application, which may call `queues_in_balance`."""
        for topic, queues in shares.items():
            before, now = self._shares.get(topic, frozenset()), frozenset(queues)
            self._shares[topic] = now
            if lost := before - now:
                await self._ownership.told_revoked(lost)
                await self._recorded.leave(lost, self._ownership)
            if fresh := now - before:
                await self._ownership.taken(fresh)
        return True

    async def leave(self, topic: str) -> None:
        await self.take({topic: []})
        self._shares.pop(topic, None)

    async def revoke(self) -> None:
        """Call `on_revoked`, in which the application may record its last offsets."""
        await self._ownership.told_revoked(self.queues)

    async def store(self) -> None:
        await self._recorded.store()

    def consumed_offsets(self, topic: str) -> dict[MessageQueue, int]:
        return self._recorded.of_topic(topic)

    async def reset(self, queue: MessageQueue, offset: int) -> None:
        """Do nothing, because the application chooses the offset of each pull."""

    def resubscribed(self, topic: str) -> None:
        """Do nothing, because each pull names its own filter."""

    def renew_now(self) -> None:
        """Do nothing, because a pull consumer has no locks."""

    def infos(self) -> dict[MessageQueue, ProcessQueueInfo]:
        """Return an empty dict, because a pull consumer holds no messages."""
        return {}
