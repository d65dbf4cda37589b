# SPDX-License-Identifier: Apache-2.0
"""Headers that carry a reply from the replier to the broker, and from there to the requester."""

from cometmq.remoting.commands.send import SendMessage, SendMessageReply, SendMessageV2
from cometmq.remoting.integers import Int32, Int64
from cometmq.remoting.types import Header


class SendReplyMessage(SendMessage, frozen=True):
    """Send the broker a reply to a message."""


class SendReplyMessageV2(SendMessageV2, frozen=True):
    """SendReplyMessage with one-letter names on the wire."""


class SendReplyMessageReply(SendMessageReply, frozen=True):
    """Id and offset of the reply if it was stored as well, otherwise "0" and 0."""


class PushReplyMessageToClient(Header, frozen=True):
    """Push a reply to the client that is waiting for it; hosts have the form `ip:port`."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: Int64
    flag: Int32
    born_host: str
    store_host: str
    store_timestamp: Int64
    properties: str = ""
    reconsume_times: Int32 = 0
    unit_mode: bool = False
