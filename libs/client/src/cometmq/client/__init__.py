# SPDX-License-Identifier: Apache-2.0
"""Asyncio-first client for CometMQ and Apache RocketMQ."""

from cometmq.client.admin import AdminClient, QueueLag
from cometmq.client.consume.lite_pull_consumer import LitePullConsumer
from cometmq.client.consume.pull_consumer import PullConsumer
from cometmq.client.consume.push_consumer import PushConsumer
from cometmq.client.consume.scheduled_pull import ScheduledPull
from cometmq.client.errors import (
    BrokerMissing,
    ClientError,
    ClientStateError,
    IllegalMessage,
    InvalidArgument,
    NoNamesrv,
    NoReply,
    NoRoute,
    NotARequest,
    SendFailed,
)
from cometmq.client.hooks import (
    ConsumeContext,
    ConsumeHook,
    ConsumeOutcome,
    EndContext,
    EndHook,
    ForbiddenHook,
    SendContext,
    SendHook,
    TransactionState,
)
from cometmq.client.listener import ConsumeResult, Listener, OrderlyListener, OrderlyResult
from cometmq.client.message import Message, MessageExt, SendResult, SendStatus
from cometmq.client.produce.producer import Producer
from cometmq.client.produce.transactions import (
    Transaction,
    TransactionProducer,
    TransactionSendResult,
)
from cometmq.client.request_reply import is_request, reply_message
from cometmq.client.settings import (
    AccessChannel,
    ClientOptions,
    ConsumeFrom,
    LitePullOptions,
    MessageModel,
    ProducerOptions,
    PullOptions,
    PushOptions,
    TransactionOptions,
)
from cometmq.client.signals import on_signal, until_signal
from cometmq.client.subscriptions import ExpressionType, MessageSelector
from cometmq.client.transfer.puller import Pulled as PullResult
from cometmq.client.transfer.puller import PullStatus
from cometmq.client.transfer.queue_selection import by_hash, by_random
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.signature import SessionCredentials

__all__ = [
    "AccessChannel",
    "AdminClient",
    "BrokerMissing",
    "ClientError",
    "ClientOptions",
    "ClientStateError",
    "ConsumeContext",
    "ConsumeFrom",
    "ConsumeHook",
    "ConsumeOutcome",
    "ConsumeResult",
    "EndContext",
    "EndHook",
    "ExpressionType",
    "ForbiddenHook",
    "IllegalMessage",
    "InvalidArgument",
    "Listener",
    "LitePullConsumer",
    "LitePullOptions",
    "Message",
    "MessageExt",
    "MessageModel",
    "MessageQueue",
    "MessageSelector",
    "NoNamesrv",
    "NoReply",
    "NoRoute",
    "NotARequest",
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
    "SendContext",
    "SendFailed",
    "SendHook",
    "SendResult",
    "SendStatus",
    "SessionCredentials",
    "Transaction",
    "TransactionOptions",
    "TransactionProducer",
    "TransactionSendResult",
    "TransactionState",
    "by_hash",
    "by_random",
    "is_request",
    "on_signal",
    "reply_message",
    "until_signal",
]
