# SPDX-License-Identifier: Apache-2.0
"""Headers for broker administration and monitoring."""

from cometmq.remoting.integers import Int32, Int64
from cometmq.remoting.types import Header


class GetBrokerConfigReply(Header, frozen=True):
    """The version of the broker's settings, as JSON text."""

    version: str


class GetConsumerConnectionList(Header, frozen=True):
    """Ask for the connected clients of a consumer group."""

    consumer_group: str


class GetProducerConnectionList(Header, frozen=True):
    """Ask for the connected clients of a producer group."""

    producer_group: str


class GetConsumeStats(Header, frozen=True):
    """Ask for a consumer group's progress in one topic or in all topics."""

    consumer_group: str
    topic: str | None = None


class InvokeBrokerToResetOffset(Header, frozen=True):
    """Reset a group's offsets to a time (-1 is the end), or one queue's to an offset (5.x)."""

    topic: str
    group: str
    timestamp: Int64
    is_force: bool
    queue_id: Int32 | None = None
    offset: Int64 | None = None


class InvokeBrokerToGetConsumerStatus(Header, frozen=True):
    """Make the broker ask a group's clients for their offsets."""

    topic: str
    group: str
    client_addr: str | None = None


class QueryTopicConsumeByWho(Header, frozen=True):
    """Ask which groups consume a topic."""

    topic: str


class RegisterFilterServer(Header, frozen=True):
    """Register a filter server; the feature was removed, but the request is still answered."""

    filter_server_addr: str | None = None


class RegisterFilterServerReply(Header, frozen=True):
    """The broker's name and id."""

    broker_name: str
    broker_id: Int64


class QueryConsumeTimeSpan(Header, frozen=True):
    """Ask when a topic's oldest, newest and last consumed messages were stored."""

    topic: str
    group: str


class QueryCorrectionOffset(Header, frozen=True):
    """Ask for the smallest offsets of other groups, to correct the offsets of one group."""

    compare_group: str
    topic: str
    filter_groups: str | None = None


class CloneGroupOffset(Header, frozen=True):
    """Copy one group's offsets to another group."""

    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool = False


class ViewBrokerStatsData(Header, frozen=True):
    """Ask for one statistic over the last minute, hour and day."""

    stats_name: str
    stats_key: str


class GetBrokerConsumeStats(Header, frozen=True):
    """Ask for the progress of all consumer groups."""

    is_order: bool = False
