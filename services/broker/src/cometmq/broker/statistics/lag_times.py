# SPDX-License-Identifier: Apache-2.0
"""How old each group's oldest unread message is, measured in the background for metrics.

A store time must be read from the log, possibly from the disk, so a scrape cannot look it up. A
round visits all groups, in steps with a bounded number of groups and reads. While neither offsets
nor queues change, no round begins. The store time of a group's next message in a queue is kept, so
the log is read again only for queues in which the offset has changed.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

from cometmq.broker.tables.offset_index import KEY_SEPARATOR
from cometmq.broker.tables.offsets import Offsets
from cometmq.remoting.progress import position
from cometmq.store.queues.consume_queue import ConsumeQueue
from cometmq.store.reader import Reader
from cometmq.store.reads import Lookup

T = TypeVar("T")

STEP_INTERVAL_MS: Final = 1_000
STEP_SEARCHES_MAX: Final = 100  # about 2 ms
STEP_GROUPS_MAX: Final = 1_000  # about 1 ms, even if no group lags

Key = tuple[str, str]  # topic, group


LookUp = Callable[[Lookup[Any], Callable[[Any], None], Callable[[Exception], None]], None]
"""Runs a search: `StoreReads.look_up`."""


class LagTimes:
    """The store time of the oldest unread message of each group that is behind."""

    def __init__(self) -> None:
        self.oldest_ms: dict[Key, int] = {}
        self._known: dict[tuple[str, int], tuple[ConsumeQueue, int, int]] = {}
        """The queue, offset and store time of a group's next message, by key and queue id. The
        queue is compared, too: a topic that is created again has new queues with the same offsets.
        """
        self._round: Iterator[str] = iter(())
        self._measured: tuple[int, tuple[int, int]] | None = None  # when the round began
        self._state: tuple[int, tuple[int, int]] | None = None  # after a complete round
        self._is_running = False

    def step(self, offsets: Offsets, store: Reader, look_up: LookUp) -> None:
        """Continue the round; do nothing while the searches of the last step wait for the disk."""
        if self._is_running or self._state == (offsets.version, store.bounds):
            return
        self._is_running = True
        look_up(self._measure(offsets, store), self._ended, self._failed)

    def _ended(self, _: None) -> None:
        self._is_running = False

    def _failed(self, _: Exception) -> None:
        """Continue the round in the next step after a failed read, which the store itself
        reports.
        """
        self._is_running = False
        self._measured = None  # this round lacks a group: another one must follow

    def _measure(self, offsets: Offsets, store: Reader) -> Lookup[None]:
        searches = 0
        for _ in range(STEP_GROUPS_MAX):
            key = next(self._round, None)
            if key is None:
                if self._measured == (now := (offsets.version, store.bounds)):
                    self._state = now
                    return
                self._measured = now
                self._begin_round(offsets)
                return
            searches += yield from self._measure_group(key, offsets.table.get(key, {}), store)
            if searches >= STEP_SEARCHES_MAX:
                return

    def _measure_group(self, key: str, queues: dict[int, int], store: Reader) -> Lookup[int]:
        """Measure one group in one topic; return the number of searches."""
        topic, _, group = key.partition(KEY_SEPARATOR)
        searches, oldest_ms = 0, -1
        for queue_id, committed in list(queues.items()):
            queue = store.queue(topic, queue_id)
            offset = 0 if queue is None else position(committed, queue.min_offset)
            if queue is None or offset >= queue.max_offset:
                self._known.pop((key, queue_id), None)
                continue
            known = self._known.get((key, queue_id))
            if known is None or known[0] is not queue or known[1] != offset:
                searches += 1
                stored_ms = yield from store.store_time(topic, queue_id, offset)
                known = self._known[key, queue_id] = queue, offset, stored_ms
            if known[2] >= 0 and (oldest_ms < 0 or known[2] < oldest_ms):
                oldest_ms = known[2]
        if oldest_ms >= 0:
            self.oldest_ms[topic, group] = oldest_ms
        else:
            self.oldest_ms.pop((topic, group), None)
        return searches

    def _begin_round(self, offsets: Offsets) -> None:
        table = offsets.table
        self._round = iter(list(table))
        gone = [key for key in self._known if key[0] not in table]
        for known in gone:
            del self._known[known]
        for topic, group in list(self.oldest_ms):
            if f"{topic}{KEY_SEPARATOR}{group}" not in table:
                del self.oldest_ms[topic, group]
