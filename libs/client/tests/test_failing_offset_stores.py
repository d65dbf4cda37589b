# SPDX-License-Identifier: Apache-2.0
"""An application's offset store may raise any error without stopping a queue for good."""

import asyncio
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from cometmq.client import ConsumeFrom, MessageExt, MessageQueue, OrderlyResult, PushOptions
from cometmq.client.consume.delivery.deliveries import OrderlyDelivery
from cometmq.client.consume.queues.offsets import Positions
from cometmq.client.consume.queues.rates import ConsumeRates
from cometmq.client.consume.queues.reader import ProcessQueue
from cometmq.client.testing import MemoryCluster, eventually
from cometmq.remoting.log import NO_LOG
from cometmq.remoting.transport.tasks import TaskSet
from cometmq.testing.client.listening import QUEUE_0, Recorder, consumer_of, send, texts
from cometmq.testing.client.messages import QUEUE, message_ext


class BreakingOffsets:
    """An in-memory offset store that fails on every second update and commit."""

    def __init__(self, error: BaseException) -> None:
        self._error = error
        self.positions = Positions()
        self.stored: dict[MessageQueue, int] = {}
        self._update_count = 0
        self._commit_count = 0

    async def read(self, queue: MessageQueue) -> int | None:
        return self.stored.get(queue)

    def position(self, queue: MessageQueue) -> int | None:
        return self.positions.offsets.get(queue)

    def unsaved(self, queue: MessageQueue) -> int | None:
        return self.positions.unsaved(queue)

    def update(self, queue: MessageQueue, offset: int, *, is_reset: bool = False) -> None:
        if queue == QUEUE_0 and offset:
            self._update_count += 1
            if self._update_count % 2:
                raise self._error
        self.positions.update(queue, offset, is_reset=is_reset)

    async def persist(self, queues: Iterable[MessageQueue]) -> None:
        raise self._error

    async def commit(self, queues: Iterable[MessageQueue]) -> None:
        self._commit_count += 1
        if self._commit_count % 2:
            raise self._error
        self.stored |= {q: self.positions.offsets[q] for q in self.positions.to_commit(queues)}

    def forget(self, queue: MessageQueue) -> None:
        self.positions.forget(queue)


class Timeout(BaseException):
    """Like the timeouts of gevent and eventlet."""


@pytest.mark.parametrize("error", [LookupError("foreign"), Timeout("foreign")])
async def test_delivery_stays_in_order_and_noted_offsets_are_stored(
    cluster: MemoryCluster, error: BaseException
) -> None:
    await send(cluster, *texts(6))
    seen, offsets = Recorder(), BreakingOffsets(error)
    options = PushOptions(consume_from=ConsumeFrom.FIRST_OFFSET, orderly=True, suspend_queue_ms=10)
    async with consumer_of(cluster, seen, options, offsets=offsets):
        await eventually(lambda: len(seen.bodies) >= 6)
        await eventually(lambda: offsets.position(QUEUE_0) == 6)
    assert seen.bodies == [b"%d" % number for number in range(6)]
    assert offsets.stored[QUEUE_0] == 6
    assert cluster.broker.locks == {}


class Refuses:
    """Never consumes the first message, and at first fails to dead-letter it."""

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.buried: list[int] = []
        self._breaks = True

    async def call_safely(
        self, messages: list[MessageExt], _: OrderlyResult
    ) -> tuple[OrderlyResult, str]:
        offset = messages[0].queue_offset
        self.offsets.append(offset)
        return (OrderlyResult.SUSPEND if offset == 0 else OrderlyResult.SUCCESS), ""

    async def give_up(self, message: MessageExt, _error: str) -> bool:
        if self._breaks:
            self._breaks = False
            raise ValueError("broken")
        self.buried.append(message.queue_offset)
        return True


async def test_a_message_with_a_failed_completion_is_redelivered_first() -> None:
    refuses, consumed, all_done = Refuses(), [], asyncio.Event()
    background = TaskSet(NO_LOG)

    def update(_: MessageQueue, offset: int) -> None:
        consumed.append(offset)
        if offset == 2:
            all_done.set()

    caller: Any = refuses
    offsets: Any = SimpleNamespace(update=update)
    parts: Any = SimpleNamespace(
        offsets=offsets,
        rates=ConsumeRates(),
        background=background,
        instance=SimpleNamespace(log=NO_LOG),
    )
    options = PushOptions(batch_count_max=1, suspend_queue_ms=10, max_reconsume_times=0)
    delivery = OrderlyDelivery(parts, caller, caller, None, options)
    delivery.resize(1)
    held = ProcessQueue(QUEUE, 0)
    delivery.submit(held, held.put([message_ext(0), message_ext(1)], 2))
    async with asyncio.timeout(60):
        await all_done.wait()
    await background.close()
    assert refuses.offsets == [0, 0, 1]
    assert (refuses.buried, consumed) == ([0], [1, 2])
