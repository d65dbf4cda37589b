# SPDX-License-Identifier: Apache-2.0
"""The messages of one queue, from their pull until they are consumed.

Invariants
    `committable` never passes an unconsumed message: after a crash the group continues there, so a
    message may be redelivered but is never lost.
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence

from cometmq.client.application_calls import Failures
from cometmq.client.consume.queues.offsets import OffsetStore
from cometmq.client.message import MessageExt
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.bodies.running_info import ProcessQueueInfo


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
        """Whether the queue is being left: no new calls start, but results of running calls still
        count.
        """
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
