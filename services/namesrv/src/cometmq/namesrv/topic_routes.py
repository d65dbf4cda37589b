# SPDX-License-Identifier: Apache-2.0
"""The queues of each topic by broker group; pure.

An entry is one topic of one group. There may be a million entries, so methods that visit all topics
return `Steps` of a few milliseconds each; the table may change between two steps.

A removed group is invisible at once, but its entries are swept out of the table in steps
(`sweeping`). Its name may be used again only afterwards; otherwise the old entries would become
visible again.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

import msgspec

from cometmq.remoting.bodies.registrations import RegisteredTopic
from cometmq.remoting.bodies.route import QueueData
from cometmq.remoting.bodies.topic_config import TopicConfig
from cometmq.remoting.message.flags import Perm
from cometmq.runtime.incremental import Steps, finish

STEP_TOPICS: Final = 5_000
"""Number of topics that one step visits: 1 to 2 ms."""

AT_ONCE_TOPICS: Final = 50
"""Largest number of topics with which a removed group is swept at once, in 20 us: the end of one
connection may remove 64 groups.
"""

PUT_STEP_TOPICS: Final = 1_000
"""Number of topics that are added in one step of at most 2 ms."""

Topic = RegisteredTopic | TopicConfig
Queues = Mapping[str, QueueData]
"""A topic's queues by broker group."""


class TopicRoutes:
    """Every topic that at least one group has, with its queues in each group."""

    def __init__(self) -> None:
        self._topics: dict[str, dict[str, QueueData]] = {}
        self._counts: dict[str, int] = {}  # topics of each group
        self._removed: dict[str, int] = {}  # groups whose entries must be swept -> a serial number
        self._removed_count = 0
        self.entry_count = 0
        """The number of entries, without those of removed groups."""
        self.removed: Callable[[], None] = lambda: None
        """Called when `sweeping` must be run."""

    @property
    def count(self) -> int:
        """The number of topics, including topics that only removed groups have."""
        return len(self._topics)

    def of(self, topic: str) -> Queues:
        """Return the queues of a topic; empty if no group has it."""
        queues = self._topics.get(topic, {})
        if self._removed and not self._removed.keys().isdisjoint(queues):
            return {name: queue for name, queue in queues.items() if name not in self._removed}
        return queues

    def count_of(self, broker_name: str) -> int:
        """Return the number of topics of a group."""
        return self._counts.get(broker_name, 0)

    def has(self, broker_name: str, topic: str) -> bool:
        return broker_name in self._topics.get(topic, ()) and broker_name not in self._removed

    def is_removed(self, broker_name: str) -> bool:
        """Return whether a removed group's entries must be swept before its name is used again."""
        return broker_name in self._removed

    def putting(
        self, broker_name: str, topics: Iterable[Topic], may_go_on: Callable[[], bool]
    ) -> Steps[int]:
        """Set the queues of a group's topics; return the number of topics set.

        Topics with equal numbers of queues and permissions share one object: this saves memory.
        Stop if `may_go_on` returns False after a step.
        """
        number = 0
        shared: dict[tuple[int, int, int, int], QueueData] = {}
        for number, topic in enumerate(topics, 1):
            if not number % PUT_STEP_TOPICS:
                yield
                if not may_go_on():
                    return number
            numbers = (
                topic.read_queue_nums, topic.write_queue_nums, topic.perm, topic.topic_sys_flag,
            )  # fmt: skip
            queue = shared.get(numbers)
            if queue is None:
                queue = shared[numbers] = QueueData(
                    broker_name=broker_name,
                    read_queue_nums=topic.read_queue_nums,
                    write_queue_nums=topic.write_queue_nums,
                    perm=topic.perm,
                    topic_sys_flag=topic.topic_sys_flag,
                )
            queues = self._topics.setdefault(topic.topic_name, {})
            if broker_name not in queues:
                self._add(broker_name, 1)
            queues[broker_name] = queue
        return number

    def delete(self, topic: str, broker_names: Iterable[str] | None = None) -> list[str]:
        """Remove a topic from these broker groups, or from all; return those that had it."""
        queues = self._topics.get(topic, {})
        had = self.of(topic).keys()
        names = list(had if broker_names is None else had & set(broker_names))
        for broker_name in names:
            del queues[broker_name]
            self._add(broker_name, -1)
        if not queues:
            self._topics.pop(topic, None)
        return names

    def remove_group(self, broker_name: str) -> None:
        """Make a group's entries invisible. Sweep them at once if the table is small; otherwise
        call `removed`.
        """
        count = self._counts.pop(broker_name, 0)
        self.entry_count -= count
        if not count:
            return
        self._removed_count += 1
        self._removed[broker_name] = self._removed_count
        if len(self._topics) <= AT_ONCE_TOPICS:
            finish(self.sweeping())
        else:
            self.removed()

    def sweeping(self) -> Steps[None]:
        """Remove the entries of removed groups."""
        while self._removed:
            begun = dict(self._removed)
            for part in self._parts():
                for topic in part:
                    queues = self._topics.get(topic, {})
                    # Not `begun`: another sweep may have ended, and the name may be in use again.
                    for name in self._removed.keys() & queues.keys():
                        del queues[name]
                    if not queues:
                        self._topics.pop(topic, None)
                yield
            for name, number in begun.items():
                if self._removed.get(name) == number:
                    del self._removed[name]

    def selecting(self, accept: Callable[[Queues], bool] = bool) -> Steps[list[str]]:
        """Return the topics for whose queues `accept` returns True; by default, all topics."""
        found: list[str] = []
        for part in self._parts():
            found += [topic for topic in part if (queues := self.of(topic)) and accept(queues)]
            yield
        return found

    def with_flags(self, *, wanted: int, unwanted: int = 0) -> Steps[list[str]]:
        """Return the topics whose flags in their first group include all `wanted` and no `unwanted`
        ones.
        """
        examined, expected = int(wanted | unwanted), int(wanted)
        return self.selecting(
            lambda queues: next(iter(queues.values())).topic_sys_flag & examined == expected
        )

    def wiping_write_perm(self, broker_name: str) -> Steps[int]:
        """Remove write permission from a group's topics; return the number of topics."""
        kept = ~int(Perm.WRITE)  # the operators of an enum take a microsecond each
        return self._changing_perm(broker_name, lambda perm: perm & kept)

    def adding_write_perm(self, broker_name: str) -> Steps[int]:
        """Make all of a group's topics readable and writable; return the number of topics."""
        both = int(Perm.READ | Perm.WRITE)
        return self._changing_perm(broker_name, lambda _: both)

    def _changing_perm(self, broker_name: str, change: Callable[[int], int]) -> Steps[int]:
        """Change the permission of a group's topics; return the number of topics."""
        count = 0
        for part in self._parts():
            for topic in part:
                queue = self.of(topic).get(broker_name)
                if queue is not None:
                    changed = msgspec.structs.replace(queue, perm=change(queue.perm))
                    self._topics[topic][broker_name] = changed
                    count += 1
            yield
        return count

    def _parts(self) -> Iterator[list[str]]:
        topics = list(self._topics)
        for start in range(0, len(topics), STEP_TOPICS):
            yield topics[start : start + STEP_TOPICS]

    def _add(self, broker_name: str, count: int) -> None:
        self._counts[broker_name] = self._counts.get(broker_name, 0) + count
        self.entry_count += count
