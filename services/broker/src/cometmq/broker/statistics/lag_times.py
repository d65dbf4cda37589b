# SPDX-License-Identifier: Apache-2.0
"""How old each group's oldest unread message is, measured in the background for metrics.

A store time must be read from the log, possibly from the disk, so a scrape cannot look it up. A
round visits all groups, in steps with a bounded number of groups and reads. While neither offsets
nor queues change, no round begins. The store time of a group's next message in a queue is kept, so
the log is read again only for queues in which the offset has changed.

The queues are those of the lag (`progress.progress_in`): all in which a topic has messages, whether
or not the group has committed an offset there, also of the group's retry topic.
"""

from collections.abc import Callable, Collection, Iterator
from typing import Any, Final, NamedTuple, TypeVar

from cometmq.broker.tables.offsets import KEY_SEPARATOR, Offsets
from cometmq.broker.tables.topics import QUEUE_NUMS_MAX
from cometmq.remoting.names import retry_topic
from cometmq.remoting.progress import position
from cometmq.store.queues.consume_queue import ConsumeQueue
from cometmq.store.reader import Reader
from cometmq.store.reads import Lookup, Pause

T = TypeVar("T")

STEP_SEARCHES_MAX: Final = 100  # about 2 ms
STEP_GROUPS_MAX: Final = 1_000  # about 1 ms, even if no group lags
STEP_QUEUES: Final = 1_024  # of one topic: about 1 ms

Key = tuple[str, str]  # topic, group


LookUp = Callable[[Lookup[Any], Callable[[Any], None], Callable[[Exception], None]], None]
"""Runs a search: `StoreReads.look_up`."""


class _Next(NamedTuple):
    """A group's next message in a queue. The queue is compared, too: a topic that is created again
    has new queues with the same offsets.
    """

    queue: ConsumeQueue
    offset: int
    stored_ms: int


class LagTimes:
    """The store time of the oldest unread message of each group that is behind."""

    def __init__(self) -> None:
        self.oldest_ms: dict[Key, int] = {}
        self._known: dict[str, dict[int, _Next]] = {}
        """The next messages of groups that are behind, by `topic@group` and queue id."""
        self._round: Iterator[str] = iter(())
        self._measured: tuple[int, tuple[int, int]] | None = None  # when the round began
        self._state: tuple[int, tuple[int, int]] | None = None  # after a complete round
        self._is_running = False

    def step(
        self, offsets: Offsets, groups: Collection[str], store: Reader, look_up: LookUp
    ) -> None:
        """Continue the round; do nothing while the searches of the last step wait for the disk.

        `groups` are the names of all configured groups, also of those without offsets.
        """
        if self._is_running or self._state == (offsets.version, store.bounds):
            return
        self._is_running = True
        look_up(self._measure(offsets, groups, store), self._ended, self._failed)

    def _ended(self, _: None) -> None:
        self._is_running = False

    def _failed(self, _: Exception) -> None:
        """Continue the round in the next step; the store itself reports failed reads."""
        self._is_running = False
        self._measured = None  # this round lacks a group: another one must follow

    def _measure(self, offsets: Offsets, groups: Collection[str], store: Reader) -> Lookup[None]:
        searches = 0
        for _ in range(STEP_GROUPS_MAX):
            key = next(self._round, None)
            if key is None:
                if self._measured == (now := (offsets.version, store.bounds)):
                    self._state = now
                    return
                self._measured = now
                self._begin_round(offsets, groups)
                return
            searches += yield from self._measure_group(key, offsets.table.get(key, {}), store)
            if searches >= STEP_SEARCHES_MAX:
                return

    def _measure_group(self, key: str, committed: dict[int, int], store: Reader) -> Lookup[int]:
        """Measure one group in one topic; return the number of searches."""
        topic, _, group = key.partition(KEY_SEPARATOR)
        known, behind, searches = self._known.get(key, {}), dict[int, _Next](), 0
        for queue_id in range(min(store.queue_count(topic), QUEUE_NUMS_MAX)):
            if queue_id % STEP_QUEUES == STEP_QUEUES - 1:
                yield Pause()
            queue = store.queue(topic, queue_id)
            if queue is None:
                continue
            offset = position(committed.get(queue_id), queue.min_offset)
            if offset >= queue.max_offset:
                continue
            following = known.get(queue_id)
            if following is None or following.queue is not queue or following.offset != offset:
                searches += 1
                stored_ms = yield from store.store_time(topic, queue_id, offset)
                following = _Next(queue, offset, stored_ms)
            behind[queue_id] = following
        if behind:
            self._known[key] = behind
        else:
            self._known.pop(key, None)
        oldest_ms = min((it.stored_ms for it in behind.values() if it.stored_ms >= 0), default=None)
        if oldest_ms is not None:
            self.oldest_ms[topic, group] = oldest_ms
        else:
            self.oldest_ms.pop((topic, group), None)
        return searches

    def _begin_round(self, offsets: Offsets, groups: Collection[str]) -> None:
        self._round = _keys(offsets, groups)
        for key in list(self._known):
            topic, _, group = key.partition(KEY_SEPARATOR)
            is_group = group in groups or group in offsets.index.groups()
            if key not in offsets.table and not (is_group and topic == retry_topic(group)):
                del self._known[key]
                self.oldest_ms.pop((topic, group), None)


def _keys(offsets: Offsets, groups: Collection[str]) -> Iterator[str]:
    """Yield each `topic@group` with offsets, then the retry topics, in which a group may have none
    yet; those with offsets are yielded again.
    """
    yield from list(offsets.table)
    for group in dict.fromkeys([*offsets.index.groups(), *groups]):
        yield f"{retry_topic(group)}{KEY_SEPARATOR}{group}"
