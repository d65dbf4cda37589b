# SPDX-License-Identifier: Apache-2.0
"""Every form in which a producer sends a message."""

from cometmq.client import (
    Message,
    Producer,
)
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.codes import RequestCode

SEND = RequestCode.SEND_MESSAGE_V2


async def send_form(form: str, producer: Producer, queue: MessageQueue) -> None:
    message = Message("T", b"x")
    match form:
        case "send":
            await producer.send(message)
        case "batch":
            await producer.send_batch([message])
        case "queue":
            await producer.send(message, queue=queue)
        case "ordered":
            await producer.send_ordered(message, "key")
        case "request":
            await producer.request(message, timeout_ms=60_000)
        case _:
            await producer.send_oneway(message)
