# SPDX-License-Identifier: Apache-2.0
"""Headers for sending a message, a batch, or a message back to the broker, and for a recall."""

from typing import Final

import msgspec

from cometmq.remoting.integers import Int32, Int64
from cometmq.remoting.types import Header

_SHORT_NAMES: Final = {
    "producer_group": "a",
    "topic": "b",
    "default_topic": "c",
    "default_topic_queue_nums": "d",
    "queue_id": "e",
    "sys_flag": "f",
    "born_timestamp": "g",
    "flag": "h",
    "properties": "i",
    "reconsume_times": "j",
    "unit_mode": "k",
    "max_reconsume_times": "l",
    "batch": "m",
}


class SendMessage(Header, frozen=True):
    """Store one message; a negative queue id lets the broker choose the queue."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: Int64
    flag: Int32
    properties: str = ""
    reconsume_times: Int32 = 0
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None
    batch: bool = False


class SendMessageV2(msgspec.Struct, frozen=True, gc=False, rename=_SHORT_NAMES):
    """SendMessage with one-letter names on the wire; clients send this form by default."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: Int64
    flag: Int32
    properties: str = ""
    reconsume_times: Int32 = 0
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None
    batch: bool = False


class SendMessageReply(Header, frozen=True):
    """The position of the message; for a batch, comma-separated ids and the first queue offset."""

    msg_id: str
    queue_id: Int32
    queue_offset: Int64
    transaction_id: str | None = None


class ConsumerSendMsgBack(Header, frozen=True):
    """Return a message that could not be consumed, so that it is redelivered to its group later.

    A delay level of 0 lets the broker choose; a negative one means the dead-letter queue.
    """

    offset: Int64
    group: str
    delay_level: Int32
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None


class RecallMessage(Header, frozen=True):
    """Drop a delayed message that still waits; see `message/recall_handle.py`."""

    topic: str
    recall_handle: str
    producer_group: str | None = None


class RecallMessageReply(Header, frozen=True):
    """The unique key of the message that will not be delivered."""

    msg_id: str
