# SPDX-License-Identifier: Apache-2.0
"""Prepares outgoing messages: checks, assigns ids, compresses, and joins batches.

Hot path
    `Outgoing.prepare` runs once per sent message; its budget is 5 us (bench/micro/bench_client.py).
"""

import asyncio
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from cometmq.client import trace_context
from cometmq.client.arguments import check_encodable
from cometmq.client.errors import InvalidArgument, InvalidMessage, shown
from cometmq.client.hooks import MessageKind
from cometmq.client.message import (
    Message,
    SendResult,
    SendStatus,
    check_message,
    check_topic,
    checked_message,
    wire_properties,
)
from cometmq.client.namespace import NO_NAMESPACE, Namespace
from cometmq.client.request_reply import ReplyMessage, requester_gone
from cometmq.client.settings import ProducerOptions
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Response
from cometmq.remoting.commands.send import SendMessageReply
from cometmq.remoting.errors import CometError, RemoteProtocolError, command_error
from cometmq.remoting.message.batch import BatchItem, join_batch
from cometmq.remoting.message.compression import compress, compression_bits
from cometmq.remoting.message.flags import TRANSACTION_PREPARED
from cometmq.remoting.message.ids import UniqueIds
from cometmq.remoting.message.properties import (
    PAIR_SEPARATOR,
    PROPERTIES_BYTES_MAX,
    VALUE_SEPARATOR,
    PropertyKey,
    render_properties,
)
from cometmq.remoting.names import RETRY_PREFIX

_COMPRESS_AWAY_BYTES: Final = 32 * 1024
"""Bodies of at least this size are compressed on a worker thread: zlib takes 1 ms for 50 KiB."""

_UNIQUE_KEY: Final = PropertyKey.UNIQUE_KEY.value
_INSTANCE_ID: Final = PropertyKey.INSTANCE_ID.value
_SEND: Final = int(RequestCode.SEND_MESSAGE_V2)
_SEND_V1: Final = int(RequestCode.SEND_MESSAGE)
_SEND_BATCH: Final = int(RequestCode.SEND_BATCH_MESSAGE)
_REPLY: Final = int(RequestCode.SEND_REPLY_MESSAGE_V2)
_REPLY_V1: Final = int(RequestCode.SEND_REPLY_MESSAGE)
REPLY_CODES: Final = frozenset((_REPLY, _REPLY_V1))
_SOURCES: Final = {
    _UNIQUE_KEY: "the message_id",
    PropertyKey.KEYS.value: "a key",
    PropertyKey.TAGS.value: "the tag",
}
"""The parts of a message from which the client sets these properties."""
_BATCH_ITEM_BYTES: Final = 5 * 4 + 2
"""Size of a batch item's fixed fields."""
_LONGEST_ID: Final = "0" * 56
"""A placeholder as long as the longest unique key that the client assigns."""


class Prepared(msgspec.Struct, gc=False):
    """A message or batch, ready to be sent."""

    topic: str
    """The full topic name."""
    body: bytes
    properties: str
    message_id: str
    sys_flag: int = 0
    flag: int = 0
    code: int = _SEND
    messages: Sequence[Message] = ()
    """The application's messages; empty for a message that a consumer sends back."""
    reconsume_times: int = 0
    max_reconsume_times: int | None = None


class Outgoing:
    """Prepares messages for sending."""

    def __init__(
        self, options: ProducerOptions, ids: UniqueIds, namespace: Namespace = NO_NAMESPACE
    ) -> None:
        self._options = options
        self._ids = ids
        self._namespace = namespace
        self._is_plain = not namespace.name and not options.trace_context
        self._code = _SEND if options.short_headers else _SEND_V1
        self._reply_code = _REPLY if options.short_headers else _REPLY_V1

    def next_id(self) -> str:
        return self._ids.next_id()

    def prepare(self, message: Message, *, extra: Mapping[str, str] | None = None) -> Prepared:
        """Check a message, copy it and assign its id; raise InvalidArgument if it cannot be sent.

        Producers call this before their first await: afterwards, the caller may reuse the message's
        buffers. `extra` holds properties that applications cannot set.
        """
        options = self._options
        message = checked_message(message, options.body_bytes_max)
        topic, message_id, properties = self._named(message)
        if message.delay_level > options.delay_level_max:
            raise InvalidArgument(
                f"a delay level must be at most {options.delay_level_max}, not "
                f"{message.delay_level}: if the brokers' messageDelayLevel has more levels, "
                "raise delay_level_max"
            )
        if extra is not None:
            properties.update(extra)
        code = self._code
        if isinstance(message, ReplyMessage):
            if extra is not None:
                raise InvalidArgument(
                    "a reply can be neither a request nor part of a transaction: send it with "
                    "`send` or `reply`"
                )
            topic, code = message.topic, self._reply_code
            properties.update(message.reply_properties)
        text = properties_text(properties)
        return Prepared(topic, message.body, text, message_id, 0, message.flag, code, (message,))

    async def compress(self, prepared: Prepared) -> None:
        """Compress the body of a message in place if it is long and becomes shorter."""
        body = prepared.body
        if len(body) < self._options.compress_over_bytes:
            return
        kind, level = self._options.compress_type, self._options.compress_level
        if len(body) >= _COMPRESS_AWAY_BYTES:
            packed = await asyncio.to_thread(compress, body, kind, level=level)
        else:
            packed = compress(body, kind, level=level)
        if len(packed) < len(body):  # random bytes: a body at the limit would exceed it
            prepared.body = packed
            prepared.sys_flag |= compression_bits(kind)

    def prepare_batch(self, messages: Sequence[Message]) -> Prepared:
        """Join copies of messages of one topic; raise InvalidArgument if they do not fit."""
        check_list(messages)
        messages = [checked_message(it, self._options.body_bytes_max) for it in messages]
        check_batch(messages)
        ids: list[str] = []
        items: list[BatchItem] = []
        topic = ""
        for message in messages:
            topic, message_id, properties = self._named(message)
            ids.append(message_id)
            items.append(BatchItem(message.flag, message.body, properties_text(properties)))
        body = join_batch(items)
        if len(body) > self._options.body_bytes_max:
            raise InvalidMessage(
                f"the batch has {len(body)} bytes, more than body_bytes_max "
                f"({self._options.body_bytes_max}): split it with `split_batch`"
            )
        own = {PropertyKey.WAIT.value: "true" if messages[0].wait_store_ok else "false"}
        if self._namespace.name:
            own[_INSTANCE_ID] = self._namespace.name
        return Prepared(
            topic,
            body,
            render_properties(own),
            ",".join(ids),
            code=_SEND_BATCH,
            messages=tuple(messages),
        )

    def _named(self, message: Message) -> tuple[str, str, dict[str, str]]:
        """Return the full topic, the unique key, and all properties of a message."""
        properties = wire_properties(message)
        message_id = message.message_id or self._ids.next_id()
        properties[_UNIQUE_KEY] = message_id
        if self._is_plain:
            return message.topic, message_id, properties
        if self._options.trace_context:
            trace_context.inject(properties)
        topic = message.topic
        if self._namespace.name:
            properties[_INSTANCE_ID] = self._namespace.name
            topic = self._namespace.wrap(topic)
            check_topic(topic)
        return topic, message_id, properties


def properties_text(properties: dict[str, str]) -> str:
    """Encode properties; raise InvalidArgument if one cannot be sent."""
    text = render_properties(properties)
    if not text.isascii():
        _check_encodable(properties)
    count = len(properties)
    if text.count(VALUE_SEPARATOR) != count or text.count(PAIR_SEPARATOR) != count - 1:
        raise InvalidArgument("a property contains one of the separators \\x01 and \\x02")
    if len(text) > PROPERTIES_BYTES_MAX // 4 and len(text.encode()) > PROPERTIES_BYTES_MAX:
        raise InvalidArgument(f"the properties take more than {PROPERTIES_BYTES_MAX} bytes")
    return text


def _check_encodable(properties: Mapping[str, str]) -> None:
    for name, value in properties.items():
        check_encodable(name, f"the property name {shown(name)}")
        check_encodable(value, _SOURCES.get(name, f"the property {name}"))


def check_list(messages: object) -> None:
    """Raise InvalidArgument unless `messages` is a sequence other than a string."""
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
        raise InvalidArgument(
            f"messages must be a list of Message, not {type(messages).__name__}: [message], or "
            "list(messages)"
        )


def check_batch(messages: Sequence[Message]) -> None:
    """Raise InvalidArgument for batches that RocketMQ would refuse."""
    if not messages:
        raise InvalidArgument("the batch is empty")
    first = messages[0]
    for message in messages:
        if message.delay_level or message.deliver_at is not None:
            what = "a delay level" if message.delay_level else "`deliver_at`"
            raise InvalidArgument(
                f"messages with {what} cannot be sent in a batch: send them one by one"
            )
        if isinstance(message, ReplyMessage):
            raise InvalidArgument(
                "a reply cannot be sent in a batch, which has no routing to a requester: send it "
                "with `send` or `reply`"
            )
        if message.topic.startswith(RETRY_PREFIX):
            raise InvalidArgument("messages to a retry topic cannot be sent in a batch")
        if message.topic != first.topic:
            raise InvalidArgument("the messages of a batch must have the same topic")
        if message.wait_store_ok != first.wait_store_ok:
            raise InvalidArgument("the messages of a batch must have the same wait_store_ok")


def properties_bytes(options: ProducerOptions, namespace: Namespace) -> int:
    """Return the size of the properties that a producer currently adds to each message."""
    added: dict[str, str] = {}
    if options.trace_context:
        trace_context.inject(added)
    if namespace.name:
        added[_INSTANCE_ID] = namespace.name
    return len(render_properties(added).encode()) + 1 if added else 0


def split_messages(
    messages: Iterable[Message], *, bytes_max: int, added_bytes: int = 0
) -> Iterator[list[Message]]:
    """Yield lists of messages whose batches remain below `bytes_max`, in order.

    A message of a different topic or with a different `wait_store_ok` begins a new list.
    `added_bytes` is the size of the properties that the producer adds to each message. A message
    that is too large by itself becomes a list of one, and sending it fails.
    """
    if isinstance(messages, Message | str | bytes) or not isinstance(messages, Iterable):
        check_list(messages)
    batch: list[Message] = []
    size = 0
    for message in messages:
        check_message(message, sys.maxsize)
        check_batch([message])
        message_bytes = _item_bytes(message) + added_bytes
        if batch and (size + message_bytes > bytes_max or not _are_alike(message, batch[0])):
            yield batch
            batch, size = [], 0
        batch.append(message)
        size += message_bytes
    if batch:
        yield batch


def _item_bytes(message: Message) -> int:
    properties = wire_properties(message)
    properties[_UNIQUE_KEY] = message.message_id or _LONGEST_ID
    return _BATCH_ITEM_BYTES + len(message.body) + len(properties_text(properties).encode())


def _are_alike(message: Message, other: Message) -> bool:
    return message.topic == other.topic and message.wait_store_ok == other.wait_store_ok


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
