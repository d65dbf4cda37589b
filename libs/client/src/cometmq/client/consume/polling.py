# SPDX-License-Identifier: Apache-2.0
"""A running lite pull consumer: prefetches messages into a buffer, and returns them to polls.

Invariants
    A message counts as consumed when the application requests the next ones, commits, or leaves
    `async with` without an exception. Messages that were pulled but not returned are never
    committed. If `auto_commit` is off, only `commit` commits, as in Java. A seek moves this
    member's position, which is committed like progress.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence

import msgspec

from cometmq.client.application_calls import tell
from cometmq.client.clock import monotonic_ms
from cometmq.client.consume.membership import Membership
from cometmq.client.consume.queues.first_offsets import QueueOffsets
from cometmq.client.consume.queues.offsets import HeldOffsets
from cometmq.client.consume.queues.owned import OwnedQueues
from cometmq.client.consume.queues.parts import ConsumerParts
from cometmq.client.consume.queues.reader import ProcessQueue, Reader
from cometmq.client.consume.queues.rebalance import AllocateStrategy
from cometmq.client.errors import ClientStateError, InvalidArgument
from cometmq.client.listener import ConsumeWatch
from cometmq.client.message import MessageExt
from cometmq.client.settings import LitePullOptions
from cometmq.client.transfer.puller import Puller, PullStyle
from cometmq.client.turns import Wakeup
from cometmq.remoting.bodies.queues import MessageQueue

QueuesChanged = Callable[[str, list[MessageQueue]], Awaitable[None] | None]
"""Called with a topic and all its queues; a plain function is called on a thread."""


class QueueWatch:
    """Compares the queues of some topics between two checks."""

    def __init__(self, parts: ConsumerParts, callbacks: Mapping[str, QueuesChanged]) -> None:
        """Watch the topics in `callbacks`, whose keys are full names."""
        self._client = parts.callbacks.client
        self._group = parts.group
        self._instance = parts.instance
        self._callbacks = callbacks
        self._known: dict[str, list[MessageQueue]] = {}

    async def run(self, *, interval_ms: int) -> None:
        """Check at intervals, after `begin`."""
        while True:
            await asyncio.sleep(interval_ms / 1000)
            await self._instance.routes.refresh_all(self._callbacks)
            for topic, callback in tuple(self._callbacks.items()):
                await self._compare(topic, callback)

    async def begin(self) -> None:
        """Record the current queues; later changes are reported, even if a topic has none now."""
        await self._instance.routes.refresh_all(self._callbacks)
        for topic in self._callbacks:
            self._known[topic] = self._queues(topic) or []

    def _queues(self, topic: str) -> list[MessageQueue] | None:
        route = self._instance.routes.get(topic)
        if route is None:
            return None
        namespace = self._instance.namespace
        return [namespace.unwrap_queue(queue) for queue in sorted(route.subscribe_queues)]

    async def _compare(self, topic: str, callback: QueuesChanged) -> None:
        queues = self._queues(topic)
        if queues is None or queues == self._known[topic]:
            return
        self._known[topic] = queues
        name = self._instance.namespace.unwrap(topic)
        await tell(
            callback,
            name,
            list(queues),
            client=self._client,
            name="on_queues_changed",
            group=self._group,
            log=self._instance.log,
            topic=topic,
        )


class Buffer:
    """The messages that wait for a poll, in the order of their pulls."""

    takes_unreadable = False

    def __init__(self, count_max: int) -> None:
        """Refuse further pulls once `count_max` messages wait."""
        self.arrived = Wakeup()
        self._count_max = count_max
        self._count = 0
        self._waiting: deque[tuple[ProcessQueue, list[MessageExt]]] = deque()

    @property
    def is_full(self) -> bool:
        """Whether no more messages may be pulled."""
        return self._count >= self._count_max

    def submit(self, process_queue: ProcessQueue, messages: list[MessageExt]) -> None:
        self._waiting.append((process_queue, messages))
        self._count += len(messages)
        self.arrived.set()

    def put_back(self, process_queue: ProcessQueue, messages: list[MessageExt]) -> None:
        """Put messages that were taken before all others."""
        self._waiting.appendleft((process_queue, messages))
        self._count += len(messages)
        self.arrived.set()

    def take(self, count_max: int | None) -> tuple[ProcessQueue, list[MessageExt]] | None:
        """Take the messages of one pull, at most `count_max`; return None if there are none."""
        while self._waiting:
            process_queue, messages = self._waiting.popleft()
            self._count -= len(messages)
            if process_queue.is_dropped:
                continue
            if count_max is not None and len(messages) > count_max:
                self.put_back(process_queue, messages[count_max:])
                messages = messages[:count_max]
            return process_queue, messages
        return None


class Polling:
    """Assembles the parts of a running lite pull consumer; serves its polls, commits and seeks."""

    def __init__(
        self,
        parts: ConsumerParts,
        options: LitePullOptions,
        strategy: AllocateStrategy,
        watch: ConsumeWatch | None,
        *,
        assigned: Sequence[MessageQueue] | None,
        watched: Mapping[str, QueuesChanged],
    ) -> None:
        """`assigned` queues are read without rebalancing."""
        self._held = None if options.auto_commit else HeldOffsets(parts.offsets)
        if self._held is not None:
            parts = msgspec.structs.replace(parts, offsets=self._held)
        self._parts = parts
        self._options = options
        self._watch = watch
        self._assigned = assigned
        self._watched = watched
        style = PullStyle(
            count_max=options.pull_count_max,
            suspend_ms=options.suspend_ms,
            timeout_ms=options.pull_timeout_ms,
            has_subscription=True,
            is_lite=True,
        )
        self._buffer = Buffer(options.total_count_max)
        puller = Puller(parts.instance, parts.group, style)
        self.queues = OwnedQueues(parts, self._buffer, puller, stores_progress=options.auto_commit)
        self.member = Membership(parts, self.queues, strategy, is_assigned=assigned is not None)
        self.bounds = QueueOffsets(parts.instance)
        self.is_committing = False
        """Whether the messages returned last count as consumed on close."""
        self._returned: list[tuple[ProcessQueue, list[MessageExt]]] = []
        self._is_interrupted = False
        self._is_polling = False

    async def start(self) -> None:
        parts = self._parts
        self.queues.start()
        if self._watched:
            watch = QueueWatch(parts, self._watched)
            await watch.begin()
            interval_ms = self._options.queue_check_interval_ms
            parts.background.keep(lambda: watch.run(interval_ms=interval_ms), name="watch-queues")
        if self._assigned is None:
            await self.member.begin()
        elif left := await self._take_assigned({queue.topic for queue in self._assigned}):
            parts.background.spawn(self._take_the_rest(left), name="assign")

    async def stop(self) -> None:
        """Stop pulling; if `is_committing`, the last returned messages count as consumed."""
        self.interrupt()
        await self.member.end()
        await self.queues.stop()
        if self.is_committing:
            self.settle()
        await self.queues.close(is_drained=True)
        await self._parts.background.close()

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
        await self._advance()
        deadline_ms = monotonic_ms() + timeout_ms
        while True:
            was_full = self._buffer.is_full
            found = self._buffer.take(count_max)
            if was_full and not self._buffer.is_full:
                self.queues.wake()
            if found is not None:
                self._returned.append(found)
                if self._watch is not None:
                    self._watch.polled(found[1])
                return list(found[1])  # a copy: the application may change the list
            left_ms = deadline_ms - monotonic_ms()
            if self._is_interrupted or left_ms <= 0 or not await self._buffer.arrived.wait(left_ms):
                return []

    def take_back(self, messages: list[MessageExt]) -> None:
        """Put back what the last poll returned, because its caller did not get it."""
        if self._returned and self._returned[-1][1][0] is messages[0]:
            self._buffer.put_back(*self._returned.pop())

    async def _advance(self) -> None:
        """Mark the returned messages as consumed; commit them if that is due."""
        self.settle()
        if monotonic_ms() - self.queues.stored_ms >= self._options.auto_commit_interval_ms:
            await self.queues.store()

    async def commit(self, queues: Collection[MessageQueue] | None = None) -> None:
        """Commit everything returned so far, and wait until it is stored.

        Queues that another member owns by now are left out: their offsets were committed when
        they were revoked. Raise InvalidArgument for queues that were never ours.
        """
        for queue in queues or ():
            if queue not in self.queues.ever:
                raise self._foreign(queue)
        self.settle()
        if queues is None:
            self.queues.stored_ms = monotonic_ms()
        wanted = self.queues.queues if queues is None else queues
        if self._held is not None:
            self._held.release(wanted)
        await self._parts.offsets.commit(wanted)

    def settle(self) -> None:
        """Mark the returned messages as consumed."""
        returned, self._returned = self._returned, []
        for process_queue, messages in returned:
            process_queue.consumed(messages, self._parts.offsets)

    def interrupt(self) -> None:
        self._is_interrupted = True
        self._buffer.arrived.set()

    # -- positions ----------------------------------------------------------------------------

    def reader(self, queue: MessageQueue) -> Reader:
        """Return the reader of an assigned queue; raise InvalidArgument for any other queue."""
        reader = self.queues.get(queue)
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
        begin, end = await self.bounds.both(queue)
        if not begin <= offset <= end:
            raise InvalidArgument(
                f"offset {offset} is outside the queue, which reaches from {begin} to {end}"
            )
        self.reader(queue)  # a different member may own it by now
        if self._held is None:
            self._parts.offsets.update(queue, offset, is_reset=True)
        else:
            self._held.seek(queue, offset)
        self.queues.restart(queue, offset)

    async def stored_offset(self, queue: MessageQueue) -> int | None:
        await self._parts.instance.routes.find_queue(queue)
        return await self._parts.offsets.read(queue)

    # -- assigned queues ----------------------------------------------------------------------

    async def _take_assigned(self, topics: Iterable[str]) -> list[str]:
        """Read the assigned queues of topics; return the topics that cannot be read yet."""
        left = []
        for topic in sorted(topics):
            mine = [queue for queue in self._assigned or () if queue.topic == topic]
            await self._parts.instance.routes.refresh_all([topic])
            if not await self.queues.take({topic: mine}):
                left.append(topic)
        return left

    async def _take_the_rest(self, topics: list[str]) -> None:
        while topics:
            await asyncio.sleep(1)
            topics = await self._take_assigned(topics)
