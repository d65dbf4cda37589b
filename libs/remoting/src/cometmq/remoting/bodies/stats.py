# SPDX-License-Identifier: Apache-2.0
"""Statistics of topics, groups and brokers."""

import msgspec

from cometmq.remoting.bodies.heartbeat import SubscriptionData
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.integers import Int32, Int64


class TopicOffset(msgspec.Struct, gc=False, rename="camel"):
    """Begin and end of one queue."""

    last_update_timestamp: Int64 = 0
    max_offset: Int64 = 0
    min_offset: Int64 = 0


class TopicStats(msgspec.Struct, gc=False, rename="camel"):
    """Begin and end of each queue of a topic."""

    offset_table: dict[MessageQueue, TopicOffset] = {}


class OffsetPair(msgspec.Struct, gc=False, rename="camel"):
    """End of one queue and the place where a group is."""

    broker_offset: Int64 = 0
    consumer_offset: Int64 = 0
    last_timestamp: Int64 = 0


class ConsumeStats(msgspec.Struct, gc=False, rename="camel"):
    """How far a group is in each queue."""

    consume_tps: float = 0.0
    offset_table: dict[MessageQueue, OffsetPair] = {}


class BrokerConsumeStats(msgspec.Struct, gc=False, rename="camel"):
    """How far all groups of a broker are, one single-entry map per group."""

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
    """How old the messages of one queue are, and the one a group consumes."""

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
    """One entry of a consume queue and what the filter says to it."""

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
