# SPDX-License-Identifier: Apache-2.0
"""Reads a sent message's properties, and changes messages before they are stored (pure).

Hot path: `read_sent` runs once per stored message that the native path does not serve.

Compatibility: CLUSTER is added to every message. WAIT is removed only from the properties of a
plain send; as in RocketMQ, batches and delayed messages keep it.
"""

from typing import Final

import msgspec

from cometmq.remoting.message.flags import tag_code
from cometmq.remoting.message.new_message import NewMessage, encode_record
from cometmq.remoting.message.properties import (
    PAIR_SEPARATOR,
    VALUE_SEPARATOR,
    PropertyKey,
    append_property,
    index_keys,
    render_properties,
    without_property,
)
from cometmq.remoting.message.record import MessageRecord
from cometmq.remoting.names import OFFSET_MOVED_TOPIC, SCHEDULE_TOPIC

_WAIT: Final = PropertyKey.WAIT.value
_UNIQUE_KEY: Final = PropertyKey.UNIQUE_KEY.value
_TAGS: Final = PropertyKey.TAGS.value
_KEYS: Final = PropertyKey.KEYS.value
_DELAY: Final = PropertyKey.DELAY.value
_HALF: Final = PropertyKey.TRANSACTION_PREPARED.value
_CLUSTER: Final = PropertyKey.CLUSTER.value
_TIMER_PREFIX: Final = "TIMER_"
_LEFT_OUT: Final = frozenset({"", PropertyKey.CLUSTER.value})  # the broker sets CLUSTER itself
_REAL_TOPIC: Final = PropertyKey.REAL_TOPIC.value
_REAL_QUEUE_ID: Final = PropertyKey.REAL_QUEUE_ID.value


class SentProperties(msgspec.Struct, gc=False):
    """The properties of a sent message: the form to store, and values that the broker uses."""

    text: str
    tags: str | None = None
    tag_code: int = 0
    keys: tuple[str, ...] = ()  # to index: the unique key first
    wait: str | None = None
    waits_for_disk: bool = (
        True  # the sender waits for flush and replication; the default of RocketMQ
    )
    delay_level: int = 0
    is_half: bool = False
    has_timer: bool = False
    """Whether the properties may set a delivery time (`delays/timed.py`)."""


def cluster_pair(cluster_name: str) -> str:
    """Return the encoded property that is added to every stored message."""
    return f"{_CLUSTER}{VALUE_SEPARATOR}{cluster_name}"


def read_sent(text: str | None, cluster: str) -> SentProperties:
    """Read the properties of a send; `cluster` is the encoded property to append."""
    sent = SentProperties(cluster)
    if not text:
        return sent
    unique_key = keys = None
    kept: list[str] = []
    for pair in text.split(PAIR_SEPARATOR):
        name, _, value = pair.partition(VALUE_SEPARATOR)
        if not value or name in _LEFT_OUT:
            continue
        if name == _WAIT:
            sent.wait = value
            sent.waits_for_disk = value.lower() == "true"
            continue
        if name == _UNIQUE_KEY:
            unique_key = value
        elif name == _TAGS:
            sent.tags = value
            sent.tag_code = tag_code(value)
        elif name == _KEYS:
            keys = value
        elif name == _DELAY:
            sent.delay_level = _level(value)
        elif name == _HALF:
            sent.is_half = value.lower() == "true"
        kept.append(pair)
    kept.append(cluster)
    sent.has_timer = _TIMER_PREFIX in text
    sent.text = PAIR_SEPARATOR.join(kept)
    sent.keys = index_keys(unique_key, keys)
    return sent


def _level(value: str) -> int:
    """Parse a delay level; return 0 for text that is no number."""
    try:
        return int(value)
    except ValueError:
        return 0


def delay(message: NewMessage, level: int, *, wait: str | None = None) -> None:
    """Redirect a message to the queue of its delay level.

    The real topic and queue are kept in its properties, even after delivery.
    """
    text = message.properties
    if wait is not None:
        text = append_property(text, _WAIT, wait)
    for name, value in ((_REAL_TOPIC, message.topic), (_REAL_QUEUE_ID, str(message.queue_id))):
        text = append_property(without_property(text, name), name, value)
    message.properties = text
    message.topic = SCHEDULE_TOPIC
    message.queue_id = level - 1


def without_delay(text: str) -> str:
    """Return the properties without the delay level, for a message not to be delayed again."""
    return without_property(text, _DELAY)


def batch_text(common: SentProperties) -> str:
    """Return the properties that are appended to each message of a batch; they keep WAIT."""
    if common.wait is None:
        return common.text
    return f"{_WAIT}{VALUE_SEPARATOR}{common.wait}{PAIR_SEPARATOR}{common.text}"


def again(
    record: MessageRecord, topic: str, queue_id: int, *, host: bytes, wait: bool = False
) -> NewMessage:
    """Return a stored message as one to store again, in this queue."""
    message = record.to_new_message()
    message.topic, message.queue_id, message.store_host = topic, queue_id, host
    message.prepared_offset, message.wait = 0, wait
    return message


def sent_back(
    record: MessageRecord, *, topic: str, queue_id: int, delay_level: int, host: bytes
) -> NewMessage:
    """Turn a message that could not be consumed into one for its group's retry topic.

    The topic and the id of the first failed delivery are kept in its properties; level 0 removes
    the delay, as for the dead-letter topic.

    Compatibility: the properties contain WAIT=false, as in RocketMQ. The answer nevertheless waits
    for the flush, like the answer to a send, because the consumer then commits an offset beyond the
    original message.
    """
    properties = dict(record.properties)
    properties.setdefault(PropertyKey.RETRY_TOPIC, record.topic)
    properties.setdefault(PropertyKey.ORIGIN_MESSAGE_ID, record.offset_message_id)
    properties.pop(PropertyKey.TIMER_OUT_MS, None)  # else this would be a timed message
    properties[_WAIT] = "false"
    properties[_DELAY] = str(delay_level)
    message = again(record, topic, queue_id, host=host, wait=True)
    message.reconsume_times = record.reconsume_times + 1
    message.properties = render_properties(properties)
    return message


def delivered(record: MessageRecord, *, host: bytes) -> NewMessage:
    """Turn a delayed message into one for its real queue; the topic is empty if it names none.

    Compatibility: the properties are unchanged, so REAL_TOPIC, REAL_QID and DELAY remain.
    """
    queue_id = _level(record.properties.get(_REAL_QUEUE_ID, ""))
    return again(record, record.properties.get(_REAL_TOPIC, ""), queue_id, host=host)


class MovedQueue(msgspec.Struct, rename="camel"):
    broker_name: str
    queue_id: int
    topic: str


class OffsetMoved(msgspec.Struct, rename="camel"):
    """An event for operators: a consumer requested an offset outside the queue."""

    consumer_group: str
    message_queue: MovedQueue
    offset_new: int
    offset_request: int


def moved_event(event: OffsetMoved, *, host: bytes, now_ms: int) -> NewMessage:
    """Return the message that reports the event to operators."""
    group = event.consumer_group
    properties = {_KEYS: group, _DELAY: "0", _TAGS: group}
    return NewMessage(
        OFFSET_MOVED_TOPIC,
        queue_id=0,
        flag=0,
        sys_flag=0,
        born_timestamp=now_ms,
        born_host=host,
        store_host=host,
        body=msgspec.json.encode(event),
        properties=render_properties(properties),
        tag_code=tag_code(group),
        keys=index_keys(None, group),
        wait=False,
    )


def stored_bytes(record: MessageRecord) -> bytes:
    """Encode a record as it is in the log, the form in which pulls and queries return it.

    The CRC is the stored one, so that readers detect a body that was damaged later.
    """
    encoded = encode_record(
        record.to_new_message(), record.queue_offset, record.physical_offset, record.store_timestamp
    )
    return b"".join((encoded[:8], record.body_crc.to_bytes(4, "big"), encoded[12:]))
