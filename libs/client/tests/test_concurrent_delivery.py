# SPDX-License-Identifier: Apache-2.0
"""A listener's results are ignored if its queue is lost during the call."""

from types import SimpleNamespace
from typing import Any

from cometmq.client.consume.delivery.concurrent import Delivery
from cometmq.client.consume.queues.process_queue import ProcessQueue
from cometmq.client.consume.queues.rates import ConsumeRates
from cometmq.client.listener import ConsumeResult, ListenerCaller
from cometmq.client.message import MessageExt
from cometmq.client.testing.messages import QUEUE, message_ext
from cometmq.remoting.log import NO_LOG


class LosesTheQueue:
    """Takes messages back while another member takes over the queue."""

    def __init__(self, held: ProcessQueue) -> None:
        self.held = held

    async def send_back(self, _: MessageExt, delay_level: int, _error: str) -> bool:
        self.held.is_dropped = delay_level >= 0
        return True


async def test_a_late_message_of_a_lost_queue_moves_no_offset() -> None:
    held = ProcessQueue(QUEUE, 0)
    held.put([message_ext(0)], 1)
    held.start([message_ext(0)], -10_000)
    moved: list[int] = []
    offsets: Any = SimpleNamespace(update=lambda _, offset: moved.append(offset))
    failed: Any = LosesTheQueue(held)
    caller = ListenerCaller(
        lambda _: None, ConsumeResult.SUCCESS, group="cg", thread_count=1, log=NO_LOG
    )
    parts: Any = SimpleNamespace(
        offsets=offsets,
        rates=ConsumeRates(),
        background=None,
        instance=SimpleNamespace(log=NO_LOG),
    )
    delivery = Delivery(parts, caller, failed, batch_count_max=1)
    await delivery.give_back_late(held, timeout_ms=1)
    assert held.is_dropped
    assert moved == []
