# SPDX-License-Identifier: Apache-2.0
"""The body in which a CometMQ broker describes all its queues and clients at once, for consoles.

RocketMQ has a request per topic and per group instead; with 2,000 groups, a console could not stay
up to date.
"""

from enum import StrEnum

import msgspec

from cometmq.remoting.bodies.connections import Connection
from cometmq.remoting.bodies.heartbeat import SubscriptionData
from cometmq.remoting.integers import Int32, Int64


class QueueEnds(msgspec.Struct, gc=False, array_like=True):
    """The first and the next offset of one queue."""

    queue_id: Int32
    first: Int64
    end: Int64

    @property
    def last_write_ms(self) -> int:
        """Always 0: this body does not contain the store time of the newest message."""
        return 0


class GroupClients(msgspec.Struct, gc=False, rename="camel"):
    """The members of a connected consumer group."""

    members: list[Connection] = []
    consume_type: str = ""
    message_model: str = ""
    subscriptions: list[SubscriptionData] = []
    disagreement: str = ""
    """How two members' subscriptions differ; empty if all are equal."""


class RefusedRequests(msgspec.Struct, gc=False, rename="camel"):
    """Requests that the broker refused with one response about one topic or group."""

    code: Int32
    response: Int32
    subject: str
    remark: str
    peer: str
    count: Int64
    first_ms: Int64
    last_ms: Int64


class Habit(StrEnum):
    """What a client's library does without its user's knowledge."""

    DEAD_AT_ONCE = "dead letters at once"
    CHECKS_UNANSWERED = "checks unanswered"


class GroupHabit(msgspec.Struct, gc=False, rename="camel"):
    """A habit of a group's members that the broker has seen."""

    habit: str
    group: str
    count: Int64
    """Dead letters, or checks without an answer (at most a few are counted)."""
    first_ms: Int64
    last_ms: Int64


class BrokerOverview(msgspec.Struct, gc=False, rename="camel"):
    """Body of the answer to GET_BROKER_OVERVIEW."""

    queues: dict[str, list[QueueEnds]] = {}
    """By topic; also queues that the topic no longer offers to readers."""
    groups: dict[str, GroupClients] = {}
    """Connected groups only."""
    oldest_unread_ms: dict[str, Int64] = {}
    """When the oldest unread message was stored, by `topic@group`; only of groups that are behind
    and have been measured.
    """
    refused: list[RefusedRequests] = []
    habits: list[GroupHabit] = []
