# SPDX-License-Identifier: Apache-2.0
"""Results for a queue that was lost meanwhile do not count."""

from typing import Any

from cometmq.client.delivery import Delivery
from cometmq.client.listener import ListenerCaller
from cometmq.client.message import MessageExt
from cometmq.client.process_queue import ProcessQueue
from cometmq.client.rates import ConsumeRates
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.log import NO_LOG

QUEUE = MessageQueue("T", "a", 0)


def message(offset: int) -> MessageExt:
    texts = dict.fromkeys(("message_id", "offset_message_id", "born_host", "store_host"), "")
    numbers = dict.fromkeys(
        ("physical_offset", "flag", "sys_flag", "reconsume_times", "born_timestamp"), 0
    )
    more: dict[str, Any] = {**texts, **numbers}
    return MessageExt(
        topic="T",
        body=b"",
        tag=None,
        keys=(),
        properties={},
        queue=QUEUE,
        queue_offset=offset,
        store_timestamp=0,
        **more,
    )


class LosesTheQueue:
    """Takes messages back, while the queue goes to another member."""

    def __init__(self, held: ProcessQueue) -> None:
        self.held = held

    async def send_back(self, _: MessageExt, delay_level: int) -> bool:
        self.held.is_dropped = delay_level >= 0
        return True


async def test_a_late_message_of_a_lost_queue_moves_no_offset() -> None:
    held = ProcessQueue(QUEUE, 0)
    held.put([message(0)], 1)
    held.start([message(0)], -10_000)
    moved: list[int] = []
    delivery = Delivery(
        ListenerCaller(lambda _: None, thread_count=1),
        LosesTheQueue(held),
        batch_count_max=1,
        consumed=lambda _, offset: moved.append(offset),
        rates=ConsumeRates(),
        log=NO_LOG,
    )
    await delivery.give_back_late(held, timeout_ms=1)
    assert held.is_dropped
    assert moved == []
