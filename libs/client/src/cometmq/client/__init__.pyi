# SPDX-License-Identifier: Apache-2.0
"""Asyncio client for CometMQ and Apache RocketMQ."""

from cometmq.client.admin import END as END
from cometmq.client.admin import AdminClient as AdminClient
from cometmq.client.admin import QueueLag as QueueLag
from cometmq.client.consume.lite_pull_consumer import LitePullConsumer as LitePullConsumer
from cometmq.client.consume.pull_consumer import PullConsumer as PullConsumer
from cometmq.client.consume.pull_consumer import ScheduledPull as ScheduledPull
from cometmq.client.consume.push_consumer import ConsumerStats as ConsumerStats
from cometmq.client.consume.push_consumer import PushConsumer as PushConsumer
from cometmq.client.errors import BrokerMissing as BrokerMissing
from cometmq.client.errors import ClientError as ClientError
from cometmq.client.errors import ClientStateError as ClientStateError
from cometmq.client.errors import InvalidArgument as InvalidArgument
from cometmq.client.errors import InvalidMessage as InvalidMessage
from cometmq.client.errors import NoNamesrv as NoNamesrv
from cometmq.client.errors import NoReply as NoReply
from cometmq.client.errors import NoRetries as NoRetries
from cometmq.client.errors import NoRoute as NoRoute
from cometmq.client.errors import NotARequest as NotARequest
from cometmq.client.errors import NotWritable as NotWritable
from cometmq.client.errors import OffsetsUnreadable as OffsetsUnreadable
from cometmq.client.errors import OffsetsUnwritable as OffsetsUnwritable
from cometmq.client.errors import RequesterGone as RequesterGone
from cometmq.client.errors import SendFailed as SendFailed
from cometmq.client.errors import SendTimeout as SendTimeout
from cometmq.client.errors import WrongServer as WrongServer
from cometmq.client.hooks import ConsumeContext as ConsumeContext
from cometmq.client.hooks import ConsumeHook as ConsumeHook
from cometmq.client.hooks import ConsumeOutcome as ConsumeOutcome
from cometmq.client.hooks import EndContext as EndContext
from cometmq.client.hooks import EndHook as EndHook
from cometmq.client.hooks import ForbiddenHook as ForbiddenHook
from cometmq.client.hooks import MessageKind as MessageKind
from cometmq.client.hooks import SendContext as SendContext
from cometmq.client.hooks import SendHook as SendHook
from cometmq.client.hooks import TransactionState as TransactionState
from cometmq.client.listener import ConsumeResult as ConsumeResult
from cometmq.client.listener import Listener as Listener
from cometmq.client.listener import OrderlyListener as OrderlyListener
from cometmq.client.listener import OrderlyResult as OrderlyResult
from cometmq.client.message import DamagedMessage as DamagedMessage
from cometmq.client.message import Message as Message
from cometmq.client.message import MessageExt as MessageExt
from cometmq.client.message import SendResult as SendResult
from cometmq.client.message import SendStatus as SendStatus
from cometmq.client.produce.producer import Producer as Producer
from cometmq.client.produce.producer import ProducerStats as ProducerStats
from cometmq.client.produce.transactions import Transaction as Transaction
from cometmq.client.produce.transactions import TransactionProducer as TransactionProducer
from cometmq.client.produce.transactions import TransactionSendResult as TransactionSendResult
from cometmq.client.request_reply import is_request as is_request
from cometmq.client.request_reply import reply_message as reply_message
from cometmq.client.settings import AccessChannel as AccessChannel
from cometmq.client.settings import ClientOptions as ClientOptions
from cometmq.client.settings import ConsumeFrom as ConsumeFrom
from cometmq.client.settings import LitePullOptions as LitePullOptions
from cometmq.client.settings import MessageModel as MessageModel
from cometmq.client.settings import ProducerOptions as ProducerOptions
from cometmq.client.settings import PullOptions as PullOptions
from cometmq.client.settings import PushOptions as PushOptions
from cometmq.client.settings import TransactionOptions as TransactionOptions
from cometmq.client.signals import on_signal as on_signal
from cometmq.client.signals import until_signal as until_signal
from cometmq.client.subscriptions import ExpressionType as ExpressionType
from cometmq.client.subscriptions import MessageSelector as MessageSelector
from cometmq.client.transfer.pulled import Pulled as PullResult
from cometmq.client.transfer.pulled import PullStatus as PullStatus
from cometmq.client.transfer.queue_selection import by_hash as by_hash
from cometmq.client.transfer.queue_selection import by_random as by_random
from cometmq.remoting.bodies.queues import MessageQueue as MessageQueue
from cometmq.remoting.bodies.topic_config import SubscriptionGroupConfig as SubscriptionGroupConfig
from cometmq.remoting.bodies.topic_config import TopicConfig as TopicConfig
from cometmq.remoting.errors import AccessDenied as AccessDenied
from cometmq.remoting.errors import BroadcastConsumption as BroadcastConsumption
from cometmq.remoting.errors import CometError as CometError
from cometmq.remoting.errors import CommandError as CommandError
from cometmq.remoting.errors import ConnectFailed as ConnectFailed
from cometmq.remoting.errors import ConnectionLost as ConnectionLost
from cometmq.remoting.errors import ConsumeMsgTimeout as ConsumeMsgTimeout
from cometmq.remoting.errors import ConsumerNotOnline as ConsumerNotOnline
from cometmq.remoting.errors import DeleteAclConfigFailed as DeleteAclConfigFailed
from cometmq.remoting.errors import FilterDataNotExist as FilterDataNotExist
from cometmq.remoting.errors import FilterDataNotLatest as FilterDataNotLatest
from cometmq.remoting.errors import FlowControl as FlowControl
from cometmq.remoting.errors import FlushDiskTimeout as FlushDiskTimeout
from cometmq.remoting.errors import FlushSlaveTimeout as FlushSlaveTimeout
from cometmq.remoting.errors import IllegalOperation as IllegalOperation
from cometmq.remoting.errors import InvalidParameter as InvalidParameter
from cometmq.remoting.errors import MessageIllegal as MessageIllegal
from cometmq.remoting.errors import NoBuyerId as NoBuyerId
from cometmq.remoting.errors import NoPermission as NoPermission
from cometmq.remoting.errors import NotInCurrentUnit as NotInCurrentUnit
from cometmq.remoting.errors import Outage as Outage
from cometmq.remoting.errors import Overloaded as Overloaded
from cometmq.remoting.errors import ProtocolError as ProtocolError
from cometmq.remoting.errors import QueryNotFound as QueryNotFound
from cometmq.remoting.errors import RequestCodeNotSupported as RequestCodeNotSupported
from cometmq.remoting.errors import RequestTimeout as RequestTimeout
from cometmq.remoting.errors import ServerError as ServerError
from cometmq.remoting.errors import ServiceNotAvailable as ServiceNotAvailable
from cometmq.remoting.errors import SlaveNotAvailable as SlaveNotAvailable
from cometmq.remoting.errors import SubscriptionGroupNotExist as SubscriptionGroupNotExist
from cometmq.remoting.errors import SubscriptionNotExist as SubscriptionNotExist
from cometmq.remoting.errors import SubscriptionNotLatest as SubscriptionNotLatest
from cometmq.remoting.errors import SubscriptionParseFailed as SubscriptionParseFailed
from cometmq.remoting.errors import SystemBusy as SystemBusy
from cometmq.remoting.errors import TopicNotExist as TopicNotExist
from cometmq.remoting.errors import TransactionFailed as TransactionFailed
from cometmq.remoting.errors import TransactionStateGroupWrong as TransactionStateGroupWrong
from cometmq.remoting.errors import TransportError as TransportError
from cometmq.remoting.errors import UpdateAndCreateAclConfigFailed as UpdateAndCreateAclConfigFailed
from cometmq.remoting.errors import (
    UpdateGlobalWhiteAddrsConfigFailed as UpdateGlobalWhiteAddrsConfigFailed,
)
from cometmq.remoting.message.flags import CompressionType as CompressionType
from cometmq.remoting.signature import SessionCredentials as SessionCredentials
from cometmq.remoting.transport.settings import TlsSettings as TlsSettings
from cometmq.remoting.types import Serialization as Serialization

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
EXPORTS: dict[str, str]
