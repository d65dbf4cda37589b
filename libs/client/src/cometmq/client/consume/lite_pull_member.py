# SPDX-License-Identifier: Apache-2.0
"""The group member of a lite pull consumer.

Invariants
    A message counts as consumed when the application requests the next ones, commits, or leaves
    `async with` without an exception. Messages that were pulled but not returned are never
    committed. If `auto_commit` is off, only `commit` commits, as in Java. A seek moves this
    member's position, which is committed like progress.
"""

import asyncio
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from cometmq.client.clock import monotonic_ms
from cometmq.client.consume.member import CONSUME_ACTIVELY, GroupMember, MemberParts
from cometmq.client.consume.queues.offsets import HeldOffsets
from cometmq.client.consume.queues.process_queue import ProcessQueue
from cometmq.client.consume.queues.reader import Reader
from cometmq.client.consume.queues.topic_watch import QueuesChanged, QueueWatch
from cometmq.client.errors import ClientStateError, InvalidArgument
from cometmq.client.message import MessageExt
from cometmq.client.settings import LitePullOptions
from cometmq.client.transfer.puller import PullStyle
from cometmq.client.wakeup import Wakeup
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.bodies.running_info import ConsumeMessageDirectlyResult
from cometmq.remoting.errors import ServerError
from cometmq.remoting.message.record import MessageRecord


class PullGroup(GroupMember[LitePullOptions]):
    """A member whose messages are buffered until they are polled."""

    CONSUME_TYPE = CONSUME_ACTIVELY

    def __init__(
        self,
        parts: MemberParts[LitePullOptions],
        assigned: Sequence[MessageQueue] | None,
        watched: Mapping[str, QueuesChanged],
    ) -> None:
        """`assigned` queues are read without rebalancing."""
        self._assigned = assigned
        self._watched = watched
        self._held = None if parts.options.auto_commit else HeldOffsets(parts.offsets)
        super().__init__(
            parts if self._held is None else msgspec.structs.replace(parts, offsets=self._held)
        )
        self._waiting: deque[tuple[ProcessQueue, list[MessageExt]]] = deque()
        self._waiting_count = 0
        self._arrived = Wakeup()
        self._is_interrupted = False
        self._returned: list[tuple[ProcessQueue, list[MessageExt]]] = []
        self._committed_ms = monotonic_ms()
        self._is_polling = False
        self._taken: set[MessageQueue] = set()
        """All queues that this member has ever owned."""

    @property
    def topics(self) -> Collection[str]:
        """The subscribed topics; empty for a consumer with assigned queues."""
        return () if self._assigned is not None else super().topics

    async def start(self) -> None:
        """Start pulling and watching topics."""
        self._background.keep(self._sample_rates, name="rates")
        if self._watched:
            watch = QueueWatch(self._instance, self._group, self._watched, client=self._client)
            await watch.begin()
            interval_ms = self._options.queue_check_interval_ms
            self._background.keep(lambda: watch.run(interval_ms=interval_ms), name="watch-queues")
        if self._assigned is None:
            await self._begin_sharing()
        elif left := await self._take_assigned({queue.topic for queue in self._assigned}):
            self._background.spawn(self._take_the_rest(left), name="assign")

    async def stop(self, *, is_committing: bool) -> None:
        """Stop pulling; with `is_committing`, the last returned messages count as consumed."""
        self.interrupt()
        await self._end_sharing()
        self._readers.stop()
        if is_committing:
            self.settle()
        await self._readers.close(is_drained=True)
        await self._background.close()

    # -- polling ------------------------------------------------------------------------------

    async def poll(self, timeout_ms: int, *, count_max: int | None = None) -> list[MessageExt]:
        """Return the messages of one pull, or an empty list if none arrive in time.

        Raise ClientStateError while another call is waiting: each would count the other's messages
        as consumed.
        """
        if self._is_polling:
            raise ClientStateError(
                "another task is polling this consumer, and each poll counts the messages returned "
                "before as consumed: poll in one task that passes messages on, or give each task a "
                "consumer of its own"
            )
        self._is_polling = True
        try:
            return await self._poll(timeout_ms, count_max)
        finally:
            self._is_polling = False

    async def _poll(self, timeout_ms: int, count_max: int | None) -> list[MessageExt]:
        await self.advance()
        deadline_ms = monotonic_ms() + timeout_ms
        while True:
            found = self._next(count_max)
            if found is not None:
                self._returned.append(found)
                if self._watch is not None:
                    self._watch.polled(found[1])
                return list(found[1])  # a copy: the application may change the list
            left_ms = deadline_ms - monotonic_ms()
            if self._is_interrupted or left_ms <= 0 or not await self._arrived.wait(left_ms):
                return []

    async def advance(self) -> None:
        """Mark the returned messages as consumed, and commit them if the commit interval has
        passed.
        """
        self.settle()
        options = self._options
        if options.auto_commit and monotonic_ms() - self._committed_ms >= (
            options.auto_commit_interval_ms
        ):
            await self._persist()

    async def commit(self, queues: Collection[MessageQueue] | None = None) -> None:
        """Commit everything returned so far, and wait until it is stored.

        Queues that another member owns by now are left out: their offsets were committed when
        they were revoked. Raise InvalidArgument for queues that were never ours.
        """
        for queue in queues or ():
            if queue not in self._taken:
                raise self._foreign(queue)
        self.settle()
        if queues is None:
            self._committed_ms = monotonic_ms()
        wanted = self.queues if queues is None else queues
        if self._held is not None:
            self._held.release(wanted)
        await self._offsets.commit(wanted)

    def settle(self) -> None:
        """Mark the returned messages as consumed."""
        returned, self._returned = self._returned, []
        for process_queue, messages in returned:
            if not process_queue.is_dropped:
                self._left(process_queue, process_queue.remove(messages))

    def interrupt(self) -> None:
        """Make a pending poll return."""
        self._is_interrupted = True
        self._arrived.set()

    async def _store_progress(self) -> None:
        if self._options.auto_commit:
            await self._persist()

    async def _persist(self) -> None:
        self._committed_ms = monotonic_ms()
        await self._readers.persist()

    def _next(self, count_max: int | None) -> tuple[ProcessQueue, list[MessageExt]] | None:
        was_full = not self._may_read()
        found = None
        while self._waiting and found is None:
            process_queue, messages = self._waiting.popleft()
            self._waiting_count -= len(messages)
            if process_queue.is_dropped:
                continue
            if count_max is not None and len(messages) > count_max:
                self._waiting.appendleft((process_queue, messages[count_max:]))
                self._waiting_count += len(messages) - count_max
                messages = messages[:count_max]
            found = (process_queue, messages)
        if was_full and self._may_read():
            self._readers.wake()
        return found

    # -- positions ----------------------------------------------------------------------------

    def reader(self, queue: MessageQueue) -> Reader:
        """Return the reader of an assigned queue; raise InvalidArgument for any other queue."""
        reader = self._readers.get(queue)
        if reader is None:
            raise self._foreign(queue)
        return reader

    @staticmethod
    def _foreign(queue: MessageQueue) -> InvalidArgument:
        return InvalidArgument(
            f"this consumer does not own the queue {queue}: its queues are in `queues`"
        )

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue reading an assigned queue from an offset, which the next commit stores."""
        self.reader(queue)
        begin, end = await self.bounds(queue)
        if not begin <= offset <= end:
            raise InvalidArgument(
                f"offset {offset} is outside the queue, which reaches from {begin} to {end}"
            )
        self.reader(queue)  # a different member may own it by now
        if self._held is None:
            self._offsets.update(queue, offset, is_reset=True)
        else:
            self._held.seek(queue, offset)
        self._readers.restart(queue, offset)

    async def bounds(self, queue: MessageQueue) -> tuple[int, int]:
        """Return the first offset and the exclusive end of a queue."""
        return await self._queue_offsets.min(queue), await self._queue_offsets.max(queue)

    async def offset_at(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of the message stored nearest to a timestamp."""
        return await self._queue_offsets.at(queue, timestamp_ms)

    async def stored_offset(self, queue: MessageQueue) -> int | None:
        """Return the committed offset of the group."""
        await self._instance.routes.find_queue(queue)
        return await self._offsets.read(queue)

    # -- inside -------------------------------------------------------------------------------

    async def consume_directly(
        self, record: MessageRecord, broker_name: str
    ) -> ConsumeMessageDirectlyResult:
        """Refuse, because there is no listener."""
        raise ServerError(f"the consumer group {self._group} pulls: it has no listener")

    def _style(self) -> PullStyle:
        options = self._options
        return PullStyle(
            count_max=options.pull_count_max,
            suspend_ms=options.suspend_ms,
            timeout_ms=options.pull_timeout_ms,
            has_subscription=True,
            is_lite=True,
        )

    def _sink(self, process_queue: ProcessQueue, messages: list[MessageExt]) -> None:
        self._waiting.append((process_queue, messages))
        self._waiting_count += len(messages)
        self._arrived.set()

    def _may_read(self) -> bool:
        return self._waiting_count < self._options.total_count_max

    async def _take(self, shares: Mapping[str, Collection[MessageQueue]]) -> bool:
        self._taken.update(*shares.values())
        return await super()._take(shares)

    async def _take_assigned(self, topics: Iterable[str]) -> list[str]:
        """Read the assigned queues of topics; return the topics that cannot be read yet."""
        left = []
        for topic in sorted(topics):
            mine = [queue for queue in self._assigned or () if queue.topic == topic]
            await self._instance.routes.refresh_all([topic])
            if not await self._take({topic: mine}):
                left.append(topic)
        return left

    async def _take_the_rest(self, topics: list[str]) -> None:
        while topics:
            await asyncio.sleep(1)
            topics = await self._take_assigned(topics)
