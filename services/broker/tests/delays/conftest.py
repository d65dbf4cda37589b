# SPDX-License-Identifier: Apache-2.0
"""A delay service over a store in memory that has one delay queue."""

import errno
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from cometmq.broker.delays.delays import Delays
from cometmq.broker.delays.finder import Finder
from cometmq.broker.delays.level import delay_file
from cometmq.broker.delays.parking import Destinations, Parking
from cometmq.broker.delays.positions import Positions
from cometmq.broker.delays.wheel import Wheel, WheelFiles
from cometmq.broker.messages import delay
from cometmq.broker.statistics.counters import BrokerStats
from cometmq.broker.storing.large_puts import LargePuts
from cometmq.broker.tables.subscription_groups import Groups
from cometmq.broker.tables.topics import Topics
from cometmq.remoting.log import NO_LOG
from cometmq.remoting.message.new_message import NewMessage, encode_record
from cometmq.remoting.message.properties import PropertyKey, render_properties
from cometmq.remoting.message.record import MessageRecord, decode_record
from cometmq.store.delay_levels import DelayLevels
from cometmq.store.errors import DiskError
from cometmq.store.queues.consume_queue import QueuePlan
from cometmq.store.queues.queue_files import ENTRY
from cometmq.store.reads import Lookup, finish
from cometmq.store.results import PutDone, PutResult, PutStatus, QueryResult
from cometmq.store.settings import CQ_ENTRY_BYTES

HOST = bytes([127, 0, 0, 1, 0, 0, 0x2A, 0x9F])
LEVELS = DelayLevels.parse("1s 5s")
LEVEL = 2
DELAY_MS = 5_000


class FakeQueue:
    def __init__(self) -> None:
        self.entries = b""
        self.min_offset = 0

    @property
    def max_offset(self) -> int:
        return len(self.entries) // CQ_ENTRY_BYTES

    def plan(self, offset: int, count: int) -> QueuePlan:
        data = self.entries[offset * CQ_ENTRY_BYTES : (offset + count) * CQ_ENTRY_BYTES]
        return QueuePlan((), data)


class BrokenQueue(FakeQueue):
    max_offset = 1

    def plan(self, offset: int, count: int) -> QueuePlan:
        raise DiskError("read", f"{offset}-{count}", errno.EIO)


class FakeReads:
    def look_up(self, lookup, done, failed) -> None:
        try:
            found = finish(lookup)
        except DiskError as error:
            failed(error)
        else:
            done(found)


class FakeStore:
    """A store with one delay queue; stored messages are kept and found by their unique key."""

    def __init__(self) -> None:
        self.reader = self.upkeep = self.flusher = self.commit_log = self
        self.delayed = FakeQueue()
        self.reads = FakeReads()
        self.records: dict[int, MessageRecord] = {}
        self.damaged: set[int] = set()
        self.copies: list[MessageRecord] = []
        self.misplaced: list[Sequence[int]] = []
        self.may_be_repaired = True
        self.bounds = 0, 0
        self.status = PutStatus.PUT_OK
        self.end = 0
        self.flushed_offset = 0
        self.confirm_offset = 1 << 40

    def add(self, key: str, stored_ms: int) -> None:
        text = render_properties({PropertyKey.UNIQUE_KEY: key, PropertyKey.DELAY: str(LEVEL)})
        message = NewMessage("T", 3, 0, 0, 0, HOST, HOST, key.encode(), text)
        delay(message, LEVEL)
        record = encode_record(message, self.delayed.max_offset, self.end, stored_ms)
        self.records[self.end] = decode_record(record)
        self.delayed.entries += ENTRY.pack(self.end, len(record), stored_ms + DELAY_MS)
        self.end += len(record)

    def queue(self, topic: str, queue_id: int) -> FakeQueue | None:
        is_level = (topic, queue_id) == ("SCHEDULE_TOPIC_XXXX", LEVEL - 1)
        return self.delayed if is_level else None

    def read_record(self, physical_offset: int) -> Lookup[MessageRecord | None]:
        yield from ()
        return None if physical_offset in self.damaged else self.records.get(physical_offset)

    def awaits_repair(self, _queue: FakeQueue, queue_offsets: Sequence[int]) -> bool:
        self.misplaced.append(queue_offsets)
        return self.may_be_repaired

    def is_damaged(self, physical_offset: int) -> Lookup[bool]:
        yield from ()
        return physical_offset in self.damaged

    def query(self, topic: str, key: str, _count: int, begin: int, end: int):
        found = [
            copy
            for copy in self.copies
            if copy.unique_key == key and copy.topic == topic and begin <= copy.store_timestamp
        ]
        yield from ()
        return QueryResult([copy for copy in found if copy.store_timestamp <= end], 0, 0)

    def put(self, message: NewMessage, done: PutDone) -> None:
        if not self.status.is_stored:
            done(PutResult(self.status))
            return
        record = encode_record(message, len(self.copies), self.end, self.now_ms)
        self.copies.append(decode_record(record))
        result = PutResult(self.status, self.end, len(record))
        self.end += len(record)
        done(result)

    def put_batch(self, messages: Sequence[NewMessage], done: PutDone) -> None:
        (message,) = messages
        self.put(message, done)

    now_ms = 0

    @property
    def delivered(self) -> list[str]:
        return [copy.body.decode() for copy in self.copies]


class ImmediateSaver:
    def request(self, table) -> None:
        table.file.write(table.encode_for_file())

    def request_if_dirty(self, table) -> None:
        if table.is_dirty:
            self.request(table)


@pytest.fixture
def store() -> FakeStore:
    return FakeStore()


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "delayOffset.json")


def service(
    store: Any,
    path: str,
    levels: DelayLevels = LEVELS,
    repaired_count: Callable[[], int] | None = None,
    wake_at: Callable[[int], None] = lambda _: None,
) -> Delays:
    topics = Topics(clock_ms=int)
    topics.create("T", queue_nums=4)
    puts = LargePuts(store)
    positions = Positions(delay_file(path), levels.numbers)
    wheel = Wheel(store, levels, WheelFiles(str(Path(path).parent)), host=HOST)
    destinations = Destinations(topics, Groups(clock_ms=int))
    return Delays(
        positions,
        Finder(store, positions.recalled, destinations, levels, wheel, HOST),
        puts=puts,
        saver=cast("Any", ImmediateSaver()),
        parking=Parking(topics, puts, host=HOST, monotonic_ms=int, log=NO_LOG),
        stats=BrokerStats(),
        wake_at=wake_at,
        repaired_count=repaired_count,
        log=NO_LOG,
    )


def step(delay_service: Delays, store: FakeStore, now_ms: int) -> None:
    store.now_ms = now_ms
    delay_service.step(now_ms)
