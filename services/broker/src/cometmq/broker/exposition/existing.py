# SPDX-License-Identifier: Apache-2.0
"""The statistics that metrics show: those of topics and groups that exist.

RocketMQ keeps the statistics of deleted topics and groups (`autoDeleteUnusedStats`), and a slave
does not see deletions as requests. Metrics of them would never end.
"""

from cometmq.broker.broker import Broker
from cometmq.broker.statistics.counters import GroupStats, TopicStats


def topics_of(broker: Broker) -> list[tuple[str, TopicStats]]:
    """Return each existing topic that has statistics, with them."""
    topics = broker.tables.topics.table
    return [item for item in list(broker.stats.topics.items()) if item[0] in topics]


def groups_of(broker: Broker) -> list[tuple[tuple[str, str], GroupStats]]:
    """Return each pair of an existing topic and group that has statistics, with them."""
    topics, groups = broker.tables.topics.table, broker.tables.groups.table
    return [
        item
        for item in list(broker.stats.groups.items())
        if item[0][0] in topics and item[0][1] in groups
    ]
