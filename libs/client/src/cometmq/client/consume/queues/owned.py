# SPDX-License-Identifier: Apache-2.0
"""The queues that a member owns: their readers, and the steps by which they are taken or left.

Invariants
    A queue is read only after its first offset is known and `on_assigned` has been called. A
    dropped reader never reads again: a queue that is assigned again gets a new reader, which
    starts at the committed offset. After `stop`, no reader begins, whatever still runs then: a
    rebalance, an assignment, or a reset.
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from cometmq.client.application_calls import Failures
from cometmq.client.clock import monotonic_ms
from cometmq.client.consume.queues.first_offsets import FirstOffsets
from cometmq.client.consume.queues.locks import QueueLocks
from cometmq.client.consume.queues.ownership import Ownership
from cometmq.client.consume.queues.parts import ConsumerParts
from cometmq.client.consume.queues.reader import Prefetch, ProcessQueue, Reader, ReadParts, Sink
from cometmq.client.transfer.puller import Puller
from cometmq.client.turns import for_each
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.bodies.running_info import ProcessQueueInfo
from cometmq.remoting.transport.tasks import cancel_in_turns

TOPICS_AT_ONCE: Final = 16
"""How many topics are rebalanced at the same time."""
BEGUN_PER_TURN: Final = 64
OPENED_AT_ONCE: Final = 128
"""How many queues of a topic look up their first offset at a broker at the same time."""


class OwnedQueues:
    """The queues of one member that pulls on its own, each with a reader."""

    def __init__(
        self,
        parts: ConsumerParts,
        sink: Sink,
        puller: Puller,
        locks: QueueLocks | None = None,
        *,
        stores_progress: bool = True,
    ) -> None:
        """Pass pulled messages to `sink`; without `stores_progress`, only commits store offsets."""
        self._parts = parts
        self._puller = puller
        self._locks = locks
        self._stores_progress = stores_progress
        self._first = FirstOffsets(parts)
        self._ownership = Ownership(parts, locks)
        self._readers: dict[MessageQueue, Reader] = {}
        self._tasks: dict[MessageQueue, asyncio.Task[None]] = {}
        self._opening: dict[MessageQueue, int | None] = {}
        """Claimed queues whose first offset is being read. The value is the offset of a reset since
        then, which replaces the offset that was read; None without a reset.
        """
        self._is_stopped = False
        self._prefetch = Prefetch(parts.options, self._readers.keys())
        self._read = ReadParts(parts, puller, sink, self._prefetch, locks)
        self.ever: set[MessageQueue] = set()
        """All queues that this member has ever owned."""
        self.stored_ms = monotonic_ms()
        """When offsets were last stored."""

    def start(self) -> None:
        """Start sampling rates and renewing locks."""
        self._parts.background.keep(self._parts.rates.run, name="rates")
        if self._locks is not None:
            self._parts.background.keep(self._locks.run, name="locks")

    @property
    def queues(self) -> list[MessageQueue]:
        return list(self._readers)

    @property
    def process_queues(self) -> list[ProcessQueue]:
        return [reader.process_queue for reader in self._readers.values()]

    def get(self, queue: MessageQueue) -> Reader | None:
        return self._readers.get(queue)

    def of_topic(self, topic: str) -> list[MessageQueue]:
        return [queue for queue in self._readers if queue.topic == topic]

    def wake(self) -> None:
        """Make all readers check for room again."""
        for reader in self._readers.values():
            reader.progressed()

    def suspend(self, *, is_suspended: bool) -> None:
        """Pause or resume pulling and delivering."""
        self._prefetch.is_suspended = is_suspended
        self.wake()

    def renew_now(self) -> None:
        """Renew the locks now: brokers may have restarted, which loses all locks."""
        if self._locks is not None:
            self._locks.renew_now()

    def resubscribed(self, topic: str) -> None:
        """Pull again with the changed subscription of a topic."""
        for queue in self.of_topic(topic):
            self._readers[queue].resubscribed()

    async def take(self, shares: Mapping[str, Collection[MessageQueue]]) -> bool:
        """Own exactly these queues of each topic; return False if some cannot be read yet.

        The queues of all topics are claimed at once: an orderly consumer of hundreds of topics
        would otherwise send each broker a request per topic.
        """
        for topic, mine in shares.items():
            self.ever.update(mine)
            self._first.new.note(topic, mine)
        lost = {
            topic: [queue for queue in self.of_topic(topic) if queue not in kept]
            for topic, kept in ((topic, frozenset(mine)) for topic, mine in shares.items())
        }
        await self.drop([queue for queues in lost.values() for queue in queues])
        # Not by reader: the opening of a queue may have been interrupted before its reader ran.
        fresh = [queue for mine in shares.values() for queue in mine if queue not in self._tasks]
        if not fresh:
            return True
        free = await self._ownership.claim(fresh)
        if self._is_stopped:
            await self._ownership.disclaim(free)
            return False
        self._opening.update(dict.fromkeys(free))
        try:
            opened_count = await self._open_claimed(free, lost, shares)
        finally:
            for queue in free:
                self._opening.pop(queue, None)
        return opened_count == len(fresh)

    async def _open_claimed(
        self,
        free: Iterable[MessageQueue],
        lost: Mapping[str, Collection[MessageQueue]],
        shares: Mapping[str, Collection[MessageQueue]],
    ) -> int:
        """Begin to read claimed queues; return how many can be read."""
        claimed: dict[str, dict[str, list[MessageQueue]]] = {}
        for queue in free:
            claimed.setdefault(queue.broker_name, {}).setdefault(queue.topic, []).append(queue)
        opened_count = 0

        async def open_topic(queues: list[MessageQueue]) -> None:
            nonlocal opened_count
            topic, broker_name = queues[0].topic, queues[0].broker_name
            opened_count += await self._open_all(
                queues,
                lost_count=_count_at(broker_name, lost[topic]),
                owned_count=_count_at(broker_name, shares[topic]),
            )

        async def open_broker(topics: dict[str, list[MessageQueue]]) -> None:
            await for_each(topics.values(), open_topic, running_max=TOPICS_AT_ONCE)

        # All brokers at once: otherwise a hung broker would delay the queues of all others.
        await for_each(claimed.values(), open_broker, running_max=len(claimed))
        if self._parts.is_broadcasting and opened_count:
            # No broker knows where a member began that is killed before the next interval.
            await self._ownership.persist(list(self._readers))
        return opened_count

    async def _open_all(
        self, claimed: list[MessageQueue], *, lost_count: int, owned_count: int
    ) -> int:
        """Begin to read claimed queues of one topic and broker; return how many can be read."""
        known: set[MessageQueue] = set()
        has_failed = False

        async def open_one(queue: MessageQueue) -> None:
            nonlocal has_failed
            if has_failed:  # the broker may hang, and the rest is tried again soon
                return
            if await self._open(queue):
                known.add(queue)
            else:
                has_failed = True

        # Not all at once: a route may have 100,000 queues, which held the loop for 9 s.
        await for_each(claimed, open_one, running_max=OPENED_AT_ONCE)
        opened = [queue for queue in claimed if queue in known]
        if self._is_stopped:  # `on_assigned` has not been called, and will not be
            for queue in opened:
                self._readers.pop(queue, None)
            opened = []
        if opened:
            self._parts.instance.log.info(
                "queues.assigned",
                group=self._parts.group,
                topic=claimed[0].topic,
                broker=claimed[0].broker_name,
                taken=len(opened),
                lost=lost_count,
                owned=owned_count,
            )
            await self._ownership.taken(opened)
            for number, queue in enumerate(opened, 1):
                self._run(queue)
                if not number % BEGUN_PER_TURN:  # each sends a pull in the next turn
                    await asyncio.sleep(0)
        await self._ownership.disclaim([queue for queue in claimed if queue not in self._readers])
        return len(opened)

    async def drop(self, queues: Collection[MessageQueue], *, is_lost: bool = False) -> None:
        """Leave queues; `is_lost` means that another member owns them already."""
        readers = [self._readers.pop(queue, None) for queue in queues]
        tasks = [self._tasks.pop(queue, None) for queue in queues]
        held = [reader.process_queue for reader in readers if reader is not None]
        try:
            if held:
                for one in held:
                    self._puller.forget(one.queue)
                # This marks the queues at once: readers that still run take no more messages.
                await self._ownership.leave(held, is_lost=is_lost)
        finally:
            await cancel_in_turns([task for task in tasks if task is not None])

    async def leave(self, topic: str) -> None:
        self._first.new.forget(topic)
        await self.drop(self.of_topic(topic))

    def restart(self, queue: MessageQueue, offset: int) -> None:
        """Read an owned queue from an offset, which is not recorded; drop its held messages."""
        if (task := self._tasks.pop(queue, None)) is not None:
            task.cancel()
        before = self._readers.get(queue)
        reader = self._readers[queue] = Reader(self._read, queue, offset)
        if before is not None:
            reader.process_queue = before.process_queue.begun_anew(offset)
            reader.is_paused = before.is_paused
        self._run(queue)

    async def reset(self, queue: MessageQueue, offset: int) -> None:
        """Read a queue, if it is owned, from an offset, and store this offset as the group's.

        A queue that is being opened will be read from it.
        """
        if queue in self._readers:
            self._parts.offsets.update(queue, offset, is_reset=True)
            self.restart(queue, offset)
            await self._parts.offsets.persist([queue])
        elif queue in self._opening:
            self._opening[queue] = offset

    async def store(self) -> None:
        """Store the offsets of queues that are certainly ours, unless only commits do."""
        if not self._stores_progress:
            return
        self.stored_ms = monotonic_ms()
        locks = self._locks
        await self._parts.offsets.persist(
            [one for one in self._readers if locks is None or locks.is_valid(one)]
        )

    async def stop(self) -> None:
        """Stop pulling, for good; held messages may still be consumed."""
        self._is_stopped = True
        await cancel_in_turns([*self._tasks.values()])

    async def close(self, *, is_drained: bool) -> None:
        """Leave all queues and store their offsets; called after `stop`."""
        held = self.process_queues
        self._readers.clear()
        self._puller.close()
        await self._ownership.close(held, is_drained=is_drained)

    # -- what administrators see --------------------------------------------------------------

    def consumed_offsets(self, topic: str) -> dict[MessageQueue, int]:
        return {
            held.queue: held.committable
            for held in self.process_queues
            if held.queue.topic == topic
        }

    def infos(self) -> dict[MessageQueue, ProcessQueueInfo]:
        found = {}
        for held in self.process_queues:
            queue = held.queue
            info = found[queue] = held.info(self._parts.offsets.position(queue) or 0)
            if self._locks is not None:
                info.locked = self._locks.is_valid(queue)
                info.last_lock_timestamp = self._locks.granted_ms(queue)
        return found

    # -- inside -------------------------------------------------------------------------------

    async def _open(self, queue: MessageQueue) -> bool:
        """Find where to start reading a queue; return False if that is unknown for now."""
        try:
            offset = await self._first.find(queue)
            reset_to = self._opening.get(queue)
            if queue not in self._readers:
                # Committed even without messages: the next start must not skip new ones.
                offset = offset if reset_to is None else reset_to
                with Failures():
                    self._parts.offsets.update(queue, offset, is_reset=reset_to is not None)
                self._readers[queue] = Reader(self._read, queue, offset)
        except Exception as error:  # noqa: BLE001  # an offset store may be application code
            self._parts.instance.outages.failed(
                "offset.unknown",
                error,
                group=self._parts.group,
                topic=queue.topic,
                queue_id=queue.queue_id,
            )
            return False
        finally:
            self._opening.pop(queue, None)
        return True

    def _run(self, queue: MessageQueue) -> None:
        """Start reading an owned queue, unless it is being read already, or after `stop`."""
        reader = self._readers.get(queue)
        if reader is not None and queue not in self._tasks and not self._is_stopped:
            name = f"read-{queue.topic}-{queue.queue_id}"
            self._tasks[queue] = self._parts.background.keep(reader.run, name=name)


def _count_at(broker_name: str, queues: Iterable[MessageQueue]) -> int:
    return sum(queue.broker_name == broker_name for queue in queues)
