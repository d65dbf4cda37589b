# SPDX-License-Identifier: Apache-2.0
"""The outcome of a send as applications see it: result, error and, in hooks, kind of message."""

from typing import Final

from cometmq.client.hooks import MessageKind
from cometmq.client.message import SendResult, SendStatus
from cometmq.client.request_reply import requester_gone
from cometmq.client.transfer.outgoing import Prepared
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.command import Response
from cometmq.remoting.commands.send import SendMessageReply
from cometmq.remoting.errors import CometError, RemoteProtocolError, command_error
from cometmq.remoting.message.flags import TRANSACTION_PREPARED

STORED_CODES: Final = frozenset(int(status) for status in SendStatus)
REPLY_OK_CODES: Final = STORED_CODES | {int(ResponseCode.SYSTEM_ERROR)}
"""A broker may have stored a reply that it could not push; the fields of its answer show this."""

_START_DELIVER_TIME: Final = "__STARTDELIVERTIME"


def send_result(response: Response, queue: MessageQueue, prepared: Prepared) -> SendResult:
    """Return the result of a stored message; raise RemoteProtocolError if fields are missing."""
    reply = response.header
    if not isinstance(reply, SendMessageReply):
        raise RemoteProtocolError("the broker's answer to a send lacks its fields")
    if reply.queue_id != queue.queue_id:  # a broker may redirect to a different queue
        queue = MessageQueue(queue.topic, queue.broker_name, reply.queue_id)
    return SendResult(
        SendStatus(response.code),
        prepared.message_id,
        reply.msg_id,
        queue,
        reply.queue_offset,
    )


def unpushed(response: Response, broker_name: str, address: str) -> CometError:
    """Return the error for the refusal of a reply."""
    gone = requester_gone(response, broker_name)
    return gone or command_error(response.code, response.remark, address)


def kind_of(prepared: Prepared) -> MessageKind:
    """Return the kind of a message for hooks; a batch contains only normal messages."""
    if prepared.sys_flag & TRANSACTION_PREPARED:
        return MessageKind.TRANSACTION_HALF
    if len(prepared.messages) == 1:
        message = prepared.messages[0]
        if (
            message.delay_level
            or message.deliver_at is not None
            or _START_DELIVER_TIME in message.properties
        ):
            return MessageKind.DELAY
    return MessageKind.NORMAL
