# SPDX-License-Identifier: Apache-2.0
"""The broker's counters: plain integers, read at scrape time and by admin commands.

A source is a set of counters: of the broker, a topic, a group in a topic, or a delay level. The
message path only increments counters. Timers copy them: once a second the totals (`rates.py`), and
every ten seconds, in a round, each active source (`sampler.py`).

A source becomes active when one of its counters is incremented, and inactive when a round finds its
counters unchanged. The copies that an inactive source misses are added before its next increment or
read. The tables of sources are bounded; above the bound, new sources share one set of counters.
"""

from collections.abc import Iterable
from typing import ClassVar, Final, Protocol

import msgspec

from cometmq.broker.limits import STATISTICS
from cometmq.broker.statistics.latencies import latency_buckets
from cometmq.broker.statistics.windows import Rounds, Windows
from cometmq.remoting.names import SCHEDULE_GROUP, SCHEDULE_TOPIC

SOURCES_MAX: Final = STATISTICS.fixed // 2  # of topics, and as many of groups in topics


class Source(Protocol):
    """A set of counters whose figures are sampled."""

    FIGURES: ClassVar[tuple[str, ...]]
    """The names of the counters."""
    windows: Windows | None = None
    is_active: bool = False


class TopicStats(msgspec.Struct, gc=False):
    """Counters of one topic's stored messages; a request may carry several messages."""

    FIGURES: ClassVar[tuple[str, ...]] = ("request_count", "put_count", "put_bytes")
    put_count: int = 0
    put_bytes: int = 0
    request_count: int = 0
    windows: Windows | None = None
    is_active: bool = False


class GroupStats(msgspec.Struct, gc=False):
    """Counters of one group in one topic."""

    FIGURES: ClassVar[tuple[str, ...]] = (
        "pull_count",
        "get_count",
        "get_bytes",
        "send_back_count",
        "wait_ms",
    )
    get_count: int = 0
    get_bytes: int = 0
    pull_count: int = 0
    send_back_count: int = 0
    wait_ms: int = 0  # for the disk
    windows: Windows | None = None
    is_active: bool = False


class LevelStats(msgspec.Struct, gc=False):
    """Counters of the messages that entered and left one delay level."""

    FIGURES: ClassVar[tuple[str, ...]] = ("put_count", "put_bytes", "get_count", "get_bytes")
    put_count: int = 0
    put_bytes: int = 0
    get_count: int = 0
    get_bytes: int = 0
    windows: Windows | None = None
    is_active: bool = False


def figures_of(source: Source) -> tuple[int, ...]:
    """Return the current values of the counters."""
    return tuple([getattr(source, name) for name in source.FIGURES])


class ActiveSources:
    """The active sources, and the times of the rounds, for sources that have missed some."""

    def __init__(self) -> None:
        self.active: dict[int, Source] = {}
        self.rounds = Rounds()

    def activate(self, source: Source) -> None:
        """Start sampling a source; call this before its figures change."""
        self.catch_up(source)
        source.is_active = True
        self.active[id(source)] = source

    def catch_up(self, source: Source) -> None:
        """Add the copies that an inactive source has missed."""
        if source.windows is not None and not source.is_active:
            source.windows.catch_up(self.rounds, figures_of(source))

    def remove(self, source: Source) -> None:
        self.active.pop(id(source), None)


class BrokerStats(Source):
    FIGURES: ClassVar[tuple[str, ...]] = ("put_count", "get_count")

    counts_delivered = True
    """Whether delayed messages count again when they are delivered."""

    def __init__(self) -> None:
        self._other_topics = TopicStats()  # of deleted topics, and of new ones above the bound
        self._other_groups = GroupStats()
        self.put_count = 0  # messages stored for clients
        self.put_failed_count = 0
        self.get_count = 0
        self.get_bytes = 0
        self.get_time_max_ms = 0  # that a pull waited for the disk
        self.found_count = 0  # pulls that found messages
        self.miss_count = 0  # pulls that did not
        self.cold_read_count = 0
        self.pull_seconds = latency_buckets()  # of pulls that were answered without being held
        self.send_back_count = 0
        self.busy_count = 0
        self.chosen_queue_count = 0  # sends whose queue the broker chose
        self.topics: dict[str, TopicStats] = {}
        self.groups: dict[tuple[str, str], GroupStats] = {}  # topic, group
        self.levels: dict[int, LevelStats] = {}  # queue id of the delayed messages
        self.sources = ActiveSources()
        self.sources.activate(self)  # for ever: its counters need no check

    @property
    def put_bytes(self) -> int:
        """Total size of the messages stored for clients, in bytes."""
        return self._other_topics.put_bytes + sum(s.put_bytes for s in self.topics.values())

    def count_put(self, topic: str, count: int, size: int, request_count: int = 1) -> None:
        """Count messages that were stored by `request_count` requests."""
        stats = self.topics.get(topic)
        if stats is None or not stats.is_active:
            stats = self._active_topic(topic)
        self.put_count += count
        stats.put_count += count
        stats.put_bytes += size
        stats.request_count += request_count

    def count_sends(
        self,
        totals: Iterable[tuple[str, int, int, int]],
        delays: Iterable[tuple[int, int, int]],
        backs: Iterable[tuple[str, str, int]],
    ) -> None:
        """Count the messages of one commit: all of them in `totals`, as (topic, requests, messages,
        bytes); those with a delay level also in `delays`, as (queue id, messages, bytes); those
        that consumers sent back also in `backs`, as (topic, group, messages).

        With hundreds of topics, this is faster than calling `count_put` for each.
        """
        topics, put_count = self.topics, 0
        for topic, request_count, count, size in totals:
            stats = topics.get(topic)
            if stats is None or not stats.is_active:
                stats = self._active_topic(topic)
            put_count += count
            stats.put_count += count
            stats.put_bytes += size
            stats.request_count += request_count
        self.put_count += put_count
        for level_id, count, size in delays:
            self.count_delayed(level_id, count, size)
        for topic, group, count in backs:
            self.count_send_backs(topic, group, count)

    def count_send_backs(self, topic: str, group: str, count: int) -> None:
        """Count messages of a topic that consumers of a group sent back."""
        self.send_back_count += count
        self.group(topic, group).send_back_count += count

    def count_get(self, topic: str, group: str, count: int, size: int) -> None:
        """Count messages that were returned by one pull."""
        self.found_count += 1
        self.get_count += count
        self.get_bytes += size
        stats = self.group(topic, group)
        stats.pull_count += 1
        stats.get_count += count
        stats.get_bytes += size

    def count_gets(self, totals: Iterable[tuple[str, str, int, int, int]]) -> tuple[int, int]:
        """Count (topic, group, pulls, messages, bytes); return all pulls and messages."""
        groups, all_pulls, all_messages = self.groups, 0, 0
        for topic, group, pull_count, count, size in totals:
            stats = groups.get((topic, group))
            if stats is None or not stats.is_active:
                stats = self.group(topic, group)
            all_pulls += pull_count
            all_messages += count
            self.get_bytes += size
            stats.pull_count += pull_count
            stats.get_count += count
            stats.get_bytes += size
        self.found_count += all_pulls
        self.get_count += all_messages
        return all_pulls, all_messages

    def count_delayed(self, queue_id: int, count: int, size: int) -> None:
        """Count messages whose delay begins, in addition to `count_put`."""
        level = self.level(queue_id)
        level.put_count += count
        level.put_bytes += size

    def count_delivered(self, topic: str, queue_id: int, count: int, size: int) -> None:
        """Count messages of one topic whose delay has elapsed, if `counts_delivered`.

        Each message counts as one pull from its level, and as one send to its topic.
        """
        if not self.counts_delivered:
            return
        level = self.level(queue_id)
        level.get_count += count
        level.get_bytes += size
        reader = self.group(SCHEDULE_TOPIC, SCHEDULE_GROUP)
        reader.pull_count += count
        reader.get_count += count
        reader.get_bytes += size
        self.count_put(topic, count, size, count)

    def count_wait(self, topic: str, group: str, waited_ms: int) -> None:
        """Count the time that a pull has waited for the disk, if it has."""
        self.group(topic, group).wait_ms += waited_ms
        self.get_time_max_ms = max(self.get_time_max_ms, waited_ms)

    def group(self, topic: str, group: str) -> GroupStats:
        """Return the counters of a group in a topic, to be incremented."""
        stats = self.groups.get((topic, group))
        if stats is None:
            if len(self.groups) >= SOURCES_MAX:
                return self._other_groups
            stats = self.groups[topic, group] = GroupStats()
        if not stats.is_active:
            self.sources.activate(stats)
        return stats

    def level(self, queue_id: int) -> LevelStats:
        """Return the counters of a delay level, to be incremented."""
        stats = self.levels.get(queue_id)
        if stats is None:
            stats = self.levels[queue_id] = LevelStats()
        if not stats.is_active:
            self.sources.activate(stats)
        return stats

    def forget_topic(self, topic: str) -> None:
        stats = self.topics.pop(topic, None)
        if stats is not None:
            self.sources.remove(stats)
            self._other_topics.put_bytes += stats.put_bytes
        for key in [key for key in self.groups if key[0] == topic]:
            self.sources.remove(self.groups.pop(key))

    def forget_group(self, group: str) -> None:
        for key in [key for key in self.groups if key[1] == group]:
            self.sources.remove(self.groups.pop(key))

    def _active_topic(self, topic: str) -> TopicStats:
        """Return the counters of a topic, to be incremented."""
        stats = self.topics.get(topic)
        if stats is None:
            if len(self.topics) < SOURCES_MAX:
                stats = self.topics[topic] = TopicStats()
            else:
                stats = self._other_topics
        if not stats.is_active:
            self.sources.activate(stats)
        return stats
