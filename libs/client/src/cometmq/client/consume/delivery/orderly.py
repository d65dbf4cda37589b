# SPDX-License-Identifier: Apache-2.0
"""Orderly delivery: the messages of a queue reach the listener one list at a time.

Invariants
    At most one listener call runs per queue, even while the queue changes hands, and a call starts
    only while the queue's lock is certainly valid. A list that was not consumed is redelivered
    before any later message, unless it becomes a dead letter. An exception in an application's
    offset store never stops a queue for good.
"""

import asyncio
from collections import deque
from typing import Final
from weakref import WeakKeyDictionary, WeakValueDictionary

from cometmq.client.application_calls import NoThreads
from cometmq.client.clock import monotonic_ms, wall_ms
from cometmq.client.consume.delivery.send_back import (
    ASKED_AGAIN,
    UNREADABLE,
    TakesFailed,
    with_reconsume_times,
)
from cometmq.client.consume.queues.locks import QueueLocks
from cometmq.client.consume.queues.parts import ConsumerParts
from cometmq.client.consume.queues.process_queue import Calls, ProcessQueue
from cometmq.client.listener import ListenerCaller, OrderlyAction, OrderlyResult
from cometmq.client.message import MessageExt, UnreadableMessage
from cometmq.client.settings import PushOptions
from cometmq.client.turns import LoopTurns
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.transport.tasks import describe

PAUSE_MIN_MS: Final = 10
PAUSE_MAX_MS: Final = 30_000


class _Turn:
    """The pending messages of one queue."""

    def __init__(self) -> None:
        self.waiting: deque[MessageExt] = deque()
        self.uncommitted: list[MessageExt] = []
        self.is_served = False

    def add(self, messages: list[MessageExt]) -> None:
        """Insert by offset, because readable and unreadable messages of a pull arrive
        separately.
        """
        is_sorted = not self.waiting or messages[0].queue_offset > self.waiting[-1].queue_offset
        self.waiting.extend(messages)
        if not is_sorted:
            self.waiting = deque(sorted(self.waiting, key=lambda m: m.queue_offset))

    def take(self, count_max: int) -> list[MessageExt]:
        """Take the next messages; an unreadable message is taken alone."""
        taken = [self.waiting.popleft()]
        while self.waiting and len(taken) < count_max:
            if isinstance(taken[-1], UnreadableMessage) or isinstance(
                self.waiting[0], UnreadableMessage
            ):
                break
            taken.append(self.waiting.popleft())
        return taken

    def give_back(self, messages: list[MessageExt]) -> None:
        self.waiting.extendleft(reversed(messages))


class OrderlyDelivery:
    """Calls the listener with one list per queue at a time, for several queues at once."""

    is_full = False
    takes_unreadable = True

    def __init__(
        self,
        parts: ConsumerParts,
        caller: ListenerCaller[OrderlyResult],
        failed: TakesFailed,
        locks: QueueLocks | None,
        options: PushOptions,
    ) -> None:
        self._caller = caller
        self._failed = failed
        self._locks = locks
        self._options = options
        self._offsets = parts.offsets
        self._rates = parts.rates
        self._log = parts.instance.log
        self._background = parts.background
        self._calls = Calls()
        self._loop_turns = LoopTurns()
        self._is_stopping = False
        self._turns: WeakKeyDictionary[ProcessQueue, _Turn] = WeakKeyDictionary()
        self._one_at_a_time: WeakValueDictionary[MessageQueue, asyncio.Lock] = WeakValueDictionary()
        self._slots = asyncio.Semaphore(0)
        self._slot_count = 0

    def resize(self, concurrency: int) -> None:
        """Change how many queues are served at a time, which is 0 at first; surplus slots end when
        they become free.
        """
        change, self._slot_count = concurrency - self._slot_count, concurrency
        for _ in range(change):
            self._slots.release()
        if change < 0:
            self._background.spawn(self._take_slots(-change), name="fewer-slots")

    async def _take_slots(self, count: int) -> None:
        for _ in range(count):
            await self._slots.acquire()

    def submit(self, process_queue: ProcessQueue, messages: list[MessageExt]) -> None:
        """Deliver messages after all earlier ones of the same queue."""
        turn = self._turns.setdefault(process_queue, _Turn())
        turn.add(messages)
        if not turn.is_served:
            turn.is_served = True
            queue = process_queue.queue
            self._background.keep(
                lambda: self._serve(process_queue, turn),
                name=f"deliver-{queue.topic}-{queue.queue_id}",
            )

    async def stop(self, drain_ms: int) -> int:
        """Start no more calls; wait up to `drain_ms` and return how many calls are still
        running.
        """
        self._is_stopping = True
        running_count = await self._calls.left_after(drain_ms)
        self._caller.close()
        return running_count

    async def give_back_late(self, process_queue: ProcessQueue, *, timeout_ms: int) -> None:
        """Do nothing: later messages cannot overtake the current one, however long it takes."""

    # -- inside -------------------------------------------------------------------------------

    async def _serve(self, held: ProcessQueue, turn: _Turn) -> None:
        # By queue rather than process queue: if a queue is assigned again, the old call may still
        # be running.
        lock = self._one_at_a_time.setdefault(held.queue, asyncio.Lock())
        await self._loop_turns.share()
        while turn.waiting and self._may_begin(held):
            try:
                pause_ms = await self._next_list(held, turn, lock)
            except NoThreads:  # the next member receives these messages
                self._is_stopping = True
                break
            except Exception as error:  # noqa: BLE001  # an offset store may be application code
                pause_ms = self._broken(held, error)
            if pause_ms:
                await asyncio.sleep(pause_ms / 1000)
            await self._loop_turns.share()
        turn.is_served = False  # only at a normal end: after a failure, `keep` serves it again

    def _broken(self, held: ProcessQueue, error: Exception) -> int:
        """Log an unexpected failure; return the queue's back-off in ms."""
        queue = held.queue
        self._log.error(
            "delivery.failed", topic=queue.topic, queue_id=queue.queue_id, error=describe(error)
        )
        return self._pause_ms(None)

    def _may_begin(self, held: ProcessQueue) -> bool:
        return not (self._is_stopping or held.is_dropped or held.is_leaving)

    async def _next_list(self, held: ProcessQueue, turn: _Turn, lock: asyncio.Lock) -> int:
        """Deliver the next list; return the pause in ms before the following one."""
        locks = self._locks  # broadcasting members share no queues, so they need no locks
        if locks and not locks.is_valid(held.queue) and not await locks.recovers(held):
            held.is_dropped = True
            return 0
        async with lock, self._slots:
            # Waiting for the lock and a slot may have taken longer than the broker's lock is valid.
            if not self._may_begin(held) or (locks and not locks.is_valid(held.queue)):
                return 0
            self._calls.began()
            held.calls.began()
            try:
                return await self._consume(held, turn)
            finally:
                held.calls.ended()
                self._calls.ended()

    async def _consume(self, held: ProcessQueue, turn: _Turn) -> int:
        messages = turn.take(self._options.batch_count_max)
        try:
            return await self._deliver(held, turn, messages)
        except (Exception, asyncio.CancelledError):
            turn.give_back(held.unconsumed(messages))
            raise

    async def _deliver(self, held: ProcessQueue, turn: _Turn, messages: list[MessageExt]) -> int:
        begin_ms = monotonic_ms()
        held.last_consume_ms = wall_ms()
        if isinstance(messages[0], UnreadableMessage):
            return await self._again(held, turn, messages, UNREADABLE, are_dead=True)
        result, error = await self._caller.call_safely(messages, OrderlyResult.SUSPEND)
        # The queue was lost during the call, so its result no longer counts.
        if held.is_dropped:
            return 0
        is_failed = result.action in {OrderlyAction.SUSPEND, OrderlyAction.ROLLBACK}
        self._rates.note(
            held.queue.topic,
            ok=0 if is_failed else len(messages),
            failed=len(messages) if is_failed else 0,
            ms=monotonic_ms() - begin_ms,
        )
        if result.action is OrderlyAction.SUSPEND:
            reason = error or ASKED_AGAIN
            return await self._again(held, turn, messages, reason, pause_ms=result.pause_ms)
        return self._settle(held, turn, messages, result)

    def _settle(
        self, held: ProcessQueue, turn: _Turn, messages: list[MessageExt], result: OrderlyResult
    ) -> int:
        turn.uncommitted += messages
        if result.action is OrderlyAction.HOLD:
            return 0
        messages, turn.uncommitted = turn.uncommitted, []
        if result.action is OrderlyAction.ROLLBACK:
            turn.give_back(messages)
            return self._pause_ms(result.pause_ms)
        held.consumed(messages, self._offsets)
        return 0

    async def _again(
        self,
        held: ProcessQueue,
        turn: _Turn,
        messages: list[MessageExt],
        error: str,
        *,
        pause_ms: int | None = None,
        are_dead: bool = False,
    ) -> int:
        """Put messages back for redelivery, or dead-letter them if they have no deliveries left."""
        times_max = self._options.max_reconsume_times  # without a limit if negative
        again: list[MessageExt] = []
        for message in messages:
            is_dead = are_dead or 0 <= times_max <= message.reconsume_times
            if is_dead and await self._failed.give_up(message, error):
                held.consumed([message], self._offsets)
            else:
                again.append(with_reconsume_times(message, message.reconsume_times + 1))
        turn.give_back(again)
        return self._pause_ms(pause_ms) if again else 0

    def _pause_ms(self, wanted_ms: int | None) -> int:
        pause_ms = self._options.suspend_queue_ms if wanted_ms is None else wanted_ms
        return max(PAUSE_MIN_MS, min(PAUSE_MAX_MS, pause_ms))
