# SPDX-License-Identifier: Apache-2.0
"""The queues of each topic by broker group; pure.

The table may have a million entries. Whatever visits all of its topics is a job in steps of a few
milliseconds, and the table may change between steps.

A removed group is invisible at once, but its entries leave the table in steps (`sweeping`). Its
name may be used again only after that; otherwise the old entries would become visible again.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, Protocol

import msgspec

from cometmq.remoting.bodies.route import QueueData
from cometmq.remoting.message.flags import Perm
from cometmq.runtime.incremental import Steps, finish

STEP_TOPICS: Final = 5_000
"""Number of topics that one step visits: 1 to 2 ms."""

AT_ONCE_TOPICS: Final = 50
"""Size of a table from which each removed group is swept at once, which takes 20 us: a connection
may end with 64 groups, and thousands may expire together.
"""

PUT_STEP_TOPICS: Final = 1_000
"""Number of topics that are added in one step of at most 2 ms."""

Queues = Mapping[str, QueueData]
"""A topic's queues by broker group."""


class Topic(Protocol):
    """The fields of a topic that routes consist of."""

    @property
    def topic_name(self) -> str: ...

    @property
    def read_queue_nums(self) -> int: ...

    @property
    def write_queue_nums(self) -> int: ...

    @property
    def perm(self) -> int: ...

    @property
    def topic_sys_flag(self) -> int: ...


class TopicRoutes:
    """All topics, and the groups that have them; there are no topics without groups."""

    def __init__(self) -> None:
        self._topics: dict[str, dict[str, QueueData]] = {}
        self._counts: dict[str, int] = {}  # topics of each group
        self._removed: dict[str, int] = {}  # groups whose entries must be swept -> a serial number
        self._removed_count = 0
        self.entry_count = 0
        """The number of topics, counted once for each group that has them."""
        self.removed: Callable[[], None] = lambda: None
        """Called when entries must be swept."""

    @property
    def count(self) -> int:
        """The number of topics, including those that must be swept."""
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
        """Return whether a group's entries must be swept before it may have new ones."""
        return broker_name in self._removed

    def putting(
        self, broker_name: str, topics: Iterable[Topic], may_go_on: Callable[[], bool]
    ) -> Steps[int]:
        """Set the queues of a group's topics, and return their number; equal queues share an
        object, as most are equal.

        Stop if the group may not go on after a step.
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
        """Make a group's entries invisible, and remove them; in a large table, later."""
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
                    # Not `begun`: another job may have swept a group, which may have returned.
                    for name in self._removed.keys() & queues.keys():
                        del queues[name]
                    if not queues:
                        self._topics.pop(topic, None)
                yield
            for name, number in begun.items():
                if self._removed.get(name) == number:
                    del self._removed[name]

    def selecting(self, accept: Callable[[Queues], bool] = bool) -> Steps[list[str]]:
        """Return the topics whose queues are accepted."""
        found: list[str] = []
        for part in self._parts():
            found += [topic for topic in part if (queues := self.of(topic)) and accept(queues)]
            yield
        return found

    def with_flags(self, *, wanted: int, unwanted: int = 0) -> Steps[list[str]]:
        """Return the topics whose first queue data has all `wanted` and no `unwanted` flags."""
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
