# SPDX-License-Identifier: Apache-2.0
"""The figures of one scrape that several metric families share, gathered in steps.

Offsets and lags are sums over queues, so they are computed once for all families that show them.
A slave shows neither, because sums over all brokers would then count a queue more than once.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cometmq.broker.broker import Broker
from cometmq.broker.handlers.runtime_info import runtime_table
from cometmq.broker.progress import QueueProgress, consumed_topics, progress_in
from cometmq.broker.statistics.counters import GroupStats, TopicStats
from cometmq.broker.storing.disk_figures import DiskFigures
from cometmq.runtime.incremental import Steps
from cometmq.runtime.metrics import Family, Row, RowLimit, StatsCollector

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric


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


STEP_QUEUES: Final = 256  # about 0.2 ms


class GroupLag(NamedTuple):
    """The progress of a group in a topic, summed over this broker's queues."""

    topic: str
    group: str
    consumed: int  # sum of the committed offsets
    lag: int
    lag_ms: int | None  # age of the oldest unread message; None until it is measured
    stranded: int = 0  # messages in queues that consumers do not read


class TopicEnd(NamedTuple):
    topic: str
    end: int  # sum of the queues' ends


class Figures(NamedTuple):
    broker: Broker
    now_ms: int
    groups: Sequence[GroupLag]
    topics: Sequence[TopicEnd]
    runtime: dict[str, str]  # code 28's table; empty until the disk has been measured
    disk: DiskFigures | None


def gather(broker: Broker) -> Steps[Figures]:
    now_ms = broker.clock.now_ms()
    groups = [] if broker.role.is_slave else (yield from _group_lags(broker, now_ms))
    topics = [] if broker.role.is_slave else (yield from _topic_ends(broker))
    disk = broker.measured.disk_watch.figures
    runtime = {} if disk is None else runtime_table(broker, disk)
    return Figures(broker, now_ms, groups, topics, runtime, disk)


def _group_lags(broker: Broker, now_ms: int) -> Steps[list[GroupLag]]:
    found: list[GroupLag] = []
    left = STEP_QUEUES
    groups = dict.fromkeys([*broker.tables.offsets.index.groups(), *broker.tables.groups.table])
    for group in groups:
        for topic in consumed_topics(broker, group):
            queues = list(progress_in(broker, group, topic))
            row = _row(broker, topic, group, queues, now_ms)
            if row.lag or broker.tables.offsets.queues(group, topic):
                found.append(row)
            left -= len(queues)
        left -= 1
        if left <= 0:
            left = STEP_QUEUES
            yield
    return found


def _row(
    broker: Broker, topic: str, group: str, queues: Sequence[QueueProgress], now_ms: int
) -> GroupLag:
    lag = sum(queue.lag for queue in queues)
    lag_ms: int | None = 0
    if lag:
        since_ms = broker.measured.lag_times.oldest_ms.get((topic, group))
        lag_ms = None if since_ms is None else max(0, now_ms - since_ms)
    count = broker.tables.topics.table[topic].read_queue_nums
    return GroupLag(
        topic,
        group,
        consumed=sum(queue.committed or 0 for queue in queues),
        lag=lag,
        lag_ms=lag_ms,
        stranded=sum(queue.lag for queue in queues if queue.queue_id >= count),
    )


def _topic_ends(broker: Broker) -> Steps[list[TopicEnd]]:
    found: list[TopicEnd] = []
    left = STEP_QUEUES
    for topic, config in list(broker.tables.topics.table.items()):
        count = max(config.read_queue_nums, config.write_queue_nums)
        end = sum(broker.store.reader.max_offset(topic, queue_id) for queue_id in range(count))
        found.append(TopicEnd(topic, end))
        left -= count
        if left <= 0:
            left = STEP_QUEUES
            yield
    return found


class FigureCollector:
    """Gathers the figures once per scrape, and computes several tables of families from them."""

    def __init__(
        self,
        broker: Broker,
        tables: Iterable[tuple[Sequence[Family[Figures]], dict[str, str]]],
        limit: RowLimit,
    ) -> None:
        self._broker = broker
        self._tables = list(tables)
        self._limit = limit

    def collect(self) -> "Iterator[Metric | None]":
        """Yield every family, and None wherever other callbacks of the loop may run."""
        self._limit.rows_max = self._broker.settings.metrics_rows_max
        figures = yield from gather(self._broker)
        dropped_count = 0
        for families, labels in self._tables:
            collector: StatsCollector[Any] = StatsCollector(
                families, lambda: figures, labels, self._limit
            )
            yield from collector.collect()
            dropped_count += self._limit.dropped_count
        self._limit.dropped_count = dropped_count
