# SPDX-License-Identifier: Apache-2.0
"""Concurrent delivery: several tasks take pulled messages and call the listener.

Invariants
    A message leaves its process queue only once it is consumed or the broker has taken it back, so
    the committed offset never passes an unconsumed message. Results for a dropped queue are
    ignored, because its new owner receives these messages too.
"""

import asyncio
import functools
from typing import Final

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
from cometmq.client.consume.queues.parts import ConsumerParts
from cometmq.client.consume.queues.process_queue import Calls, ProcessQueue
from cometmq.client.listener import ConsumeResult, ListenerCaller
from cometmq.client.message import MessageExt, UnreadableMessage
from cometmq.client.turns import LoopTurns

RETRY_HERE_MS: Final = 5_000
"""Delay before a message that no broker took back is redelivered to the listener."""

LATE_COUNT_MAX: Final = 16
LATE_LEVEL: Final = 3


class _Batch(msgspec.Struct):
    process_queue: ProcessQueue
    messages: list[MessageExt]
    error: str | None = None
    """Why the messages go back to the broker without another call to the listener."""


class Delivery:
    """Calls the listener with lists of messages; up to `concurrency` calls run at the same time."""

    is_full = False
    takes_unreadable = True

    def __init__(
        self,
        parts: ConsumerParts,
        caller: ListenerCaller[ConsumeResult],
        failed: TakesFailed,
        *,
        batch_count_max: int,
    ) -> None:
        self._caller = caller
        self._failed = failed
        self._batch_count_max = batch_count_max
        self._offsets = parts.offsets
        self._rates = parts.rates
        self._log = parts.instance.log
        self._background = parts.background
        # Bounded by the limits of the readers, the only source of messages.
        self._ready: asyncio.Queue[_Batch | None] = asyncio.Queue()
        self._worker_count = 0
        self._calls = Calls()
        self._turns = LoopTurns()
        self._is_stopping = False

    def resize(self, concurrency: int) -> None:
        """Change the number of tasks, which is 0 at first; surplus tasks end once the messages
        already queued are delivered.
        """
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

    async def stop(self, drain_ms: int) -> int:
        """Start no more calls; wait up to `drain_ms` and return how many calls are still
        running.
        """
        self._is_stopping = True
        running_count = await self._calls.left_after(drain_ms)
        self._caller.close()
        return running_count

    async def give_back_late(self, process_queue: ProcessQueue, *, timeout_ms: int) -> None:
        """Send back the first held messages of a queue that have been in the listener for longer
        than `timeout_ms`.
        """
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
