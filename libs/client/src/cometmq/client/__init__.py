# SPDX-License-Identifier: Apache-2.0
"""Asyncio-first client for CometMQ and Apache RocketMQ."""

from cometmq.client.admin import AdminClient, QueueLag
from cometmq.client.errors import (
    BrokerMissing,
    ClientError,
    ClientStateError,
    InvalidArgument,
    NoNamesrv,
    NoRoute,
    SendFailed,
)
from cometmq.client.listener import ConsumeResult, Listener, OrderlyListener, OrderlyResult
from cometmq.client.lite_pull_consumer import LitePullConsumer
from cometmq.client.message import Message, MessageExt, SendResult, SendStatus
from cometmq.client.producer import Producer
from cometmq.client.pull_consumer import PullConsumer
from cometmq.client.puller import Pulled as PullResult
from cometmq.client.puller import PullStatus
from cometmq.client.push_consumer import PushConsumer
from cometmq.client.queue_selection import by_hash
from cometmq.client.scheduled_pull import ScheduledPull
from cometmq.client.settings import (
    ClientOptions,
    ConsumeFrom,
    LitePullOptions,
    MessageModel,
    ProducerOptions,
    PullOptions,
    PushOptions,
)
from cometmq.client.signals import on_signal, until_signal
from cometmq.client.subscriptions import ExpressionType
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.signature import SessionCredentials

__all__ = [
    "AdminClient",
    "BrokerMissing",
    "ClientError",
    "ClientOptions",
    "ClientStateError",
    "ConsumeFrom",
    "ConsumeResult",
    "ExpressionType",
    "InvalidArgument",
    "Listener",
    "LitePullConsumer",
    "LitePullOptions",
    "Message",
    "MessageExt",
    "MessageModel",
    "MessageQueue",
    "NoNamesrv",
    "NoRoute",
    "OrderlyListener",
    "OrderlyResult",
    "Producer",
    "ProducerOptions",
    "PullConsumer",
    "PullOptions",
    "PullResult",
    "PullStatus",
    "PushConsumer",
    "PushOptions",
    "QueueLag",
    "ScheduledPull",
    "SendFailed",
    "SendResult",
    "SendStatus",
    "SessionCredentials",
    "by_hash",
    "on_signal",
    "until_signal",
]
