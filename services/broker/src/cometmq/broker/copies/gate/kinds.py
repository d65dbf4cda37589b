# SPDX-License-Identifier: Apache-2.0
"""What each request needs from the copies of a broker group (pure)."""

from collections.abc import Mapping
from enum import Enum
from typing import Any, Final

from cometmq.remoting.codes import RequestCode as Code
from cometmq.remoting.command import Call
from cometmq.remoting.signature import FORWARDED


class Kind(Enum):
    """The condition for serving a request."""

    PUT = "put"
    """The store decides whether the request is accepted and when it is answered."""
    CHANGE = "change"
    """The request changes tables, and is answered when the copies have the change (R7).

    Like a message, it is refused while fewer copies than `minInSync` are in sync.
    """
    UNLOGGED = "unlogged"
    """Answered only by a master that is certain not to have been replaced (decision 8)."""
    COMMIT = "commit"
    """As `UNLOGGED`, and answered when the copies have the change, unless the request is one-way.
    The request is accepted even with too few copies in sync: acknowledged messages can still be
    consumed then, and losing a commit with the last copy only causes redelivery.
    """
    READ = "read"
    """The answer shows the ends of queues, which must never decrease (R6)."""


KINDS: Final[Mapping[int, Kind]] = {
    Code.SEND_MESSAGE: Kind.PUT,
    Code.SEND_MESSAGE_V2: Kind.PUT,
    Code.SEND_BATCH_MESSAGE: Kind.PUT,
    Code.CONSUMER_SEND_MSG_BACK: Kind.PUT,
    Code.END_TRANSACTION: Kind.PUT,
    Code.RESUME_CHECK_HALF_MESSAGE: Kind.PUT,
    Code.SET_TRANSACTION_ASIDE: Kind.PUT,
    Code.UPDATE_AND_CREATE_TOPIC: Kind.CHANGE,
    Code.DELETE_TOPIC_IN_BROKER: Kind.CHANGE,
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: Kind.CHANGE,
    Code.DELETE_SUBSCRIPTIONGROUP: Kind.CHANGE,
    Code.INVOKE_BROKER_TO_RESET_OFFSET: Kind.CHANGE,
    Code.CLONE_GROUP_OFFSET: Kind.CHANGE,
    Code.UPDATE_CONSUMER_OFFSET: Kind.COMMIT,
    Code.LOCK_BATCH_MQ: Kind.UNLOGGED,
    Code.UNLOCK_BATCH_MQ: Kind.UNLOGGED,
    Code.PULL_MESSAGE: Kind.READ,
    Code.LITE_PULL_MESSAGE: Kind.READ,
    Code.QUERY_CONSUMER_OFFSET: Kind.READ,
    Code.SEARCH_OFFSET_BY_TIMESTAMP: Kind.READ,
    Code.GET_MAX_OFFSET: Kind.READ,
    Code.GET_CONSUME_STATS: Kind.READ,
    Code.GET_TOPIC_STATS_INFO: Kind.READ,
    Code.GET_BROKER_OVERVIEW: Kind.READ,
}
"""Request code -> what it needs; requests without a row are always served."""


def is_forwarded(call: Call[Any]) -> bool:
    """Return whether another broker has forwarded the request.

    A broker that itself forwards requests refuses such a request. Otherwise two brokers that follow
    each other, because neither knows the new master, would pass it back and forth endlessly.
    """
    return FORWARDED.encode() in call.head
