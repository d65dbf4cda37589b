# SPDX-License-Identifier: Apache-2.0
"""The messages of one owned queue, and the loop that pulls them while there is room.

Invariants
    `committable` never passes an unconsumed message: after a crash the group continues there, so a
    message may be redelivered but is never lost.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final, Protocol

import msgspec

from cometmq.client.application_calls import Failures
from cometmq.client.clock import monotonic_ms, wall_ms
from cometmq.client.cluster.routes import contradicts, names_former_master
from cometmq.client.consume.queues.locks import QueueLocks
from cometmq.client.consume.queues.offsets import OffsetStore
from cometmq.client.consume.queues.parts import ConsumerParts
from cometmq.client.message import MessageExt
from cometmq.client.settings import ConsumerOptions, PushOptions
from cometmq.client.transfer.pulled import Pulled, PullStatus
from cometmq.client.transfer.puller import Puller
from cometmq.remoting.bodies.heartbeat import SubscriptionData
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.bodies.running_info import ProcessQueueInfo
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.errors import AccessDenied, CometError, CommandError, TopicNotExist
from cometmq.remoting.visible import command


class Calls:
    """Counts the listener calls of a consumer, or only those for one queue."""

    def __init__(self) -> None:
        self._count = 0
        self._idle: asyncio.Event | None = None

    @property
    def count(self) -> int:
        return self._count

    @property
    def is_idle(self) -> bool:
        return not self._count

    def began(self) -> None:
        self._count += 1

    def ended(self) -> None:
        """Record that a call has ended and its result has been processed."""
        self._count -= 1
        if self._idle is not None and not self._count:
            self._idle.set()

    async def idle(self) -> None:
        """Wait until no call is in flight; the caller must prevent new calls."""
        if self._count:
            self._idle = self._idle or asyncio.Event()
            await self._idle.wait()

    async def left_after(self, timeout_ms: int) -> int:
        """Wait until no call is in flight and return 0, or return their number on timeout."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self.idle()
        except TimeoutError:
            return self._count
        return 0


class ProcessQueue:
    """The messages of one queue that a consumer holds."""

    def __init__(self, queue: MessageQueue, next_offset: int) -> None:
        self.queue = queue
        self.next_offset = next_offset
        """The offset of the next pull."""
        self.is_dropped = False
        """Whether the queue is no longer ours; the results of running calls are then ignored."""
        self.is_leaving = False
        """Whether the queue is being left: no call starts, but results still count."""
        self.calls = Calls()
        """Listener calls with messages of this queue."""
        self.room = asyncio.Event()
        """Set when the reader should check again whether it may pull or deliver."""
        self.body_bytes = 0
        self.last_pull_ms = 0
        self.last_consume_ms = 0
        self._held: dict[int, MessageExt] = {}
        self._order: deque[int] = deque()
        self._started_ms: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._held)

    @property
    def committable(self) -> int:
        """The offset below which everything is consumed."""
        return self._order[0] if self._order else self.next_offset

    @property
    def span(self) -> int:
        """The difference between the offsets of the first and the last held message."""
        return self._order[-1] - self._order[0] if self._order else 0

    def begun_anew(self, next_offset: int) -> "ProcessQueue":
        """Drop all held messages; return an empty queue, which still waits for running calls."""
        self.is_dropped = True
        fresh = ProcessQueue(self.queue, next_offset)
        fresh.calls = self.calls
        return fresh

    def put(self, messages: Sequence[MessageExt], next_offset: int) -> list[MessageExt]:
        """Add pulled messages; return the new ones."""
        fresh = [message for message in messages if message.queue_offset not in self._held]
        is_sorted = not self._order or not fresh or fresh[0].queue_offset > self._order[-1]
        for message in fresh:
            self._held[message.queue_offset] = message
            self._order.append(message.queue_offset)
            self.body_bytes += len(message.body)
        if not is_sorted:
            self._order = deque(sorted(self._order))
        self.next_offset = next_offset
        return fresh

    def unconsumed(self, messages: Iterable[MessageExt]) -> list[MessageExt]:
        return [message for message in messages if message.queue_offset in self._held]

    def awaits(self, message: MessageExt) -> bool:
        """Return whether the message is held and the queue is ours, so that its result counts."""
        return not self.is_dropped and message.queue_offset in self._held

    def start(self, messages: Iterable[MessageExt], now_ms: int) -> None:
        """Record when the listener received these messages."""
        for message in messages:
            self._started_ms[message.queue_offset] = now_ms

    def remove(self, messages: Iterable[MessageExt]) -> int:
        """Drop consumed messages; return the new committable offset."""
        held, order, started = self._held, self._order, self._started_ms
        for message in messages:
            offset = message.queue_offset
            if held.pop(offset, None) is not None:
                self.body_bytes -= len(message.body)
                started.pop(offset, None)
        # A consumed offset is kept in `_order` until everything before it is consumed: only the
        # front may be committed, because messages finish out of order.
        while order and order[0] not in held:
            order.popleft()
        self.room.set()
        return self.committable

    def consumed(self, messages: Iterable[MessageExt], offsets: OffsetStore) -> None:
        """Drop consumed messages, and advance the offset; do nothing if the queue was dropped."""
        if not self.is_dropped:
            offset = self.remove(messages)
            with Failures():
                offsets.update(self.queue, offset)

    def late(self, *, started_before_ms: int, count_max: int) -> list[MessageExt]:
        """Return the leading messages that the listener received before `started_before_ms`."""
        found: list[MessageExt] = []
        for offset in self._order:
            started_ms = self._started_ms.get(offset)
            if len(found) == count_max or started_ms is None or started_ms > started_before_ms:
                break
            if offset in self._held:
                found.append(self._held[offset])
        return found

    def info(self, committed: int) -> ProcessQueueInfo:
        return ProcessQueueInfo(
            cached_msg_count=len(self._held),
            cached_msg_min_offset=self._order[0] if self._order else 0,
            cached_msg_max_offset=self._order[-1] if self._order else 0,
            cached_msg_size_in_mib=self.body_bytes >> 20,
            commit_offset=committed,
            droped=self.is_dropped,
            last_pull_timestamp=self.last_pull_ms,
            last_consume_timestamp=self.last_consume_ms,
        )


NOT_READY_CODES: Final = frozenset(
    {ResponseCode.SUBSCRIPTION_NOT_EXIST, ResponseCode.SUBSCRIPTION_NOT_LATEST}
)
"""Refusals by a broker that has not processed our heartbeat yet, which takes milliseconds."""

NOT_READY_DELAY_MS: Final = 100
NOT_READY_COUNT_MAX: Final = 30
FAILURE_DELAY_MS: Final = 3_000
REFUSED_DELAY_MS: Final = 10_000
"""Delay after a refusal by access control, which only an administrator can resolve."""
_FIRST_DELAY_MS: Final = 100  # doubled at each consecutive failure
_FULL_CHECK_MS: Final = 1_000
_WITHOUT_TOPIC: Final = (
    "the name server lists the topic at this broker, as after a delete that failed halfway; delete"
    " the topic again, or create it there"
)


class Sink(Protocol):
    """Takes the pulled messages of all queues: a delivery to a listener, or the buffer of polls."""

    @property
    def is_full(self) -> bool:
        """Whether the consumer as a whole must not pull now."""

    @property
    def takes_unreadable(self) -> bool:
        """Whether lists of unreadable messages are submitted too, instead of skipped."""

    def submit(self, process_queue: ProcessQueue, messages: list[MessageExt]) -> None:
        """Take messages of one queue."""


class Prefetch:
    """Limits on the messages held for each queue, from `queue_count_max` and related options.

    They are checked before a pull, so one pull may exceed them by up to `pull_count_max` messages.
    """

    def __init__(self, options: ConsumerOptions, owned: Collection[MessageQueue]) -> None:
        """Limits per topic are divided among the `owned` queues of the topic."""
        self.is_suspended = False
        """Whether pulled messages must not be delivered."""
        self.pause_ms = 0
        self._owned = owned
        self._count_max = options.queue_count_max
        self._bytes_max = options.queue_bytes_max
        self._span_max = options.queue_span_max
        self._topic_count_max = self._topic_bytes_max = 0
        if isinstance(options, PushOptions):
            self.pause_ms = options.pull_interval_ms
            self._topic_count_max = options.topic_count_max
            self._topic_bytes_max = options.topic_bytes_max

    def has_room(self, held: ProcessQueue) -> bool:
        """Return whether more messages of a queue may be pulled."""
        count_max, bytes_max = self._count_max, self._bytes_max
        if self._topic_count_max or self._topic_bytes_max:
            topic = held.queue.topic
            queue_count = max(1, sum(queue.topic == topic for queue in self._owned))
            if self._topic_count_max:
                count_max = max(1, self._topic_count_max // queue_count)
            if self._topic_bytes_max:
                bytes_max = max(1, self._topic_bytes_max // queue_count)
        return (
            len(held) <= count_max and held.body_bytes <= bytes_max and held.span <= self._span_max
        )


class ReadParts(msgspec.Struct):
    """The parts that all readers of one consumer use."""

    shared: ConsumerParts
    puller: Puller
    sink: Sink
    prefetch: Prefetch
    locks: QueueLocks | None = None


class Reader:
    """Reads one queue."""

    def __init__(self, parts: ReadParts, queue: MessageQueue, offset: int) -> None:
        self.process_queue = ProcessQueue(queue, offset)
        self.is_paused = False
        self._parts = parts
        self._shared = parts.shared
        self._refused_count = 0
        self._pull_scope: asyncio.Timeout | None = None

    def progressed(self) -> None:
        """Check for room again, because messages were consumed or settings have changed."""
        self.process_queue.room.set()

    def resubscribed(self) -> None:
        """Abandon the pull in flight, because the subscription of its topic has changed.

        A broker may hold the pull for `suspend_ms`, and then answer it with the old subscription.
        """
        scope, self._pull_scope = self._pull_scope, None  # it can be abandoned once
        if scope is not None:
            scope.reschedule(0)

    async def run(self) -> None:
        """Pull until the queue is dropped."""
        shared, prefetch = self._shared, self._parts.prefetch
        while await self._becomes(self._may_read):
            held = self.process_queue
            subscription = shared.subscriptions.get(held.queue.topic)
            if subscription is None:
                return
            begin_ms = monotonic_ms()
            try:
                pulled = await self._pull(subscription)
            except CometError as error:
                await asyncio.sleep(self._failure_delay_ms(error) / 1000)
                continue
            if pulled is None:
                continue
            if pulled.messages:
                took_ms = monotonic_ms() - begin_ms
                shared.rates.note_pull(held.queue.topic, count=len(pulled.messages), ms=took_ms)
            self._refused_count = 0
            held.last_pull_ms = wall_ms()
            # A pull in flight at `pause` may find messages: they wait here, uncommitted.
            if await self._becomes(self._may_deliver) and self._is_current(subscription):
                self._take(pulled)
            if prefetch.pause_ms:
                await asyncio.sleep(prefetch.pause_ms / 1000)

    async def _pull(self, subscription: SubscriptionData) -> Pulled | None:
        """Return the answer to a pull; None if it was abandoned for a new subscription."""
        held = self.process_queue
        try:
            async with asyncio.timeout(None) as self._pull_scope:
                return await self._parts.puller.pull(
                    held.queue,
                    held.next_offset,
                    subscription,
                    commit_offset=self._commit_offset(),
                )
        except TimeoutError:  # see `resubscribed`
            return None
        finally:
            self._pull_scope = None

    def _take(self, pulled: Pulled) -> None:
        sink, offsets, held = self._parts.sink, self._shared.offsets, self.process_queue
        if pulled.status is PullStatus.OFFSET_ILLEGAL:
            self._log_moved(pulled)
            if len(held) and pulled.next_offset < held.next_offset:
                # The topic was deleted and created again. The held messages no longer exist;
                # committing their offsets would make the group skip all new messages up to them.
                held = self.process_queue = held.begun_anew(pulled.next_offset)
            held.next_offset = pulled.next_offset
            if not len(held):
                offsets.update(held.queue, pulled.next_offset, is_reset=True)
            return
        fresh = held.put(pulled.messages, pulled.next_offset)
        if fresh:
            sink.submit(held, fresh)
        if sink.takes_unreadable and pulled.unreadable:
            sink.submit(held, held.put(pulled.unreadable, pulled.next_offset))
        # A pull whose messages were all filtered out is progress too; otherwise the lag would grow.
        if not len(held):
            offsets.update(held.queue, held.committable)

    def _log_moved(self, pulled: Pulled) -> None:
        """Log that the broker has moved our offset, and how many messages the group misses.

        As in RocketMQ, a broker answers a pull beyond the end of a queue with the end offset. This
        happens after a topic was deleted and created again, because committed offsets are kept.
        """
        shared, held = self._shared, self.process_queue
        group, topic = shared.group, held.queue.topic
        asked, following = held.next_offset, pulled.next_offset
        if following > asked:
            skipped_count = following - max(asked, 0)
            advice = "earlier messages have expired: the group does not get them"
        else:
            skipped_count = max(0, following - pulled.min_offset)
            advice = (
                "the queue ends below the group's offset: the topic was deleted and created again, "
                "or the broker has lost messages"
            )
            if skipped_count:
                move = command("group reset", group, topic, options=("--to", "first"))
                advice += f"; to consume what is skipped: {move}"
        shared.instance.log.warning(
            "offset.moved",
            group=group,
            topic=topic,
            broker=held.queue.broker_name,
            queue_id=held.queue.queue_id,
            queue_offset=asked,
            next_offset=following,
            skipped_count=skipped_count,
            advice=advice,
        )

    def _is_current(self, subscription: SubscriptionData) -> bool:
        """Return whether the topic has had this subscription since the pull was sent.

        The answer to a pull with an older subscription may lack messages, but its next offset skips
        them.
        """
        topic = self.process_queue.queue.topic
        return self._shared.subscriptions.get(topic) is subscription

    def _commit_offset(self) -> int | None:
        """Return the offset for a pull to carry: only progress that is not stored yet.

        A Java broker handles pulls and commits on different threads, and another member may
        already own the queue, so repeating an offset needlessly can undo a later commit.
        """
        locks, queue = self._parts.locks, self.process_queue.queue
        offset = self._shared.offsets.unsaved(queue)
        # While a lock is uncertain, another member may have committed a higher offset.
        return offset if offset and (locks is None or locks.is_valid(queue)) else None

    async def _becomes(self, condition: Callable[[], bool]) -> bool:
        """Wait until the condition is true; return False if the queue is left first."""
        held = self.process_queue
        while not (held.is_dropped or held.is_leaving):
            if condition():
                return True
            held.room.clear()
            try:
                async with asyncio.timeout(_FULL_CHECK_MS / 1000):
                    await held.room.wait()
            except TimeoutError:
                continue  # `room` ends the wait; the timeout guards against a missed change
        return False

    def _may_deliver(self) -> bool:
        return not (self.is_paused or self._parts.prefetch.is_suspended)

    def _may_read(self) -> bool:
        parts = self._parts
        has_room = not parts.sink.is_full and parts.prefetch.has_room(self.process_queue)
        return has_room and self._may_deliver()

    def _failure_delay_ms(self, error: CometError) -> int:
        instance, queue = self._shared.instance, self.process_queue.queue
        self._refused_count += 1
        if isinstance(error, CommandError) and error.code in NOT_READY_CODES:
            if self._refused_count % 10 == 0:
                instance.heartbeats.soon()
            if self._refused_count <= NOT_READY_COUNT_MAX:
                return NOT_READY_DELAY_MS
        if contradicts(error) or names_former_master(error):
            instance.refreshes.outdated(queue.topic)
        instance.outages.failed(
            "pull.failed",
            error,
            group=self._shared.group,
            topic=queue.topic,
            broker=queue.broker_name,
            queue_id=queue.queue_id,
            queue_offset=self.process_queue.next_offset,
            **({"advice": _WITHOUT_TOPIC} if isinstance(error, TopicNotExist) else {}),
        )
        if isinstance(error, AccessDenied):
            return REFUSED_DELAY_MS
        return min(FAILURE_DELAY_MS, _FIRST_DELAY_MS << min(self._refused_count - 1, 10))
