# SPDX-License-Identifier: Apache-2.0
# The classes are named after their codes, most of them without the suffix Error.
"""All errors that CometMQ raises on purpose, grouped by the party that must act.

A server raises a `CommandError` to answer with its code; a client creates the same class from the
code of an answer (`command_error`). Each layer translates lower-level errors in one place, always
with `from`.
"""

from typing import ClassVar, Final

import msgspec

from cometmq.remoting.refusals import explained, is_access_refusal
from cometmq.remoting.response_codes import ResponseCode

UNREADABLE_JSON: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for JSON that is invalid, of other types, no UTF-8, or nested too deeply."""


class CometError(Exception):
    """Base class of all CometMQ errors."""


class ProtocolError(CometError):
    """The wire protocol was violated."""


class LocalProtocolError(ProtocolError):
    """CometMQ attempted something that the protocol forbids, which is a bug."""


class RemoteProtocolError(ProtocolError):
    """The peer sent something that the protocol forbids; its connection is closed."""


class Outage(CometError):
    """A server that the request needs is unavailable; the same request may succeed later."""


class TransportError(Outage):
    """A request went unanswered because the transport failed."""

    address: str = ""
    """The server's address, if a client raised the error."""


class ConnectFailed(TransportError):
    """No connection was established, so the peer cannot have seen the request."""


class ConnectionLost(TransportError):
    """The connection ended before the answer; the request may have been served."""

    has_answered: bool = True
    """Whether the peer had sent anything over this connection. If not, a proxy may have accepted
    it for a server that is down.
    """


class RequestTimeout(TransportError):
    """The answer did not arrive in time; the request may have been served."""

    loop_late_ms: int = 0
    """How late this program's event loop ran meanwhile; if this is not 0, the answer may have
    waited here.
    """


class Overloaded(TransportError):
    """The sender reached one of its limits; the request was not sent."""


NO_ANSWER: Final = (TransportError, RemoteProtocolError)
"""Raised by requests that get no answer, or none that can be used: the server is unreachable,
broken, or another program.
"""


class StoreError(CometError):
    """The store cannot perform an operation."""


class CorruptRecord(StoreError):
    """The bytes are not a valid message record."""


class LockHeld(StoreError):
    """Another process is using the store's folder."""


class SettingsError(CometError):
    """Settings are invalid; each line of the message names one."""


class CommandError(CometError):
    """A server answered a request with an unexpected code.

    `str` explains the error in plain words. `code` and `remark` are taken from the answer.
    `address` is the server's address, or empty in errors that a server raises itself.
    """

    address: str = ""

    def __init__(self, code: int, remark: str = "") -> None:
        super().__init__(code, remark)
        self.code = int(code)
        self.remark = remark

    def __str__(self) -> str:
        is_access = isinstance(self, AccessDenied)
        return explained(self.code, self.remark, self.address, is_access=is_access)


class CodedError(CommandError):
    """A command error whose class determines the code."""

    CODE: ClassVar[ResponseCode]

    def __init__(self, remark: str = "") -> None:
        super().__init__(int(self.CODE), remark)


class ServerError(CodedError):
    """The server failed, or refused the request for a reason that has no code of its own."""

    CODE = ResponseCode.SYSTEM_ERROR


class AccessDenied(ServerError):
    """Access control refused the request; retrying does not help.

    Compatibility: RocketMQ answers with SYSTEM_ERROR and a remark that names its AclException.
    """


class SystemBusy(CodedError):
    """The server is overloaded; clients do not retry immediately."""

    CODE = ResponseCode.SYSTEM_BUSY


class RequestCodeNotSupported(CodedError):
    """The server does not serve this code."""

    CODE = ResponseCode.REQUEST_CODE_NOT_SUPPORTED


class TransactionFailed(CodedError):
    """The transaction failed."""

    CODE = ResponseCode.TRANSACTION_FAILED


class FlushDiskTimeout(CodedError):
    """The message is stored, but was not flushed to disk in time."""

    CODE = ResponseCode.FLUSH_DISK_TIMEOUT


class SlaveNotAvailable(CodedError):
    """The message is stored but every slave lags too far behind, or the broker is a slave."""

    CODE = ResponseCode.SLAVE_NOT_AVAILABLE


class FlushSlaveTimeout(CodedError):
    """The message is stored, but no slave received it in time."""

    CODE = ResponseCode.FLUSH_SLAVE_TIMEOUT


class MessageIllegal(CodedError):
    """The message is too long or malformed."""

    CODE = ResponseCode.MESSAGE_ILLEGAL


class ServiceNotAvailable(CodedError):
    """The store is not accepting writes."""

    CODE = ResponseCode.SERVICE_NOT_AVAILABLE


class VersionNotSupported(CodedError):
    """The peer's version is too old for this operation."""

    CODE = ResponseCode.VERSION_NOT_SUPPORTED


class NoPermission(CodedError):
    """The permissions of the broker, topic or group forbid the operation."""

    CODE = ResponseCode.NO_PERMISSION


class TopicNotExist(CodedError):
    """The topic does not exist or has no route."""

    CODE = ResponseCode.TOPIC_NOT_EXIST


class TopicExistAlready(CodedError):
    """The topic already exists."""

    CODE = ResponseCode.TOPIC_EXIST_ALREADY


class PullNotFound(CodedError):
    """The queue has no message at this offset yet."""

    CODE = ResponseCode.PULL_NOT_FOUND


class PullRetryImmediately(CodedError):
    """No message passed the filter; pull again from the next offset."""

    CODE = ResponseCode.PULL_RETRY_IMMEDIATELY


class PullOffsetMoved(CodedError):
    """The offset is outside the queue; continue at the corrected one."""

    CODE = ResponseCode.PULL_OFFSET_MOVED


class QueryNotFound(CodedError):
    """Nothing was found."""

    CODE = ResponseCode.QUERY_NOT_FOUND


class SubscriptionParseFailed(CodedError):
    """The subscription expression is invalid."""

    CODE = ResponseCode.SUBSCRIPTION_PARSE_FAILED


class SubscriptionNotExist(CodedError):
    """The broker does not know the group or its subscription."""

    CODE = ResponseCode.SUBSCRIPTION_NOT_EXIST


class SubscriptionNotLatest(CodedError):
    """The broker has an older subscription than the consumer."""

    CODE = ResponseCode.SUBSCRIPTION_NOT_LATEST


class SubscriptionGroupNotExist(CodedError):
    """The subscription group does not exist."""

    CODE = ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


class FilterDataNotExist(CodedError):
    """The broker has no compiled filter for this consumer."""

    CODE = ResponseCode.FILTER_DATA_NOT_EXIST


class FilterDataNotLatest(CodedError):
    """The broker's compiled filter is older than the consumer's."""

    CODE = ResponseCode.FILTER_DATA_NOT_LATEST


class InvalidParameter(CodedError):
    """A parameter is out of range."""

    CODE = ResponseCode.INVALID_PARAMETER


class TransactionShouldCommit(CodedError):
    """The transaction should be committed."""

    CODE = ResponseCode.TRANSACTION_SHOULD_COMMIT


class TransactionShouldRollback(CodedError):
    """The transaction should be rolled back."""

    CODE = ResponseCode.TRANSACTION_SHOULD_ROLLBACK


class TransactionStateUnknow(CodedError):
    """The state of the transaction is unknown."""

    CODE = ResponseCode.TRANSACTION_STATE_UNKNOW


class TransactionStateGroupWrong(CodedError):
    """The transaction belongs to a different producer group."""

    CODE = ResponseCode.TRANSACTION_STATE_GROUP_WRONG


class NoBuyerId(CodedError):
    """The message has no buyer id."""

    CODE = ResponseCode.NO_BUYER_ID


class NotInCurrentUnit(CodedError):
    """The message belongs to a different unit."""

    CODE = ResponseCode.NOT_IN_CURRENT_UNIT


class ConsumerNotOnline(CodedError):
    """No member of the consumer group is connected."""

    CODE = ResponseCode.CONSUMER_NOT_ONLINE


class ConsumeMsgTimeout(CodedError):
    """The consumer did not answer in time."""

    CODE = ResponseCode.CONSUME_MSG_TIMEOUT


class NoMessage(CodedError):
    """There is no message."""

    CODE = ResponseCode.NO_MESSAGE


class UpdateAndCreateAclConfigFailed(CodedError):
    """An account could not be written."""

    CODE = ResponseCode.UPDATE_AND_CREATE_ACL_CONFIG_FAILED


class DeleteAclConfigFailed(CodedError):
    """An account could not be deleted."""

    CODE = ResponseCode.DELETE_ACL_CONFIG_FAILED


class UpdateGlobalWhiteAddrsConfigFailed(CodedError):
    """The global white list could not be written."""

    CODE = ResponseCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED


class BrokerDispatchNotComplete(CodedError):
    """The broker has not indexed all its messages yet."""

    CODE = ResponseCode.BROKER_DISPATCH_NOT_COMPLETE


class BroadcastConsumption(CodedError):
    """The group consumes in broadcasting mode."""

    CODE = ResponseCode.BROADCAST_CONSUMPTION


class FlowControl(CodedError):
    """The broker throttles this client."""

    CODE = ResponseCode.FLOW_CONTROL


class NotLeaderForQueue(CodedError):
    """The broker does not lead this queue."""

    CODE = ResponseCode.NOT_LEADER_FOR_QUEUE


class IllegalOperation(CodedError):
    """The operation is not allowed."""

    CODE = ResponseCode.ILLEGAL_OPERATION


class GoAway(CodedError):
    """The server is stopping; use another connection."""

    CODE = ResponseCode.GO_AWAY


_BY_CODE: Final[dict[int, type[CodedError]]] = {
    int(error.CODE): error
    for error in (
        ServerError,
        SystemBusy,
        RequestCodeNotSupported,
        TransactionFailed,
        FlushDiskTimeout,
        SlaveNotAvailable,
        FlushSlaveTimeout,
        MessageIllegal,
        ServiceNotAvailable,
        VersionNotSupported,
        NoPermission,
        TopicNotExist,
        TopicExistAlready,
        PullNotFound,
        PullRetryImmediately,
        PullOffsetMoved,
        QueryNotFound,
        SubscriptionParseFailed,
        SubscriptionNotExist,
        SubscriptionNotLatest,
        SubscriptionGroupNotExist,
        FilterDataNotExist,
        FilterDataNotLatest,
        InvalidParameter,
        TransactionShouldCommit,
        TransactionShouldRollback,
        TransactionStateUnknow,
        TransactionStateGroupWrong,
        NoBuyerId,
        NotInCurrentUnit,
        ConsumerNotOnline,
        ConsumeMsgTimeout,
        NoMessage,
        UpdateAndCreateAclConfigFailed,
        DeleteAclConfigFailed,
        UpdateGlobalWhiteAddrsConfigFailed,
        BrokerDispatchNotComplete,
        BroadcastConsumption,
        FlowControl,
        NotLeaderForQueue,
        IllegalOperation,
        GoAway,
    )
}


CANNOT_SERVE: Final = frozenset({ServerError, ServiceNotAvailable, SystemBusy})
"""Refusals that concern the broker rather than the request; subclasses have their own meaning."""


REMARK_CHARS_MAX: Final = 8_192
"""Characters of a remark that an error keeps: it is logged at each retry, and an answer may contain
16 MB.
"""


def command_error(code: int, remark: str | None, address: str = "") -> CommandError:
    """Return the error for an answer's code; an unknown code yields the base class."""
    text = remark or ""
    if len(text) > REMARK_CHARS_MAX:
        text = f"{text[:REMARK_CHARS_MAX]}... ({len(text)} characters)"
    kind = _BY_CODE.get(code)
    error = CommandError(code, text) if kind is None else kind(text)
    if isinstance(error, ServerError | NoPermission) and is_access_refusal(text):
        error = AccessDenied(text)
        error.code = code
    error.address = address
    return error
