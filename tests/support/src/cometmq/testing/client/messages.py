# SPDX-License-Identifier: Apache-2.0
"""Builds received messages without a broker."""

from typing import Final

from cometmq.client.message import MessageExt
from cometmq.remoting.bodies.queues import MessageQueue

QUEUE: Final = MessageQueue("T", "a", 0)


def message_ext(queue_offset: int, body: bytes = b"", *, queue: MessageQueue = QUEUE) -> MessageExt:
    """Return a message at a queue offset, which is also its id."""
    return MessageExt(
        topic=queue.topic,
        body=body,
        tag=None,
        keys=(),
        properties={},
        message_id=str(queue_offset),
        offset_message_id="",
        queue=queue,
        queue_offset=queue_offset,
        physical_offset=0,
        flag=0,
        sys_flag=0,
        reconsume_times=0,
        born_timestamp=0,
        born_host="",
        store_timestamp=0,
        store_host="",
    )
