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

    def __init_subclass__(cls, code: ResponseCode | None = None) -> None:
        cls.CODE = code or cls.CODE  # AccessDenied and others have the code of their base

    def __init__(self, remark: str = "") -> None:
        super().__init__(int(self.CODE), remark)


class ServerError(CodedError, code=ResponseCode.SYSTEM_ERROR):
    """The server failed, or refused the request for a reason that has no code of its own."""


class AccessDenied(ServerError):
    """Access control refused the request; retrying does not help.

    Compatibility: RocketMQ answers with SYSTEM_ERROR and a remark that names its AclException.
    """


class SystemBusy(CodedError, code=ResponseCode.SYSTEM_BUSY):
    """The server is overloaded; clients do not retry immediately."""


class RequestCodeNotSupported(CodedError, code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED):
    """The server does not serve this code."""


class TransactionFailed(CodedError, code=ResponseCode.TRANSACTION_FAILED):
    """The transaction failed."""


class FlushDiskTimeout(CodedError, code=ResponseCode.FLUSH_DISK_TIMEOUT):
    """The message is stored, but was not flushed to disk in time."""


class SlaveNotAvailable(CodedError, code=ResponseCode.SLAVE_NOT_AVAILABLE):
    """The message is stored but every slave lags too far behind, or the broker is a slave."""


class FlushSlaveTimeout(CodedError, code=ResponseCode.FLUSH_SLAVE_TIMEOUT):
    """The message is stored, but no slave received it in time."""


class MessageIllegal(CodedError, code=ResponseCode.MESSAGE_ILLEGAL):
    """The message is too long or malformed."""


class ServiceNotAvailable(CodedError, code=ResponseCode.SERVICE_NOT_AVAILABLE):
    """The store is not accepting writes."""


class NoPermission(CodedError, code=ResponseCode.NO_PERMISSION):
    """The permissions of the broker, topic or group forbid the operation."""


class TopicNotExist(CodedError, code=ResponseCode.TOPIC_NOT_EXIST):
    """The topic does not exist or has no route."""


class QueryNotFound(CodedError, code=ResponseCode.QUERY_NOT_FOUND):
    """Nothing was found."""


class SubscriptionParseFailed(CodedError, code=ResponseCode.SUBSCRIPTION_PARSE_FAILED):
    """The subscription expression is invalid."""


class SubscriptionNotExist(CodedError, code=ResponseCode.SUBSCRIPTION_NOT_EXIST):
    """The broker does not know the group or its subscription."""


class SubscriptionNotLatest(CodedError, code=ResponseCode.SUBSCRIPTION_NOT_LATEST):
    """The broker has an older subscription than the consumer."""


class SubscriptionGroupNotExist(CodedError, code=ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST):
    """The subscription group does not exist."""


class FilterDataNotExist(CodedError, code=ResponseCode.FILTER_DATA_NOT_EXIST):
    """The broker has no compiled filter for this consumer."""


class FilterDataNotLatest(CodedError, code=ResponseCode.FILTER_DATA_NOT_LATEST):
    """The broker's compiled filter is older than the consumer's."""


class InvalidParameter(CodedError, code=ResponseCode.INVALID_PARAMETER):
    """A parameter is out of range."""


class TransactionStateGroupWrong(CodedError, code=ResponseCode.TRANSACTION_STATE_GROUP_WRONG):
    """The transaction belongs to a different producer group."""


class NoBuyerId(CodedError, code=ResponseCode.NO_BUYER_ID):
    """The message has no buyer id."""


class NotInCurrentUnit(CodedError, code=ResponseCode.NOT_IN_CURRENT_UNIT):
    """The message belongs to a different unit."""


class ConsumerNotOnline(CodedError, code=ResponseCode.CONSUMER_NOT_ONLINE):
    """No member of the consumer group is connected."""


class ConsumeMsgTimeout(CodedError, code=ResponseCode.CONSUME_MSG_TIMEOUT):
    """The consumer did not answer in time."""


class UpdateAndCreateAclConfigFailed(
    CodedError, code=ResponseCode.UPDATE_AND_CREATE_ACL_CONFIG_FAILED
):
    """An account could not be written."""


class DeleteAclConfigFailed(CodedError, code=ResponseCode.DELETE_ACL_CONFIG_FAILED):
    """An account could not be deleted."""


class UpdateGlobalWhiteAddrsConfigFailed(
    CodedError, code=ResponseCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED
):
    """The global white list could not be written."""


class BroadcastConsumption(CodedError, code=ResponseCode.BROADCAST_CONSUMPTION):
    """The group consumes in broadcasting mode."""


class FlowControl(CodedError, code=ResponseCode.FLOW_CONTROL):
    """The broker throttles this client."""


class IllegalOperation(CodedError, code=ResponseCode.ILLEGAL_OPERATION):
    """The operation is not allowed."""


_BY_CODE: Final = {int(kind.CODE): kind for kind in CodedError.__subclasses__()}

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
