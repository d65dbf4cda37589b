# SPDX-License-Identifier: Apache-2.0
"""The queues and offsets of a pull consumer, whose application chooses what it reads."""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress

from cometmq.client.consume.queues.first_offsets import QueueOffsets
from cometmq.client.consume.queues.ownership import Ownership
from cometmq.client.consume.queues.parts import ConsumerParts
from cometmq.client.errors import InvalidArgument
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.bodies.running_info import ProcessQueueInfo
from cometmq.remoting.errors import CometError


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
        """Record our shares, and report the changes to the application, which may call
        `queues_in_balance` meanwhile.
        """
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

    async def infos(self) -> dict[MessageQueue, ProcessQueueInfo]:
        """Return an empty dict, because a pull consumer holds no messages."""
        return {}
