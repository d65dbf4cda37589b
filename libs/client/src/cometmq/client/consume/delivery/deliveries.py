# SPDX-License-Identifier: Apache-2.0
"""Deliveries of pulled messages to the listener: concurrent ones, and in the order of each queue.

Invariants
    A message leaves its process queue only once it is consumed or the broker has taken it back, so
    the committed offset never passes an unconsumed message. Results for a dropped queue are
    ignored, because its new owner receives these messages too.

    Orderly: at most one listener call runs per queue, even while the queue changes hands, and a
    call starts only while the queue's lock is certainly valid. A list that was not consumed is
    redelivered before any later message, unless it becomes a dead letter. An exception in an
    application's offset store never stops a queue for good.
"""

import asyncio
import functools
from collections import deque
from typing import Final, Generic, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

import msgspec

from cometmq.client.application_calls import NoThreads
from cometmq.client.clock import monotonic_ms, wall_ms
from cometmq.client.consume.delivery.send_back import (
    ASKED_AGAIN,
    CANCELLED,
    GIVEN_UP,
    UNREADABLE,
    TakesFailed,
    with_reconsume_times,
)
from cometmq.client.consume.queues.locks import QueueLocks
from cometmq.client.consume.queues.parts import ConsumerParts
from cometmq.client.consume.queues.reader import Calls, ProcessQueue
from cometmq.client.listener import ConsumeResult, ListenerCaller, OrderlyAction, OrderlyResult
from cometmq.client.message import MessageExt, UnreadableMessage
from cometmq.client.settings import PushOptions
from cometmq.client.turns import LoopTurns
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.transport.tasks import describe

R = TypeVar("R", bound=ConsumeResult | OrderlyResult)

RETRY_HERE_MS: Final = 5_000
"""Delay before a message that no broker took back is redelivered to the listener."""

LATE_COUNT_MAX: Final = 16
LATE_LEVEL: Final = 3


class _Batch(msgspec.Struct):
    process_queue: ProcessQueue
    messages: list[MessageExt]
    error: str | None = None
    """Why the messages go back to the broker without another call to the listener."""


class Deliveries(Generic[R]):
    """The base of both deliveries."""

    is_full = False
    takes_unreadable = True

    def __init__(
        self, parts: ConsumerParts, caller: ListenerCaller[R], failed: TakesFailed
    ) -> None:
        """`failed` takes the messages that were not consumed."""
        self._caller = caller
        self._failed = failed
        self._offsets = parts.offsets
        self._rates = parts.rates
        self._log = parts.instance.log
        self._background = parts.background
        self._calls = Calls()
        self._turns = LoopTurns()
        self._is_stopping = False

    async def stop(self, drain_ms: int) -> int:
        """Start no more calls; wait up to `drain_ms`, and return how many still run."""
        self._is_stopping = True
        running_count = await self._calls.left_after(drain_ms)
        self._caller.close()
        return running_count


class Delivery(Deliveries[ConsumeResult]):
    """Calls the listener with lists of messages; up to `concurrency` calls run at the same time."""

    def __init__(
        self,
        parts: ConsumerParts,
        caller: ListenerCaller[ConsumeResult],
        failed: TakesFailed,
        *,
        batch_count_max: int,
    ) -> None:
        super().__init__(parts, caller, failed)
        self._batch_count_max = batch_count_max
        # Bounded by the limits of the readers, the only source of messages.
        self._ready: asyncio.Queue[_Batch | None] = asyncio.Queue()
        self._worker_count = 0

    def resize(self, concurrency: int) -> None:
        """Change the number of tasks, at first 0; surplus ones end after what is queued already."""
        for number in range(self._worker_count, concurrency):
            self._background.keep(self._work, name=f"deliver-{number}")
        for _ in range(concurrency, self._worker_count):
            self._ready.put_nowait(None)
        self._worker_count = concurrency

    def submit(self, process_queue: ProcessQueue, messages: list[MessageExt]) -> None:
        """Queue messages of one process queue for the listener.

        The messages must be either all readable or all unreadable. Unreadable messages are returned
        to the broker without calling the listener.
        """
        step, put = self._batch_count_max, self._ready.put_nowait
        error = UNREADABLE if isinstance(messages[0], UnreadableMessage) else None
        for start in range(0, len(messages), step):
            put(_Batch(process_queue, messages[start : start + step], error))

    async def give_back_late(self, process_queue: ProcessQueue, *, timeout_ms: int) -> None:
        """Send back the first messages that the listener has kept longer than `timeout_ms`."""
        late = process_queue.late(
            started_before_ms=monotonic_ms() - timeout_ms, count_max=LATE_COUNT_MAX
        )
        for message in late:
            # Each send-back takes time, in which the listener may end or the queue be lost.
            if not process_queue.awaits(message):
                continue
            error = f"the listener kept it for longer than consume_timeout_ms ({timeout_ms})"
            if await self._failed.send_back(message, LATE_LEVEL, error):
                self._log.warning(
                    "message.late",
                    group=self._caller.group,
                    topic=message.topic,
                    message_id=message.message_id,
                )
                process_queue.consumed([message], self._offsets)

    async def _work(self) -> None:
        all_calls, turns = self._calls, self._turns
        # Without this condition, a listener that suppresses its cancellation would keep the task
        # alive.
        while not self._is_stopping:
            batch = await self._ready.get()
            if batch is None:
                return
            await turns.share()
            if not self._may_begin(batch.process_queue):
                continue
            queue_calls = batch.process_queue.calls
            all_calls.began()
            queue_calls.began()
            try:
                await self._consume(batch)
            except NoThreads:  # the next member receives these messages
                self._is_stopping = True
            except asyncio.CancelledError:
                self._return_later(batch)
                raise
            finally:
                queue_calls.ended()
                all_calls.ended()

    def _may_begin(self, process_queue: ProcessQueue) -> bool:
        return not (self._is_stopping or process_queue.is_dropped)

    async def _consume(self, batch: _Batch) -> None:
        process_queue, messages = batch.process_queue, batch.messages
        begin_ms = monotonic_ms()
        process_queue.start(messages, begin_ms)
        process_queue.last_consume_ms = wall_ms()
        result, error = ConsumeResult.RECONSUME_LATER, batch.error
        if error is None:
            result, error = await self._caller.call_safely(messages, result)
        if process_queue.is_dropped:
            return
        count = len(messages)
        consumed = count if result.consumed_count is None else min(result.consumed_count, count)
        topic = process_queue.queue.topic
        self._rates.note(topic, ok=consumed, failed=count - consumed, ms=monotonic_ms() - begin_ms)
        done = messages
        if consumed < count:
            done = messages[:consumed]
            kept: list[MessageExt] = []
            for message in messages[consumed:]:
                if not process_queue.awaits(message):
                    continue  # it was late and is back at the broker, or its queue was lost
                level = result.delay_level
                reason = error or (GIVEN_UP if level < 0 else ASKED_AGAIN)
                is_taken = await self._failed.send_back(message, level, reason)
                (done if is_taken else kept).append(message)
            if kept:
                self._retry_here(process_queue, kept)
        process_queue.consumed(done, self._offsets)

    def _return_later(self, batch: _Batch) -> None:
        """Return the messages of a cancelled call to the broker, unless the consumer closes soon.

        If it does, the cancellation was part of closing, and the next member receives the messages.
        """
        batch.error = CANCELLED
        asyncio.get_running_loop().call_later(RETRY_HERE_MS / 1000, self._ready.put_nowait, batch)

    def _retry_here(self, process_queue: ProcessQueue, messages: list[MessageExt]) -> None:
        again = [with_reconsume_times(m, m.reconsume_times + 1) for m in messages]
        asyncio.get_running_loop().call_later(
            RETRY_HERE_MS / 1000, functools.partial(self.submit, process_queue, again)
        )


PAUSE_MIN_MS: Final = 10
PAUSE_MAX_MS: Final = 30_000


class _Turn:
    """The pending messages of one queue."""

    def __init__(self) -> None:
        self.waiting: deque[MessageExt] = deque()
        self.uncommitted: list[MessageExt] = []
        self.is_served = False

    def add(self, messages: list[MessageExt]) -> None:
        """Insert by offset: readable and unreadable messages of a pull arrive separately."""
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


class OrderlyDelivery(Deliveries[OrderlyResult]):
    """Calls the listener with one list per queue at a time, for several queues at once."""

    def __init__(
        self,
        parts: ConsumerParts,
        caller: ListenerCaller[OrderlyResult],
        failed: TakesFailed,
        locks: QueueLocks | None,
        options: PushOptions,
    ) -> None:
        super().__init__(parts, caller, failed)
        self._locks = locks
        self._options = options
        self._queues: WeakKeyDictionary[ProcessQueue, _Turn] = WeakKeyDictionary()
        self._one_at_a_time: WeakValueDictionary[MessageQueue, asyncio.Lock] = WeakValueDictionary()
        self._slots = asyncio.Semaphore(0)
        self._slot_count = 0

    def resize(self, concurrency: int) -> None:
        """Change how many queues are served at a time, at first 0; surplus slots end when free."""
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
        turn = self._queues.setdefault(process_queue, _Turn())
        turn.add(messages)
        if not turn.is_served:
            turn.is_served = True
            queue = process_queue.queue
            self._background.keep(
                lambda: self._serve(process_queue, turn),
                name=f"deliver-{queue.topic}-{queue.queue_id}",
            )

    async def give_back_late(self, process_queue: ProcessQueue, *, timeout_ms: int) -> None:
        """Do nothing: later messages cannot overtake the current one, however long it takes."""

    # -- inside -------------------------------------------------------------------------------

    async def _serve(self, held: ProcessQueue, turn: _Turn) -> None:
        # By queue rather than process queue: if a queue is assigned again, the old call may still
        # be running.
        lock = self._one_at_a_time.setdefault(held.queue, asyncio.Lock())
        await self._turns.share()
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
            await self._turns.share()
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
