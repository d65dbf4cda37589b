# SPDX-License-Identifier: Apache-2.0
"""Asyncio-first client for CometMQ and Apache RocketMQ."""

from cometmq.client.errors import (
    BrokerMissing,
    ClientError,
    ClientStateError,
    InvalidArgument,
    NoNamesrv,
    NoRoute,
    SendFailed,
)
from cometmq.client.message import Message, MessageExt, SendResult, SendStatus
from cometmq.client.producer import Producer
from cometmq.client.queue_selection import by_hash
from cometmq.client.settings import (
    ClientOptions,
    ConsumeFrom,
    MessageModel,
    ProducerOptions,
)
from cometmq.remoting.bodies.queues import MessageQueue

__all__ = [
    "BrokerMissing",
    "ClientError",
    "ClientOptions",
    "ClientStateError",
    "ConsumeFrom",
    "InvalidArgument",
    "Message",
    "MessageExt",
    "MessageModel",
    "MessageQueue",
    "NoNamesrv",
    "NoRoute",
    "Producer",
    "ProducerOptions",
    "SendFailed",
    "SendResult",
    "SendStatus",
    "by_hash",
]
