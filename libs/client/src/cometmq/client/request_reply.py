# SPDX-License-Identifier: Apache-2.0
"""Requests and replies: the sender of a message waits for its consumer's answer.

The requester adds a correlation id and its client id to the message. The consumer sends the reply
to a topic of the cluster, from which the broker pushes it to the requester's connection.
"""

import asyncio
import re
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Final, Protocol

from cometmq.client.clock import wall_ms
from cometmq.client.errors import ClientError, NotARequest, RequesterGone, shown
from cometmq.client.message import Message, MessageExt, check_received, plain_body
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.command import OK, Call, Reply, Response
from cometmq.remoting.commands.request_reply import PushReplyMessageToClient
from cometmq.remoting.commands.send import SendMessageReply
from cometmq.remoting.errors import CorruptRecord, ServerError
from cometmq.remoting.message.properties import PropertyKey, index_keys, parse_properties
from cometmq.remoting.names import reply_topic

REPLY_TYPE: Final = "reply"
_NOT_STORED: Final = "0"
"""The message id in the answer of a broker that does not store replies."""
_UNPUSHED: Final = re.compile(
    r"push reply message (?:fail, channel of <(.*)> not found\.|to (.*)fail\.)", re.DOTALL
)
"""The remark of a broker that could not push a reply; it names the requester."""
_PASSED_ON: Final = (PropertyKey.CORRELATION_ID, PropertyKey.REPLY_TO_CLIENT, PropertyKey.TTL)


class ReplyMessage(Message):
    """The reply to a request; created by `reply_message`."""

    reply_properties: Mapping[str, str] = {}
    """The properties that route the reply to the requester."""


def reply_message(request: MessageExt, body: bytes) -> ReplyMessage:
    """Return the reply to a consumed request, which any producer may send.

    Raise NotARequest for any other message, because no client is waiting for a reply to it.
    """
    if not isinstance(request, MessageExt):
        raise NotARequest(
            "a reply needs the request, a MessageExt that a consumer received, not "
            f"{shown(request)}"
        )
    cluster = request.properties.get(PropertyKey.CLUSTER)
    if not cluster:
        raise NotARequest(
            f"the message {request.message_id} is not a request, or its broker has no cluster "
            f"name: it has no property {PropertyKey.CLUSTER}"
        )
    properties = {PropertyKey.MSG_TYPE.value: REPLY_TYPE}
    for key in _PASSED_ON:
        text = request.properties.get(key)
        if text is None:
            raise NotARequest(f"the message {request.message_id} has no property {key}")
        properties[key.value] = text
    return ReplyMessage(topic=reply_topic(cluster), body=body, reply_properties=properties)


def is_request(message: MessageExt) -> bool:
    """Return whether the sender of a consumed message is waiting for a reply."""
    check_received(message)
    return PropertyKey.REPLY_TO_CLIENT in message.properties


def request_properties(correlation_id: str, client_id: str, ttl_ms: int) -> dict[str, str]:
    """Return the properties that make a message a request."""
    return {
        PropertyKey.CORRELATION_ID.value: correlation_id,
        PropertyKey.REPLY_TO_CLIENT.value: client_id,
        PropertyKey.TTL.value: str(ttl_ms),
    }


def requester_gone(response: Response, broker_name: str) -> RequesterGone | None:
    """Return the error for a reply that a broker could not push, or None for other refusals.

    The answer's code tells whether the requester accepted the reply. Its fields tell where the
    reply is stored, because the broker stores it in either case.
    """
    found = _UNPUSHED.fullmatch(response.remark or "")
    if found is None:
        return None
    stored = response.header if isinstance(response.header, SendMessageReply) else None
    if stored is None or stored.msg_id == _NOT_STORED:
        stored = None
    missing, refusing = found.groups()
    if missing is not None:
        reason = f"its requester {missing} is not connected to {broker_name} any more"
    else:
        reason = f"its requester {refusing} did not accept it from {broker_name}"
    place = "is not stored" if stored is None else f"is stored as {stored.msg_id}"
    return RequesterGone(
        f"the reply {place}, but {reason}: do not send it again",
        offset_message_id=None if stored is None else stored.msg_id,
    )


class PendingReplies:
    """One client instance's requests that are waiting for replies."""

    def __init__(self) -> None:
        self._waiting: dict[str, asyncio.Future[MessageExt]] = {}
        self._reading: set[str] = set()
        """The ids of the requests whose replies are being read."""

    def __len__(self) -> int:
        return len(self._waiting)

    @asynccontextmanager
    async def expect(
        self, *, count_max: int
    ) -> AsyncIterator[tuple[str, asyncio.Future[MessageExt]]]:
        """Yield a correlation id and the future of its reply; drop both on exit."""
        if len(self._waiting) >= count_max:
            raise ClientError(f"{len(self._waiting)} requests are pending already")
        correlation_id = str(uuid.uuid4())
        future = asyncio.get_running_loop().create_future()
        self._waiting[correlation_id] = future
        try:
            yield correlation_id, future
        finally:
            del self._waiting[correlation_id]
            future.cancel()

    async def resolve(self, correlation_id: str, read: Callable[[], Awaitable[MessageExt]]) -> bool:
        """Complete a request with its reply, which `read` returns; return False if the request is
        not pending.

        Only one reply of a pending request is read at a time, and no other: a broker may push any
        number, and each may expand to 32 MiB.
        """
        future = self._waiting.get(correlation_id)
        if future is None or future.done() or correlation_id in self._reading:
            return False
        self._reading.add(correlation_id)
        try:
            reply = await read()
        finally:
            self._reading.discard(correlation_id)
        if future.done():  # the requester has given up
            return False
        future.set_result(reply)
        return True


def pushed_reply(header: PushReplyMessageToClient, body: bytes) -> MessageExt:
    """Convert a reply, with its decompressed body, for the requester."""
    properties = parse_properties(header.properties)
    properties[PropertyKey.ARRIVE_TIME.value] = str(wall_ms())
    unique_key = properties.get(PropertyKey.UNIQUE_KEY, "")
    return MessageExt(
        topic=header.topic,
        body=body,
        tag=properties.get(PropertyKey.TAGS),
        keys=index_keys(None, properties.get(PropertyKey.KEYS)),
        properties=properties,
        message_id=unique_key,
        offset_message_id="",
        queue=MessageQueue(header.topic, "", header.queue_id),
        queue_offset=0,
        physical_offset=0,
        flag=header.flag,
        sys_flag=header.sys_flag,
        reconsume_times=header.reconsume_times,
        born_timestamp=header.born_timestamp,
        born_host=header.born_host,
        store_timestamp=header.store_timestamp,
        store_host=header.store_host,
    )


class Requester(Protocol):
    """Gives the reply handler access to pending requests."""

    @property
    def replies(self) -> PendingReplies:
        """The requests of this client."""


async def push_reply_message_to_client(
    requester: Requester, call: Call[PushReplyMessageToClient]
) -> Reply:
    """Complete the request that a reply answers; drop a late reply."""

    async def read() -> MessageExt:
        try:
            body = await plain_body(call.body, call.header.sys_flag)
        except CorruptRecord as error:
            raise ServerError("process reply message fail") from error
        return pushed_reply(call.header, body)

    properties = parse_properties(call.header.properties)
    await requester.replies.resolve(properties.get(PropertyKey.CORRELATION_ID, ""), read)
    return OK
