# SPDX-License-Identifier: Apache-2.0
"""Which groups have committed offsets in which topics, and how many."""

from collections import defaultdict
from collections.abc import Set as AbstractSet
from typing import Final

KEY_SEPARATOR: Final = "@"  # neither a topic nor a group name may contain it

NO_NAMES: Final[frozenset[str]] = frozenset()


class OffsetIndex:
    """Counts the entries of the table of offsets by group and topic; an entry is
    one queue's offset.
    """

    __slots__ = ("_group_counts", "_groups", "_topics", "count")

    def __init__(self) -> None:
        self.count = 0
        self._group_counts: defaultdict[str, int] = defaultdict(int)
        self._topics: defaultdict[str, dict[str, int]] = defaultdict(dict)
        """Group -> topic -> number of entries."""
        self._groups: defaultdict[str, set[str]] = defaultdict(set)

    def add(self, key: str, count: int) -> None:
        """Count entries that were added, or removed if the number is negative."""
        self.count += count
        topic, separator, group = key.partition(KEY_SEPARATOR)
        if not count or not separator or KEY_SEPARATOR in group:
            return  # a file may contain malformed keys
        self._group_counts[group] += count
        topics = self._topics[group]
        topics[topic] = topics.get(topic, 0) + count
        self._groups[topic].add(group)
        if topics[topic]:
            return
        del topics[topic]
        if not topics:
            del self._topics[group], self._group_counts[group]
        self._groups[topic].discard(group)
        if not self._groups[topic]:
            del self._groups[topic]

    def count_of(self, group: str) -> int:
        return self._group_counts.get(group, 0)

    def groups(self) -> AbstractSet[str]:
        """Return the groups that have offsets in any topic."""
        return self._topics.keys()

    def topics_of(self, group: str) -> AbstractSet[str]:
        topics = self._topics.get(group)
        return NO_NAMES if topics is None else topics.keys()

    def groups_of(self, topic: str) -> AbstractSet[str]:
        return self._groups.get(topic, NO_NAMES)
