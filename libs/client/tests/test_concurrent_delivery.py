# SPDX-License-Identifier: Apache-2.0
"""Only messages whose results still count move offsets or return to the broker."""

from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from cometmq.client.clock import monotonic_ms
from cometmq.client.consume.delivery.deliveries import Delivery
from cometmq.client.consume.queues.rates import ConsumeRates
from cometmq.client.consume.queues.reader import ProcessQueue
from cometmq.client.listener import ConsumeResult, ListenerCaller
from cometmq.client.message import MessageExt
from cometmq.client.testing import eventually
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.log import NO_LOG
from cometmq.remoting.transport.tasks import TaskSet
from cometmq.testing.client.messages import QUEUE, message_ext


class TakesBack:
    """Takes messages back, while something else happens to their queue."""

    def __init__(self, meanwhile: Callable[[MessageExt], None]) -> None:
        self.meanwhile = meanwhile
        self.ids: list[str] = []

    async def send_back(self, message: MessageExt, _level: int, _error: str) -> bool:
        self.ids.append(message.message_id)
        self.meanwhile(message)
        return True


class Offsets:
    """Records where the offset of the queue moved."""

    def __init__(self) -> None:
        self.moved: list[int] = []

    def update(self, _: MessageQueue, offset: int) -> None:
        self.moved.append(offset)


def delivery_of(
    failed: Any,
    offsets: Any,
    *,
    background: TaskSet | None = None,
    result: ConsumeResult = ConsumeResult.SUCCESS,
) -> Delivery:
    async def listen(_: Iterable[MessageExt]) -> ConsumeResult:
        return result

    caller = ListenerCaller(listen, ConsumeResult.SUCCESS, group="cg", thread_count=1, log=NO_LOG)
    parts: Any = SimpleNamespace(
        offsets=offsets,
        rates=ConsumeRates(),
        background=background,
        instance=SimpleNamespace(log=NO_LOG),
    )
    return Delivery(parts, caller, failed, batch_count_max=8)


def held_of(count: int) -> ProcessQueue:
    """Return a queue with this many messages, which the listener has kept for long."""
    held, messages = ProcessQueue(QUEUE, 0), [message_ext(number) for number in range(count)]
    held.put(messages, count)
    held.start(messages, monotonic_ms() - 10_000)
    return held


async def test_late_messages_of_a_lost_queue_move_no_offset_and_stay() -> None:
    held, offsets = held_of(2), Offsets()

    def lose(_: MessageExt) -> None:
        held.is_dropped = True

    failed = TakesBack(lose)
    await delivery_of(failed, offsets).give_back_late(held, timeout_ms=1)
    assert failed.ids == ["0"]
    assert offsets.moved == []


async def test_a_late_message_that_is_consumed_meanwhile_is_not_sent_back() -> None:
    held, offsets = held_of(3), Offsets()

    def consume(message: MessageExt) -> None:
        if message.queue_offset == 0:
            held.consumed([message_ext(1)], offsets)  # type: ignore[arg-type]  # only updates

    failed = TakesBack(consume)
    await delivery_of(failed, offsets).give_back_late(held, timeout_ms=1)
    assert failed.ids == ["0", "2"]
    assert len(held) == 0
    assert offsets.moved[-1] == 3


@pytest.mark.parametrize("is_lost", [True, False], ids=["lost", "sent back late"])
async def test_failed_messages_whose_result_no_longer_counts_are_not_sent_back(
    is_lost: bool,
) -> None:
    held, messages = held_of(0), [message_ext(number) for number in range(3)]
    held.put(messages, 3)

    def meanwhile(message: MessageExt) -> None:
        if is_lost:
            held.is_dropped = True
        elif message.queue_offset == 0:
            held.remove([messages[1]])

    failed, background = TakesBack(meanwhile), TaskSet(NO_LOG)
    result = ConsumeResult.RECONSUME_LATER
    delivery = delivery_of(failed, Offsets(), background=background, result=result)
    delivery.resize(1)
    delivery.submit(held, messages)
    await eventually(lambda: bool(failed.ids) and held.calls.is_idle)
    await background.close()
    assert failed.ids == (["0"] if is_lost else ["0", "2"])
