# SPDX-License-Identifier: Apache-2.0
"""Rows that metrics of several names show: those of topics and groups that exist, and of slaves.

RocketMQ keeps the statistics of deleted topics and groups (`autoDeleteUnusedStats`), and a slave
does not see deletions as requests. Metrics of them would never end.
"""

from collections.abc import Iterable

from cometmq.broker.broker import Broker
from cometmq.broker.statistics.counters import GroupStats, TopicStats
from cometmq.runtime.metrics import Row


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


def slave_lags(broker: Broker) -> Iterable[Row]:
    """Yield one row per host, for its slowest connection, so that reconnects add no series."""
    lags: dict[str, int] = {}
    for address, lag in broker.replication.slaves.lags(broker.store.commit_log.confirm_offset):
        host = address.rpartition(":")[0]
        lags[host] = max(lag, lags.get(host, 0))
    return [((host,), lag) for host, lag in lags.items()]
