# SPDX-License-Identifier: Apache-2.0
"""Delivers due delayed messages in native code: copies a whole batch at once within the log.

The native code delivers the plain messages at the head of a level. `delays.py` delivers all other
messages, and remains responsible for positions and counters.

`services/broker/tests/lanes/test_due_runs.py` tests that both paths produce the same log.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from cometmq.broker.delays.level import NextDue
from cometmq.broker.delays.parking import Reason
from cometmq.broker.native import Breaker, accel
from cometmq.broker.settings import BrokerSettings
from cometmq.remoting.log import Log
from cometmq.remoting.message.new_message import NewMessage
from cometmq.remoting.message.record_layout import BLANK_BYTES_MIN
from cometmq.remoting.names import HALF_TOPIC, SCHEDULE_TOPIC
from cometmq.store.index.index_format import KeyedRows
from cometmq.store.queues.queue_files import ENTRY
from cometmq.store.queues.record_check import has_topic, is_at, topic_field
from cometmq.store.reader import Reader
from cometmq.store.reads import Lookup
from cometmq.store.results import PutResult, PutStatus
from cometmq.store.writing.runs import CreateQueue, PlacedRun, Queues

if TYPE_CHECKING:
    from cometmq.accel import DueRecords

RUN_COUNT_MAX: Final = 512  # 0.7 ms of a turn of the loop
RUN_BYTES_MAX: Final = 256 * 1024
_LEVEL_FIELD: Final = topic_field(SCHEDULE_TOPIC)


class Delivered(NamedTuple):
    """Messages of a level that were delivered in one commit, or could not be: the `PutResult` that
    is passed with them tells which. They are contiguous in the level, and their copies in the log.
    """

    message_count: int
    next_offset: int
    """The level's queue offset after the last message."""
    copy_end: int
    """The end of the last copy in the log; -1 if no copy was written."""
    totals: Sequence[tuple[str, int, int]]
    """Topic, number of messages and bytes, for each topic."""


RunDone = Callable[[Delivered, PutResult], None]


class Times(NamedTuple):
    """The times that determine which messages of a level are due."""

    now_ms: int
    due_at_most: int
    """A due time later than this means that the clock was set back, so the message is due now."""
    copied_until_ms: int
    """Messages due by this time may have been delivered before a crash."""


class DueRuns:
    """Finds due messages that the native code can deliver."""

    def __init__(
        self, store: Reader, *, host: bytes, settings: Callable[[], BrokerSettings], log: Log
    ) -> None:
        """`host` is the broker's address in records; `settings` returns the current settings."""
        self._store, self._host, self._settings = store, host, settings
        self.breaker = Breaker("delays", log)
        self.delivered_count = 0

    def find(
        self,
        entries: bytes,
        level_number: int,
        first_offset: int,
        times: Times,
        has_queues: Callable[[str, int], bool],
    ) -> "Lookup[DueRun | None]":
        """Find due messages at the head of a level; None if Python must examine the first one.

        `entries` are the level's entries, starting at `first_offset`. `has_queues` returns whether
        a topic has at least this many queues; if not, Python decides where the message goes. The
        native code stops at an entry whose record does not follow the record of the entry before.
        """
        if self.breaker.is_open:
            return None
        settings = self._settings()
        file_size = settings.mapped_file_size_commit_log
        with self.breaker:
            count, ends_at_undue, places = accel.select_due(
                entries,
                now_ms=times.now_ms,
                due_at_most=times.due_at_most,
                copied_until=times.copied_until_ms,
                file_size=file_size,
                bytes_max=RUN_BYTES_MAX,
            )
            spans = []
            for offset, size in places:
                data = yield from self._store.read_span(offset, size)
                if data is None:
                    return None
                spans.append((offset, bytes(data)))
            if not spans or not _is_first(spans[0], entries, level_number, first_offset):
                return None
            records = accel.DueRecords(
                entries[: count * ENTRY.size],
                spans,
                store_host=self._host,
                body_bytes_max=settings.max_message_size,
                record_bytes_max=file_size - BLANK_BYTES_MIN,
                delayed_topic=SCHEDULE_TOPIC,
                half_topic=HALF_TOPIC,
                now_ms=times.now_ms,
            )
            if not records.count or not all(has_queues(*target) for target in records.targets()):
                return None
            is_behind = records.count < count or not ends_at_undue
            next_due = None
            if not is_behind:
                _, _, due_ms = ENTRY.unpack_from(entries, count * ENTRY.size)
                next_due = NextDue(first_offset + count, due_ms)
            return DueRun(self, records, first_offset, is_behind, next_due)
        return None


def _is_first(
    span: tuple[int, bytes], entries: bytes, level_number: int, first_offset: int
) -> bool:
    """Return whether the first record is the one for which its entry stands."""
    _, size, _ = ENTRY.unpack_from(entries)
    record = memoryview(span[1])
    place = size, level_number - 1, first_offset, span[0]
    return is_at(record, place) and has_topic(record, _LEVEL_FIELD)


@dataclass(slots=True)
class DueRun:
    """The due messages of one level, as input for the store; see `cometmq.store.writing.runs`."""

    runs: DueRuns
    records: "DueRecords"
    first_offset: int
    """The first message's offset in the queue of its level."""
    is_behind: bool
    """Whether more messages of the level may be due."""
    next_due: NextDue | None
    done: RunDone = lambda _delivered, _result: None  # set by the level

    def place(  # see RunSource
        self,
        first: int,
        count: int,
        offset: int,
        file_end: int,
        store_timestamp: int,
        queues: Queues,
        create: CreateQueue,
    ) -> PlacedRun:
        """Encode the copies at their position in the log."""
        with self.runs.breaker:
            placed, records, entries, keys, totals = self.records.place(
                first, count, offset, file_end, store_timestamp, queues, create
            )
            next_offset = self.first_offset + first + placed
            delivered = Delivered(placed, next_offset, offset + len(records), totals)
            answer = partial(self._stored, delivered)
            return placed, placed, records, entries, keys, [(False, answer, placed)]
        # The run counts as placed but writes no byte, so the level's position is left unchanged.
        failed = partial(self._refuse_placed, first, count)
        return count, 0, b"", [], KeyedRows(), [(False, failed, count)]

    def refuse(self, first: int, count: int, result: PutResult) -> None:
        """Report to the level that messages were not placed."""
        self.done(Delivered(count, self.first_offset + first, -1, ()), result)

    def release(self) -> None:
        """Do nothing: a run ends with its commit."""

    def _stored(self, delivered: Delivered, result: PutResult) -> None:
        if result.status.is_stored:
            self.runs.delivered_count += delivered.message_count
        self.done(delivered, result)

    def _refuse_placed(self, first: int, count: int, _result: PutResult) -> None:
        self.refuse(first, count, PutResult(PutStatus.UNKNOWN_ERROR))


class Skip(Enum):
    """Why an entry of a level needs no delivery."""

    FILLER = "filler"
    MISSING = "missing"
    DAMAGED = "damaged"
    MISPLACED = "misplaced"
    """The entry leads to another record or to none."""
    RECALLED = "recalled"
    COPIED = "copied"


class Due(NamedTuple):
    """One due entry of a level."""

    queue_offset: int
    physical_offset: int
    message: NewMessage | Skip
    reason: Reason | None = None
    """Why the message is parked instead of delivered."""


class DueBatch(NamedTuple):
    """The due entries that Python delivers next, whether more of the level may be due
    (`is_behind`), and the first entry that is not due, if it was seen.
    """

    entries: list[Due]
    is_behind: bool
    next_due: NextDue | None = None


Found = DueBatch | DueRun
