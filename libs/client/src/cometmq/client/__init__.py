# SPDX-License-Identifier: Apache-2.0
"""Asyncio client for CometMQ and Apache RocketMQ.

Names are imported on first use: an admin client needs less than half of the package. Type checkers
read `__init__.pyi`, which `make generate` writes.
"""

from importlib import import_module
from typing import Any, Final

EXPORTS: Final = {
    "cometmq.client.admin": "AdminClient END QueueLag",
    "cometmq.client.consume.lite_pull_consumer": "LitePullConsumer",
    "cometmq.client.consume.pull_consumer": "PullConsumer ScheduledPull",
    "cometmq.client.consume.push_consumer": "ConsumerStats PushConsumer",
    "cometmq.client.errors": (
        "BrokerMissing ClientError ClientStateError InvalidArgument InvalidMessage NoNamesrv "
        "NoReply NoRetries NoRoute NotARequest NotWritable OffsetsUnreadable "
        "OffsetsUnwritable RequesterGone SendFailed SendTimeout WrongServer"
    ),
    "cometmq.client.hooks": (
        "ConsumeContext ConsumeHook ConsumeOutcome EndContext EndHook ForbiddenHook "
        "MessageKind SendContext SendHook TransactionState"
    ),
    "cometmq.client.listener": "ConsumeResult Listener OrderlyListener OrderlyResult",
    "cometmq.client.message": "DamagedMessage Message MessageExt SendResult SendStatus",
    "cometmq.client.produce.producer": "Producer ProducerStats",
    "cometmq.client.produce.transactions": "Transaction TransactionProducer TransactionSendResult",
    "cometmq.client.request_reply": "is_request reply_message",
    "cometmq.client.settings": (
        "AccessChannel ClientOptions ConsumeFrom LitePullOptions MessageModel ProducerOptions "
        "PullOptions PushOptions TransactionOptions"
    ),
    "cometmq.client.signals": "on_signal until_signal",
    "cometmq.client.subscriptions": "ExpressionType MessageSelector",
    "cometmq.client.transfer.pulled": "PullResult=Pulled PullStatus",
    "cometmq.client.transfer.queue_selection": "by_hash by_random",
    "cometmq.remoting.bodies.queues": "MessageQueue",
    "cometmq.remoting.bodies.topic_config": "SubscriptionGroupConfig TopicConfig",
    "cometmq.remoting.errors": (
        "AccessDenied BroadcastConsumption CometError CommandError ConnectFailed "
        "ConnectionLost ConsumeMsgTimeout ConsumerNotOnline DeleteAclConfigFailed "
        "FilterDataNotExist FilterDataNotLatest FlowControl FlushDiskTimeout "
        "FlushSlaveTimeout IllegalOperation InvalidParameter MessageIllegal NoBuyerId "
        "NoPermission NotInCurrentUnit Outage Overloaded ProtocolError QueryNotFound "
        "RequestCodeNotSupported RequestTimeout ServerError ServiceNotAvailable "
        "SlaveNotAvailable SubscriptionGroupNotExist SubscriptionNotExist "
        "SubscriptionNotLatest SubscriptionParseFailed SystemBusy TopicNotExist "
        "TransactionFailed TransactionStateGroupWrong TransportError "
        "UpdateAndCreateAclConfigFailed UpdateGlobalWhiteAddrsConfigFailed"
    ),
    "cometmq.remoting.message.flags": "CompressionType",
    "cometmq.remoting.signature": "SessionCredentials",
    "cometmq.remoting.transport.settings": "TlsSettings",
    "cometmq.remoting.types": "Serialization",
}
"""The names of each module; `PullResult=Pulled` gives one another name."""

_PLACES: Final = {
    name.partition("=")[0]: (module, name.rpartition("=")[2])
    for module, names in EXPORTS.items()
    for name in names.split()
}

__all__ = sorted(_PLACES)  # noqa: PLE0605  # a list of strings


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, own = _PLACES[name]
    found = globals()[name] = getattr(import_module(module), own)
    return found


def __dir__() -> list[str]:
    return __all__
