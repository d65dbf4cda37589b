# SPDX-License-Identifier: Apache-2.0
"""Copies the figures of active sources, and looks up statistics for tools (pure).

A round starts every ten seconds. Each step copies a bounded number of sources, so that a broker
with very many sources never stalls; the rest of the round follows in later steps. A source whose
figures have not changed since its last copy becomes inactive and costs nothing. Its later copies,
which are all identical, are added by `catch_up` when they are needed.
"""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final, NamedTuple

from cometmq.broker.statistics.counters import BrokerStats, GroupStats, Source, figures_of
from cometmq.broker.statistics.windows import DAY, HOUR, MINUTE, Period, Windows
from cometmq.remoting.bodies.stats import BrokerStatsData
from cometmq.remoting.names import SCHEDULE_GROUP, SCHEDULE_TOPIC

STEP_COUNT_MAX: Final = 1_000  # about 2 ms, 10 ms for new sources


class StatSampler:
    """Samples the active sources; a timer calls `step` every second."""

    def __init__(self, stats: BrokerStats, *, now_ms: int) -> None:
        """The first round starts one interval from now; times are monotonic."""
        self._stats = stats
        self._round_ms = self._hour_ms = self._day_ms = now_ms
        self._periods: list[Period] = []
        self._rest: Iterator[Source] = iter(())

    def step(self, now_ms: int) -> None:
        """Continue the round, or start the next one if it is due."""
        if self._copy(now_ms) == 0 and now_ms - self._round_ms >= MINUTE.interval_ms:
            self._begin_round(now_ms)
            self._copy(now_ms)

    def _begin_round(self, now_ms: int) -> None:
        self._round_ms = now_ms
        self._periods = [MINUTE]
        if now_ms - self._hour_ms >= HOUR.interval_ms:
            self._hour_ms = now_ms
            self._periods.append(HOUR)
        if now_ms - self._day_ms >= DAY.interval_ms:
            self._day_ms = now_ms
            self._periods.append(DAY)
        self._stats.sources.rounds.begin(self._periods, now_ms)
        self._rest = iter(list(self._stats.sources.active.values()))

    def _copy(self, now_ms: int) -> int:
        stats, count = self._stats, 0
        for source in islice(self._rest, STEP_COUNT_MAX):
            count += 1
            figures = figures_of(source)
            if source.windows is None:
                source.windows = Windows(len(figures))
            elif source.windows.is_flat(figures) and source is not stats:
                stats.sources.remove(source)
                source.is_active = False
            source.windows.add(self._periods, now_ms, figures)
        return count


class Statistic(NamedTuple):
    """A statistic for code 315: how to find its source, its figure, and that of its calls."""

    find: Callable[[BrokerStats, str, str], Source | None]  # by the key, in a cluster
    value: str
    times: str | None


def _topic(stats: BrokerStats, key: str, _cluster: str) -> Source | None:
    return stats.topics.get(key)


def _group(stats: BrokerStats, key: str, _cluster: str) -> Source | None:
    topic, _, group = key.partition("@")
    return stats.groups.get((topic, group))


def _broker(stats: BrokerStats, key: str, cluster: str) -> Source | None:
    return stats if key == cluster else None


def _level_put(stats: BrokerStats, key: str, _cluster: str) -> Source | None:
    topic, _, queue_id = key.partition("@")
    return stats.levels.get(int(queue_id)) if topic == SCHEDULE_TOPIC and _is_id(queue_id) else None


def _level_get(stats: BrokerStats, key: str, cluster: str) -> Source | None:
    queue, _, group = key.rpartition("@")
    return _level_put(stats, queue, cluster) if group == SCHEDULE_GROUP else None


def _is_id(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 3  # there are few levels


STATISTICS: Final = {
    "TOPIC_PUT_NUMS": Statistic(_topic, "put_count", "request_count"),
    "TOPIC_PUT_SIZE": Statistic(_topic, "put_bytes", "request_count"),
    "GROUP_GET_NUMS": Statistic(_group, "get_count", "pull_count"),
    "GROUP_GET_SIZE": Statistic(_group, "get_bytes", "pull_count"),
    "GROUP_GET_LATENCY": Statistic(_group, "wait_ms", "pull_count"),
    "SNDBCK_PUT_NUMS": Statistic(_group, "send_back_count", "send_back_count"),
    "BROKER_PUT_NUMS": Statistic(_broker, "put_count", None),
    "BROKER_GET_NUMS": Statistic(_broker, "get_count", None),
    "QUEUE_PUT_NUMS": Statistic(_level_put, "put_count", "put_count"),
    "QUEUE_PUT_SIZE": Statistic(_level_put, "put_bytes", "put_count"),
    "QUEUE_GET_NUMS": Statistic(_level_get, "get_count", "get_count"),
    "QUEUE_GET_SIZE": Statistic(_level_get, "get_bytes", "get_count"),
}


def find_statistic(
    stats: BrokerStats, name: str, key: str, *, cluster: str
) -> BrokerStatsData | None:
    """Return a statistic; as in RocketMQ, None if its source has never counted anything."""
    statistic = STATISTICS.get(name)
    source = statistic.find(stats, key, cluster) if statistic is not None else None
    if statistic is None or source is None:
        return None
    figures = source.FIGURES
    counted_at = figures.index(statistic.times or statistic.value)
    if figures_of(source)[counted_at] == 0:
        return None
    stats.sources.catch_up(source)
    if source.windows is None:
        return BrokerStatsData()
    times_at = None if statistic.times is None else figures.index(statistic.times)
    return source.windows.data(figures.index(statistic.value), times_at)


def pull_rate(stats: BrokerStats, topic: str, group: str) -> float:
    """Return the messages per second that the group pulled from the topic over the last minute."""
    source = stats.groups.get((topic, group))
    if source is None or source.windows is None:
        return 0.0
    stats.sources.catch_up(source)
    return source.windows.item(
        MINUTE, GroupStats.FIGURES.index("get_count"), GroupStats.FIGURES.index("pull_count")
    ).tps
