# SPDX-License-Identifier: Apache-2.0
"""Asyncio client for CometMQ and Apache RocketMQ."""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from cometmq.client.admin import END, AdminClient, QueueLag
from cometmq.client.errors import (
    BrokerMissing,
    ClientError,
    ClientStateError,
    InvalidArgument,
    InvalidMessage,
    NoNamesrv,
    NoReply,
    NoRetries,
    NoRoute,
    NotARequest,
    NotWritable,
    OffsetsUnreadable,
    OffsetsUnwritable,
    RequesterGone,
    SendFailed,
    SendTimeout,
    WrongServer,
)
from cometmq.client.hooks import (
    ConsumeContext,
    ConsumeHook,
    ConsumeOutcome,
    EndContext,
    EndHook,
    ForbiddenHook,
    MessageKind,
    SendContext,
    SendHook,
    TransactionState,
)
from cometmq.client.listener import ConsumeResult, Listener, OrderlyListener, OrderlyResult
from cometmq.client.message import DamagedMessage, Message, MessageExt, SendResult, SendStatus
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
from cometmq.client.transfer.pulled import Pulled as PullResult
from cometmq.client.transfer.pulled import PullStatus
from cometmq.client.transfer.queue_selection import by_hash, by_random
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.bodies.topic_config import SubscriptionGroupConfig, TopicConfig
from cometmq.remoting.errors import (
    AccessDenied,
    BroadcastConsumption,
    CometError,
    CommandError,
    ConnectFailed,
    ConnectionLost,
    ConsumeMsgTimeout,
    ConsumerNotOnline,
    DeleteAclConfigFailed,
    FilterDataNotExist,
    FilterDataNotLatest,
    FlowControl,
    FlushDiskTimeout,
    FlushSlaveTimeout,
    IllegalOperation,
    InvalidParameter,
    MessageIllegal,
    NoBuyerId,
    NoPermission,
    NotInCurrentUnit,
    Outage,
    Overloaded,
    ProtocolError,
    QueryNotFound,
    RequestCodeNotSupported,
    RequestTimeout,
    ServerError,
    ServiceNotAvailable,
    SlaveNotAvailable,
    SubscriptionGroupNotExist,
    SubscriptionNotExist,
    SubscriptionNotLatest,
    SubscriptionParseFailed,
    SystemBusy,
    TopicNotExist,
    TransactionFailed,
    TransactionStateGroupWrong,
    TransportError,
    UpdateAndCreateAclConfigFailed,
    UpdateGlobalWhiteAddrsConfigFailed,
)
from cometmq.remoting.message.flags import CompressionType
from cometmq.remoting.signature import SessionCredentials
from cometmq.remoting.transport.settings import TlsSettings
from cometmq.remoting.types import Serialization

if TYPE_CHECKING:
    from cometmq.client.consume.lite_pull_consumer import LitePullConsumer
    from cometmq.client.consume.pull_consumer import PullConsumer
    from cometmq.client.consume.push_consumer import ConsumerStats, PushConsumer
    from cometmq.client.consume.scheduled_pull import ScheduledPull
    from cometmq.client.produce.producer import Producer, ProducerStats
    from cometmq.client.produce.transactions import (
        Transaction,
        TransactionProducer,
        TransactionSendResult,
    )

_LATE: Final = {
    "LitePullConsumer": "cometmq.client.consume.lite_pull_consumer",
    "PullConsumer": "cometmq.client.consume.pull_consumer",
    "ConsumerStats": "cometmq.client.consume.push_consumer",
    "PushConsumer": "cometmq.client.consume.push_consumer",
    "ScheduledPull": "cometmq.client.consume.scheduled_pull",
    "Producer": "cometmq.client.produce.producer",
    "ProducerStats": "cometmq.client.produce.producer",
    "Transaction": "cometmq.client.produce.transactions",
    "TransactionProducer": "cometmq.client.produce.transactions",
    "TransactionSendResult": "cometmq.client.produce.transactions",
}
"""Imported on first use: these modules are half of the package, and admin programs need none of
them.
"""

__all__ = [
    "END",
    "AccessChannel",
    "AccessDenied",
    "AdminClient",
    "BroadcastConsumption",
    "BrokerMissing",
    "ClientError",
    "ClientOptions",
    "ClientStateError",
    "CometError",
    "CommandError",
    "CompressionType",
    "ConnectFailed",
    "ConnectionLost",
    "ConsumeContext",
    "ConsumeFrom",
    "ConsumeHook",
    "ConsumeMsgTimeout",
    "ConsumeOutcome",
    "ConsumeResult",
    "ConsumerNotOnline",
    "ConsumerStats",
    "DamagedMessage",
    "DeleteAclConfigFailed",
    "EndContext",
    "EndHook",
    "ExpressionType",
    "FilterDataNotExist",
    "FilterDataNotLatest",
    "FlowControl",
    "FlushDiskTimeout",
    "FlushSlaveTimeout",
    "ForbiddenHook",
    "IllegalOperation",
    "InvalidArgument",
    "InvalidMessage",
    "InvalidParameter",
    "Listener",
    "LitePullConsumer",
    "LitePullOptions",
    "Message",
    "MessageExt",
    "MessageIllegal",
    "MessageKind",
    "MessageModel",
    "MessageQueue",
    "MessageSelector",
    "NoBuyerId",
    "NoNamesrv",
    "NoPermission",
    "NoReply",
    "NoRetries",
    "NoRoute",
    "NotARequest",
    "NotInCurrentUnit",
    "NotWritable",
    "OffsetsUnreadable",
    "OffsetsUnwritable",
    "OrderlyListener",
    "OrderlyResult",
    "Outage",
    "Overloaded",
    "Producer",
    "ProducerOptions",
    "ProducerStats",
    "ProtocolError",
    "PullConsumer",
    "PullOptions",
    "PullResult",
    "PullStatus",
    "PushConsumer",
    "PushOptions",
    "QueryNotFound",
    "QueueLag",
    "RequestCodeNotSupported",
    "RequestTimeout",
    "RequesterGone",
    "ScheduledPull",
    "SendContext",
    "SendFailed",
    "SendHook",
    "SendResult",
    "SendStatus",
    "SendTimeout",
    "Serialization",
    "ServerError",
    "ServiceNotAvailable",
    "SessionCredentials",
    "SlaveNotAvailable",
    "SubscriptionGroupConfig",
    "SubscriptionGroupNotExist",
    "SubscriptionNotExist",
    "SubscriptionNotLatest",
    "SubscriptionParseFailed",
    "SystemBusy",
    "TlsSettings",
    "TopicConfig",
    "TopicNotExist",
    "Transaction",
    "TransactionFailed",
    "TransactionOptions",
    "TransactionProducer",
    "TransactionSendResult",
    "TransactionState",
    "TransactionStateGroupWrong",
    "TransportError",
    "UpdateAndCreateAclConfigFailed",
    "UpdateGlobalWhiteAddrsConfigFailed",
    "WrongServer",
    "by_hash",
    "by_random",
    "is_request",
    "on_signal",
    "reply_message",
    "until_signal",
]


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_LATE[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
