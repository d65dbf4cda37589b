# SPDX-License-Identifier: Apache-2.0
"""Messages as applications see them: outgoing messages, send results, and received messages."""

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final, TypeVar
from zlib import crc32

import msgspec

from cometmq.client.arguments import check_encodable
from cometmq.client.errors import InvalidArgument, InvalidMessage, shown
from cometmq.client.namespace import NO_NAMESPACE, Namespace
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.errors import CorruptRecord
from cometmq.remoting.message.compression import (
    DECOMPRESSED_BYTES_MAX,
    TooLarge,
    compression_type,
    decompress,
    expanded_bytes_max,
)
from cometmq.remoting.message.flags import SysFlag
from cometmq.remoting.message.ids import host_text
from cometmq.remoting.message.properties import RESERVED_KEYS, PropertyKey
from cometmq.remoting.message.record import MessageRecord
from cometmq.remoting.message.record_layout import CRC_MASK
from cometmq.remoting.names import RETRY_PREFIX, SEND_FORBIDDEN_TOPICS
from cometmq.remoting.spelling import SpelledFields
from cometmq.remoting.types import NamedNumber

NAME_PATTERN: Final = re.compile(r"[%|a-zA-Z0-9_-]+")
TOPIC_CHARS_MAX: Final = 127
GROUP_CHARS_MAX: Final = 255
_FLAG_MIN: Final = -(1 << 31)
_FLAG_MAX: Final = (1 << 31) - 1
_KEYS: Final = PropertyKey.KEYS.value
_TAGS: Final = PropertyKey.TAGS.value
_DELAY: Final = PropertyKey.DELAY.value
_WAIT: Final = PropertyKey.WAIT.value
_UNIQUE_KEY: Final = PropertyKey.UNIQUE_KEY.value
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_CONSTANTS: Final = (str, tuple)
_COMPRESSED: Final = int(SysFlag.COMPRESSED)
ON_LOOP_BYTES_MAX: Final = 1 << 20
"""Bodies up to this size are decompressed on the event loop, which takes up to 4 ms."""
_Kind = TypeVar("_Kind", bound="MessageExt")

_host_text = lru_cache(maxsize=1024)(host_text)  # 0.9 us less per message


class Message(msgspec.Struct, metaclass=SpelledFields):
    """A message to send; the producer neither changes it nor keeps a reference to it."""

    topic: str
    body: bytes
    tag: str | None = None
    keys: str | Sequence[str] = ()
    """Search keys of the message. A string is split at spaces: "a b" is two keys."""
    properties: Mapping[str, str] = {}
    flag: int = 0
    delay_level: int = 0
    """0 means no delay; 1 to 18 mean 1s 5s 10s 30s 1m ... 2h, or as the broker's table defines."""
    wait_store_ok: bool = True
    """Wait until the message is flushed and replicated as the broker's settings require."""
    message_id: str | None = None
    """The unique key; None creates one per send. To resend a message after an error, set one from
    `Producer.new_message_id()`, so that consumers can recognize the duplicate.
    """
    deliver_at: datetime | timedelta | None = None
    """When to deliver: a time with its zone, or a delay that begins when the broker has the
    message; at most 3 days ahead. RocketMQ's brokers before 5.0 deliver at once.
    """


def wire_properties(message: Message) -> dict[str, str]:
    """Return all properties of a message under RocketMQ's names."""
    properties: Any = message.properties
    if not isinstance(properties, Mapping):
        raise InvalidArgument(f"properties must be a dict of strings, not {shown(properties)}")
    found = dict(properties)
    if found:
        _check_properties(found)
    keys: Any = message.keys
    if not isinstance(keys, str):
        keys = _joined(keys)
    if keys:
        found[_KEYS] = keys
    if message.tag is not None and (tag := _tag_text(message.tag)):
        found[_TAGS] = tag
    if message.delay_level:
        found[_DELAY] = str(message.delay_level)
    if message.deliver_at is not None:
        _add_timer(found, message)
    found[_WAIT] = "true" if message.wait_store_ok else "false"
    return found


def _add_timer(found: dict[str, str], message: Message) -> None:
    at: Any = message.deliver_at
    if message.delay_level:
        raise InvalidArgument("a message has either `deliver_at` or `delay_level`, not both")
    if isinstance(at, timedelta) and at >= timedelta():
        found[PropertyKey.TIMER_DELAY_MS.value] = str(-(-at // _MILLISECOND))
    elif isinstance(at, datetime) and at.tzinfo is not None and at >= _EPOCH:
        found[PropertyKey.TIMER_DELIVER_MS.value] = str(-((_EPOCH - at) // _MILLISECOND))
    else:
        raise InvalidArgument(
            "deliver_at must be a datetime with a time zone, such as datetime.now(UTC) + "
            f"timedelta(hours=1), or a timedelta that is not negative, not {shown(at)}"
        )


def _tag_text(tag: Any) -> str:
    if not isinstance(tag, str):
        raise InvalidArgument(f"a tag must be a string, not {type(tag).__name__}")
    if "||" in tag:
        raise InvalidArgument(
            f"the tag {shown(tag)} matches no subscription: a message has one tag, without ||"
        )
    if tag.strip() != tag:
        raise InvalidArgument(
            f"the tag {shown(tag)} matches no subscription, where blanks around tags are ignored: "
            + ("use tag.strip()" if tag.strip() else "use None for a message without a tag")
        )
    return tag


def _check_properties(properties: Mapping[Any, Any]) -> None:
    if reserved := RESERVED_KEYS.intersection(properties):
        raise InvalidArgument(
            f"the property {min(reserved)} is set by the client: set a field of the message, use "
            "another name, or take `received.user_properties` of a received message"
        )
    for name, value in properties.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidArgument(
                f"property names and values must be strings: {shown(name)} is {shown(value)}; "
                "wrap both in str()"
            )
        if not name.strip() or not value.strip():
            raise InvalidArgument(
                f"property names and values must not be blank: {shown(name)} is {shown(value)}; "
                "consumers would not see it"
            )


def _joined(keys: Any) -> str:
    if not isinstance(keys, Iterable):
        raise InvalidArgument(f"keys must be a string or a list of strings, not {shown(keys)}")
    for key in keys:
        if not isinstance(key, str):
            raise InvalidArgument(f"a key must be a string, not {type(key).__name__}")
        if " " in key:
            raise InvalidArgument("a key must not contain a space, which separates keys")
    return " ".join(keys)


class SendStatus(NamedNumber):
    """How safely a message is stored; every status means that the master has stored it.

    `print(status)` shows RocketMQ's name, such as SEND_OK; `int(status)` is its number.

    In a group with failover, only SEND_OK is an acknowledgement: with any other status, the
    next master may lack the message.
    """

    SEND_OK = ResponseCode.SUCCESS
    """Stored as safely as the broker's settings require: by default, in the master's memory."""
    FLUSH_DISK_TIMEOUT = ResponseCode.FLUSH_DISK_TIMEOUT
    """With SYNC_FLUSH: the master has not flushed the message to disk within `syncFlushTimeout`."""
    FLUSH_SLAVE_TIMEOUT = ResponseCode.FLUSH_SLAVE_TIMEOUT
    """With SYNC_MASTER: no slave has confirmed the message within `slaveTimeout`."""
    SLAVE_NOT_AVAILABLE = ResponseCode.SLAVE_NOT_AVAILABLE
    """With SYNC_MASTER: no slave is connected, or every slave is too far behind."""


class SendResult(msgspec.Struct, frozen=True):
    """Where a message was stored.

    For a delayed message, `offset_message_id`, `queue` and `queue_offset` identify where it waits;
    when it is delivered, it gets new values.
    """

    status: SendStatus
    message_id: str
    """The unique key created by the client; comma-separated for a batch."""
    offset_message_id: str
    queue: MessageQueue
    queue_offset: int


class MessageExt(msgspec.Struct, frozen=True):
    """A received message."""

    topic: str
    body: bytes
    tag: str | None
    keys: tuple[str, ...]
    properties: Mapping[str, str]
    message_id: str
    """The producer's unique key; without one, the offset message id."""
    offset_message_id: str
    queue: MessageQueue
    queue_offset: int
    physical_offset: int
    flag: int
    sys_flag: int
    reconsume_times: int
    """How many times the message was delivered before."""
    born_timestamp: int
    born_host: str
    store_timestamp: int
    store_host: str

    @property
    def user_properties(self) -> dict[str, str]:
        """The properties that the producer's application has set, without RocketMQ's own."""
        return {k: v for k, v in self.properties.items() if k not in RESERVED_KEYS}

    def to_message(self, topic: str | None = None) -> Message:
        """Return a message with the same body, tag, keys, user properties and flag, for forwarding.

        Its topic is the original topic by default. It is a new message: it gets a message id of its
        own, is not delayed, and is neither a retry, a request nor part of a transaction.
        Raise InvalidArgument if the body is damaged.
        """
        if isinstance(self, DamagedMessage | UnreadableMessage):
            raise InvalidArgument(
                f"the body of {self.message_id} is damaged: to forward it as it is, send "
                "Message(topic, received.body)"
            )
        return Message(
            topic=self.topic if topic is None else topic,
            body=self.body,
            tag=self.tag,
            keys=self.keys,
            properties=self.user_properties,
            flag=self.flag,
        )


class DamagedMessage(MessageExt, frozen=True):
    """A received message whose body differs from the one that the broker stored.

    The body does not match the CRC in its record. Listeners get the message like any other, because
    RocketMQ's client does not check; test for it with `isinstance(message, DamagedMessage)`.
    """


class UnreadableMessage(MessageExt, frozen=True):
    """A received message whose compressed body is corrupt; `body` holds the compressed bytes."""


async def plain_body(body: bytes, sys_flag: int, bytes_max: int = DECOMPRESSED_BYTES_MAX) -> bytes:
    """Return the body of a record as it was sent; raise CorruptRecord if it is broken, or has more
    than `bytes_max` bytes.

    64 KiB can expand to 64 MiB, which takes a quarter of a second. So a body that expands to more
    than ON_LOOP_BYTES_MAX is decompressed on a thread, which releases the interpreter lock.
    """
    if not sys_flag & _COMPRESSED:
        return body
    kind = compression_type(sys_flag)
    try:
        return decompress(body, kind, bytes_max=min(ON_LOOP_BYTES_MAX, bytes_max))
    except TooLarge:
        return await asyncio.to_thread(decompress, body, kind, bytes_max=bytes_max)


def expanded_bytes(record: MessageRecord) -> int:
    """Return how many bytes `plain_body` may have made of a body that turned out broken."""
    try:
        return expanded_bytes_max(record.body, compression_type(record.sys_flag))
    except CorruptRecord:
        return len(record.body)


def received(
    record: MessageRecord,
    broker_name: str,
    namespace: Namespace = NO_NAMESPACE,
    *,
    body: bytes | None = None,
) -> MessageExt:
    """Convert a stored record for the application; raise CorruptRecord if the body is broken.

    `body` is the result of `plain_body`; without it, any body is decompressed here and now.
    A message from a retry topic shows its original topic. A record whose body does not match its
    CRC becomes a `DamagedMessage`.
    """
    if body is None:
        body = record.decompressed_body() if record.sys_flag & _COMPRESSED else record.body
    is_intact = crc32(record.body) & CRC_MASK == record.body_crc  # 0.2 us for 128 bytes
    kind = MessageExt if is_intact else DamagedMessage
    return _as_message(kind, record, body, broker_name, namespace)


def unreadable(
    record: MessageRecord, broker_name: str, namespace: Namespace = NO_NAMESPACE
) -> UnreadableMessage:
    """Convert a record with a broken body, so that it can be sent back unchanged."""
    return _as_message(UnreadableMessage, record, record.body, broker_name, namespace)


def _as_message(
    kind: type[_Kind], record: MessageRecord, body: bytes, broker_name: str, namespace: Namespace
) -> _Kind:
    properties = record.properties
    offset_id = record.offset_message_id
    stored_topic = record.topic
    topic = stored_topic
    if stored_topic.startswith(RETRY_PREFIX):
        topic = properties.get(PropertyKey.RETRY_TOPIC, stored_topic)
    if namespace.name:
        topic, stored_topic = namespace.unwrap(topic), namespace.unwrap(stored_topic)
    return kind(
        topic,
        body,
        properties.get(_TAGS),
        record.keys,
        properties,
        properties.get(_UNIQUE_KEY) or offset_id,
        offset_id,
        MessageQueue(stored_topic, broker_name, record.queue_id),
        record.queue_offset,
        record.physical_offset,
        record.flag,
        record.sys_flag,
        record.reconsume_times,
        record.born_timestamp,
        _host_text(record.born_host),
        record.store_timestamp,
        _host_text(record.store_host),
    )


def check_received(message: object) -> None:
    """Raise InvalidArgument unless `message` is a message that a consumer received."""
    if not isinstance(message, MessageExt):
        raise InvalidArgument(
            f"message must be a MessageExt that a consumer received, not {shown(message)}"
        )


def check_topic(topic: str) -> None:
    """Raise InvalidArgument for topic names that clients may not choose."""
    _check_name("topic", topic, TOPIC_CHARS_MAX)


def check_group(group: str) -> None:
    """Raise InvalidArgument for producer and consumer group names that clients may not choose."""
    _check_name("group", group, GROUP_CHARS_MAX)


def check_named(name: object, kind: str) -> None:
    """Raise InvalidArgument unless servers can be asked about a topic or group of this name.

    Servers have names that clients may not choose, because any peer can register them. Reports on
    all topics or groups ask about each of them, and they can be deleted.
    """
    check_encodable(_given(name, kind), f"the name of a {kind}")


def _given(name: object, kind: str) -> str:
    if not isinstance(name, str):
        raise InvalidArgument(f"the name of a {kind} must be a string, not {type(name).__name__}")
    if not name:
        raise InvalidArgument(f"the name of the {kind} is empty: give it one")
    return name


def _check_name(kind: str, name: str, chars_max: int) -> None:
    if not _given(name, kind).strip():
        raise InvalidArgument(f"the name of the {kind} is empty: give it one")
    if len(name) > chars_max:
        raise InvalidArgument(f"the name of a {kind} is longer than {chars_max} characters")
    if not NAME_PATTERN.fullmatch(name):
        raise InvalidArgument(
            f"the name {shown(name)} of a {kind} contains illegal characters: use letters, digits, "
            "_, -, | and % only"
        )


def _check_numbers(message: Message) -> None:
    """Raise InvalidArgument for a bool or float instead of an int: brokers misread them."""
    flag: Any = message.flag
    if type(flag) is not int or not _FLAG_MIN <= flag <= _FLAG_MAX:
        raise InvalidArgument(
            f"the flag of a message must be an int, not {shown(flag)}: it has 32 bits"
        )
    level: Any = message.delay_level
    if type(level) is not int or level < 0:
        raise InvalidArgument(
            f"a delay level must be a number from 0 (no delay) to 18, not {shown(level)}"
        )
    is_waiting: Any = message.wait_store_ok
    if type(is_waiting) is not bool:
        raise InvalidArgument(f"wait_store_ok must be True or False, not {shown(is_waiting)}")


def checked_message(message: Any, body_bytes_max: int) -> Message:
    """Return a copy that shares no buffer with the caller, who may reuse it while a send waits;
    raise for messages that the broker would refuse.
    """
    check_message(message, body_bytes_max)
    found: Message = message.__copy__()  # 0.2 us; `copy` takes 1 us
    if type(found.body) is not bytes:
        found.body = bytes(found.body)
    keys, properties = found.keys, found.properties
    if type(keys) not in _CONSTANTS and isinstance(keys, Iterable):
        found.keys = tuple(keys)
    if properties and (type(properties) is dict or isinstance(properties, Mapping)):
        found.properties = dict(properties)
    return found


def check_message(message: Any, body_bytes_max: int) -> None:
    """Raise for messages that the broker would refuse, before they are sent."""
    if isinstance(message, MessageExt):
        raise InvalidArgument(
            "a received message cannot be sent as it is: producer.send(received.to_message()), or "
            "received.to_message('Other') for a different topic"
        )
    if not isinstance(message, Message):
        raise InvalidArgument(
            f"send a Message(topic, body), not {type(message).__name__}: "
            "producer.send(Message('Orders', b'text'))"
        )
    check_topic(message.topic)
    if message.topic in SEND_FORBIDDEN_TOPICS:
        raise InvalidArgument(f"{message.topic} belongs to the broker: no client may send to it")
    _check_numbers(message)
    message_id: Any = message.message_id
    if message_id is not None and not isinstance(message_id, str):
        raise InvalidArgument(
            f"the message_id of a message must be a string, not {shown(message_id)}: "
            "`producer.new_message_id()` returns one"
        )
    body: Any = message.body
    if not isinstance(body, bytes | bytearray | memoryview):
        advice = ": encode it, body=text.encode()" if isinstance(body, str) else ""
        raise InvalidMessage(f"the message body must be bytes, not {type(body).__name__}{advice}")
    size = body.nbytes if isinstance(body, memoryview) else len(body)
    if not size:
        raise InvalidMessage("the message body is empty: brokers do not store messages without one")
    if size > body_bytes_max:
        raise InvalidMessage(
            f"the message body has {size} bytes, more than body_bytes_max "
            f"({body_bytes_max}); the broker's maxMessageSize limits it too"
        )
