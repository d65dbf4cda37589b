# SPDX-License-Identifier: Apache-2.0
"""Counters of the broker: plain integers, read at scrape and by admin commands.

The loop only adds; rates come from snapshots that a timer takes once a second for an hour's
worth of windows that RocketMQ's tools ask for (10 s, 1 min, 10 min).
"""

from collections import deque
from typing import Final

import msgspec

SAMPLE_INTERVAL_MS: Final = 1_000
SAMPLE_COUNT_MAX: Final = 601
WINDOWS_S: Final = (10, 60, 600)


class TopicStats(msgspec.Struct, gc=False):
    """What was sent to one topic."""

    put_count: int = 0
    put_bytes: int = 0


class GroupStats(msgspec.Struct, gc=False):
    """What one group did in one topic."""

    get_count: int = 0
    get_bytes: int = 0
    pull_count: int = 0
    send_back_count: int = 0


class Sample(msgspec.Struct, gc=False, frozen=True):
    """The totals at one moment."""

    at_ms: int
    put_count: int = 0
    get_count: int = 0
    found_count: int = 0
    miss_count: int = 0


class BrokerStats:
    """All counters."""

    __slots__ = (
        "_put_before",
        "any_queue_count",
        "busy_count",
        "cold_read_count",
        "delayed_count",
        "delivered_count",
        "found_count",
        "get_bytes",
        "get_count",
        "groups",
        "held_count",
        "miss_count",
        "put_failed_count",
        "samples",
        "send_back_count",
        "send_without_permission_count",
        "topics",
    )

    def __init__(self) -> None:
        self._put_before = TopicStats()  # what topics had that were deleted
        self.put_failed_count = 0
        self.get_count = 0
        self.get_bytes = 0
        self.found_count = 0  # pulls that found messages
        self.miss_count = 0  # pulls that did not
        self.held_count = 0  # pulls that were held
        self.cold_read_count = 0
        self.send_back_count = 0
        self.delayed_count = 0
        self.delivered_count = 0
        self.busy_count = 0
        self.any_queue_count = 0  # sends that left the queue to the broker
        self.send_without_permission_count = 0
        self.topics: dict[str, TopicStats] = {}
        self.groups: dict[tuple[str, str], GroupStats] = {}  # topic, group
        self.samples: deque[Sample] = deque(maxlen=SAMPLE_COUNT_MAX)

    @property
    def put_count(self) -> int:
        """Messages stored."""
        return self._put_before.put_count + sum(s.put_count for s in self.topics.values())

    @property
    def put_bytes(self) -> int:
        """Bytes of the messages stored."""
        return self._put_before.put_bytes + sum(s.put_bytes for s in self.topics.values())

    def count_put(self, topic: str, count: int, size: int) -> None:
        """Count stored messages."""
        stats = self.topics.get(topic)
        if stats is None:
            stats = self.topics[topic] = TopicStats()
        stats.put_count += count
        stats.put_bytes += size

    def count_get(self, topic: str, group: str, count: int, size: int) -> None:
        """Count delivered messages."""
        self.found_count += 1
        self.get_count += count
        self.get_bytes += size
        stats = self.group(topic, group)
        stats.pull_count += 1
        stats.get_count += count
        stats.get_bytes += size

    def group(self, topic: str, group: str) -> GroupStats:
        """Return the counters of a group in a topic."""
        stats = self.groups.get((topic, group))
        if stats is None:
            stats = self.groups[topic, group] = GroupStats()
        return stats

    def forget_topic(self, topic: str) -> None:
        """Drop the counters of a deleted topic."""
        stats = self.topics.pop(topic, None)
        if stats is not None:
            self._put_before.put_count += stats.put_count
            self._put_before.put_bytes += stats.put_bytes
        for key in [key for key in self.groups if key[0] == topic]:
            del self.groups[key]

    def forget_group(self, group: str) -> None:
        """Drop the counters of a deleted group."""
        for key in [key for key in self.groups if key[1] == group]:
            del self.groups[key]

    def sample(self, now_ms: int) -> None:
        """Remember the totals of this moment."""
        self.samples.append(
            Sample(now_ms, self.put_count, self.get_count, self.found_count, self.miss_count)
        )

    def rate(self, field: str, window_s: int) -> float:
        """Return how much a total of `Sample` grew per second over the last seconds."""
        if len(self.samples) < 2:
            return 0.0
        newest = self.samples[-1]
        oldest = self.samples[max(0, len(self.samples) - 1 - window_s)]
        elapsed_s = (newest.at_ms - oldest.at_ms) / 1000
        if elapsed_s <= 0:
            return 0.0
        return float(getattr(newest, field) - getattr(oldest, field)) / elapsed_s
