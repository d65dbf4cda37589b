# SPDX-License-Identifier: Apache-2.0
"""Statistics about topics, groups and brokers."""

import msgspec

from cometmq.remoting.bodies.heartbeat import SubscriptionData
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.integers import Int32, Int64


class TopicOffset(msgspec.Struct, gc=False, rename="camel"):
    """The first and the next offset of one queue."""

    last_update_timestamp: Int64 = 0
    max_offset: Int64 = 0
    min_offset: Int64 = 0


class TopicStats(msgspec.Struct, gc=False, rename="camel"):
    """The first and the next offset of each queue of a topic."""

    offset_table: dict[MessageQueue, TopicOffset] = {}


class OffsetPair(msgspec.Struct, gc=False, rename="camel"):
    """The next offset of a queue, and the offset that a group has committed.

    `pull_offset` is the next offset that the group pulls: tools of 5.x count what lies between it
    and `consumer_offset` as in flight.
    """

    broker_offset: Int64 = 0
    consumer_offset: Int64 = 0
    last_timestamp: Int64 = 0
    pull_offset: Int64 | msgspec.UnsetType = msgspec.UNSET


class ConsumeStats(msgspec.Struct, gc=False, rename="camel"):
    """A group's progress in each queue."""

    consume_tps: float = 0.0
    offset_table: dict[MessageQueue, OffsetPair] = {}


class BrokerConsumeStats(msgspec.Struct, gc=False, rename="camel"):
    """The progress of all groups of a broker, as one single-entry map per group."""

    broker_addr: str = ""
    consume_stats_list: list[dict[str, list[ConsumeStats]]] = []
    total_diff: Int64 = 0


class StatsItem(msgspec.Struct, gc=False, rename="camel"):
    """One statistic over one period; `avgpt` is the average per call."""

    avgpt: float = 0.0
    sum: Int64 = 0
    tps: float = 0.0


class BrokerStatsData(msgspec.Struct, gc=False, rename="camel"):
    """One statistic over the last day, hour and minute."""

    stats_day: StatsItem = msgspec.field(default_factory=StatsItem)
    stats_hour: StatsItem = msgspec.field(default_factory=StatsItem)
    stats_minute: StatsItem = msgspec.field(default_factory=StatsItem)


class QueueTimeSpan(msgspec.Struct, gc=False, rename="camel"):
    """The store times of a queue's oldest, newest and last consumed message."""

    consume_time_stamp: Int64 = 0
    consume_time_stamp_str: str = ""
    delay_time: Int64 = 0
    max_time_stamp: Int64 = 0
    max_time_stamp_str: str = ""
    message_queue: MessageQueue | None = None
    min_time_stamp: Int64 = 0
    min_time_stamp_str: str = ""


class ConsumeTimeSpans(msgspec.Struct, gc=False, rename="camel"):
    """Body of QUERY_CONSUME_TIME_SPAN."""

    consume_time_span_set: list[QueueTimeSpan] = []


class ConsumeQueueEntry(msgspec.Struct, gc=False, rename="camel"):
    """One entry of a consume queue, and whether it passes the filter."""

    bit_map: str | None = None
    eval: bool = False
    extend_data_json: str | None = None
    msg: str | None = None
    physic_offset: Int64 = 0
    physic_size: Int32 = 0
    tags_code: Int64 = 0


class ConsumeQueueEntries(msgspec.Struct, gc=False, rename="camel"):
    """Body of QUERY_CONSUME_QUEUE."""

    filter_data: str | None = None
    max_queue_index: Int64 = 0
    min_queue_index: Int64 = 0
    queue_data: list[ConsumeQueueEntry] = []
    subscription_data: SubscriptionData | None = None
