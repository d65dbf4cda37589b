# SPDX-License-Identifier: Apache-2.0
"""Headers for pulling messages."""

from cometmq.remoting.integers import Int32, Int64
from cometmq.remoting.types import Header


class PullMessage(Header, frozen=True):
    """Read messages from one queue, starting at an offset; optionally wait for the first one."""

    consumer_group: str
    topic: str
    queue_id: Int32
    queue_offset: Int64
    max_msg_nums: Int32
    sys_flag: Int32
    commit_offset: Int64
    suspend_timeout_millis: Int64
    sub_version: Int64
    subscription: str | None = None
    expression_type: str | None = None
    max_msg_bytes: Int32 | None = None


class PullMessageReply(Header, frozen=True):
    """The next offset to pull, and the broker of the group to pull from."""

    suggest_which_broker_id: Int64
    next_begin_offset: Int64
    min_offset: Int64
    max_offset: Int64
