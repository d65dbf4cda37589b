# SPDX-License-Identifier: Apache-2.0

import errno
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from cometmq.broker.delays.delays import IDLE_INTERVAL_MS, STEP_INTERVAL_MS, Delays
from cometmq.broker.delays.finder import BATCH_COUNT_MAX
from cometmq.broker.delays.level import REPAIR_STEPS_MAX, DelayFile, delay_file
from cometmq.broker.delays.parking import Destinations, Parking
from cometmq.broker.delays.positions import Positions
from cometmq.broker.delays.recalled import Delayed
from cometmq.broker.messages import delay
from cometmq.broker.tables.subscription_groups import Groups
from cometmq.broker.tables.topics import Topics
from cometmq.remoting.log import NO_LOG
from cometmq.remoting.message.new_message import NewMessage, encode_record
from cometmq.remoting.message.properties import PropertyKey, render_properties
from cometmq.remoting.message.record import MessageRecord, decode_record
from cometmq.store.delay_levels import DelayLevels
from cometmq.store.errors import DiskError
from cometmq.store.queues.consume_queue import QueuePlan
from cometmq.store.queues.queue_files import ENTRY, FILLER
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
    return Delays(
        store,
        levels,
        Positions(delay_file(path), levels.numbers),
        driver=store,
        destinations=Destinations(topics, Groups(clock_ms=int)),
        parking=Parking(topics, store, host=HOST, monotonic_ms=int, log=NO_LOG),
        saver=cast("Any", ImmediateSaver()),
        repaired_count=repaired_count,
        wake_at=wake_at,
        host=HOST,
        log=NO_LOG,
    )


def step(delay_service: Delays, store: FakeStore, now_ms: int) -> None:
    store.now_ms = now_ms
    delay_service.step(now_ms)


def test_messages_move_when_due_and_not_before(store: FakeStore, path: str) -> None:
    store.add("a", 1_000)
    store.add("b", 2_000)
    delays = service(store, path)

    step(delays, store, 5_999)
    assert store.delivered == []
    step(delays, store, 6_000)
    assert store.delivered == ["a"]
    step(delays, store, 60_000)
    assert store.delivered == ["a", "b"]
    step(delays, store, 90_000)
    assert store.delivered == ["a", "b"]

    assert (store.copies[0].topic, store.copies[0].queue_id) == ("T", 3)
    assert delays.positions.offsets() == {LEVEL: 2}


def test_steps_are_rare_while_nothing_is_unsettled(store: FakeStore, path: str) -> None:
    delays = service(store, path)
    step(delays, store, 0)
    assert delays.step_interval_ms() == IDLE_INTERVAL_MS
    store.add("a", 1_000)
    step(delays, store, 1_500)
    assert delays.step_interval_ms() == IDLE_INTERVAL_MS, "woken when the message is due"
    step(delays, store, 6_000)
    assert store.delivered == ["a"]
    assert delays.step_interval_ms() == STEP_INTERVAL_MS, "the copy is not synced"
    store.flushed_offset = store.end
    step(delays, store, 6_100)
    step(delays, store, 6_200)
    assert delays.step_interval_ms() == IDLE_INTERVAL_MS


def test_the_next_step_is_when_the_next_message_is_due(store: FakeStore, path: str) -> None:
    times: list[int] = []
    delays = service(store, path, wake_at=times.append)
    for key, stored_ms in (("a", 1_000), ("b", 1_003), ("c", 2_500)):
        store.add(key, stored_ms)
    for now_ms, delivered, next_ms in (
        (2_500, "", 6_000), (3_000, "", 6_000), (6_000, "a", 6_003), (6_005, "ab", 7_500),
    ):  # fmt: skip
        times.clear()
        step(delays, store, now_ms)
        assert ("".join(store.delivered), min(filter(None, times))) == (delivered, next_ms)


def test_an_early_level_is_not_read_again(store: FakeStore, path: str) -> None:
    plans: list[int] = []
    plan = store.delayed.plan
    store.delayed.plan = lambda at, n: plans.append(at) or plan(at, n)  # type: ignore[assignment]
    delays = service(store, path)
    store.add("a", 1_000)
    for now_ms in (1_100, 2_000, 5_999):
        step(delays, store, now_ms)
    assert (plans, store.delivered) == ([0], [])
    step(delays, store, 6_000)
    step(delays, store, 7_000)
    assert (plans, store.delivered) == ([0, 0], ["a"])


def test_a_failed_delivery_is_retried_although_the_next_message_is_early(
    store: FakeStore, path: str
) -> None:
    delays = service(store, path)
    store.add("a", 1_000)
    store.add("b", 5_000)
    store.status = PutStatus.SERVICE_NOT_AVAILABLE
    step(delays, store, 6_000)
    assert delays.step_interval_ms() == STEP_INTERVAL_MS
    store.status = PutStatus.PUT_OK
    step(delays, store, 6_100)
    assert store.delivered == ["a"]


def test_a_clock_set_back_ends_the_wait_for_an_early_message(store: FakeStore, path: str) -> None:
    delays = service(store, path)
    store.add("a", 100_000)
    step(delays, store, 101_000)
    step(delays, store, 99_000)
    assert store.delivered == ["a"]


def test_a_clock_set_back_does_not_hold_messages_forever(store: FakeStore, path: str) -> None:
    store.add("a", 1_000_000)
    delays = service(store, path)
    step(delays, store, 10)
    assert store.delivered == ["a"]


def test_a_refused_copy_is_retried_before_later_messages(store: FakeStore, path: str) -> None:
    store.add("a", 0)
    store.add("b", 0)
    delays = service(store, path)

    store.status = PutStatus.SERVICE_NOT_AVAILABLE
    step(delays, store, 10_000)
    assert delays.positions.offsets() == {}
    store.status = PutStatus.PUT_OK
    step(delays, store, 10_100)

    assert store.delivered == ["a", "b"]
    assert delays.positions.offsets() == {LEVEL: 2}


def test_a_message_stored_while_an_earlier_one_failed_is_not_delivered_again(
    store: FakeStore, path: str
) -> None:
    for key in "abcd":
        store.add(key, 0)
    delays = service(store, path)
    put, failing = store.put, {b"b"}

    def put_some(message: NewMessage, done: PutDone) -> None:
        if message.body in failing:
            done(PutResult(PutStatus.SERVICE_NOT_AVAILABLE))
        else:
            put(message, done)

    store.put = put_some  # type: ignore[method-assign]
    step(delays, store, 10_000)
    assert (store.delivered, delays.positions.offsets()) == (["a", "c", "d"], {LEVEL: 1})
    failing.clear()
    step(delays, store, 10_100)
    assert (sorted(store.delivered), delays.positions.offsets()) == (list("abcd"), {LEVEL: 4})


def test_the_positions_of_levels_that_the_settings_lack_are_kept(
    store: FakeStore, path: str
) -> None:
    Path(path).write_bytes(b'{"offsetTable":{2:1,7:17}}')
    store.add("a", 0)
    store.add("b", 0)
    shorter = service(store, path, DelayLevels.parse("1s"))
    step(shorter, store, 10_000)
    shorter.save_at_end()
    assert store.delivered == []
    assert shorter.waiting.stranded() == {LEVEL: 1}
    assert delay_file(path).load() == DelayFile({2: 1, 7: 17})
    pieces = [msgspec.Raw(piece) for piece in shorter.positions.whole()]

    again = service(store, path)
    step(again, store, 10_000)
    assert store.delivered == ["b"]
    assert again.waiting.stranded() == {}

    other = service(store, str(Path(path).with_name("other")), DelayLevels.parse("1s"))
    other.positions.become(pieces)
    assert other.positions.offsets() == {2: 1, 7: 17}


def test_fillers_and_lost_records_are_skipped(store: FakeStore, path: str) -> None:
    store.add("a", 0)
    store.add("b", 0)
    store.delayed.entries = FILLER + store.delayed.entries
    store.records.pop(0)
    delays = service(store, path)

    step(delays, store, 10_000)

    assert store.delivered == ["b"]
    assert delays.positions.offsets() == {LEVEL: 3}


def test_trailing_lost_records_are_skipped_too(store: FakeStore, path: str) -> None:
    store.add("a", 0)
    store.add("b", 0)
    del store.records[max(store.records)]
    delays = service(store, path)

    step(delays, store, 10_000)

    assert store.delivered == ["a"]
    assert delays.positions.offsets() == {LEVEL: 2}


def test_positions_outside_the_queue_are_corrected(store: FakeStore, path: str) -> None:
    Path(path).write_bytes(b'{"offsetTable":{2:17}}')
    store.add("a", 0)
    delays = service(store, path)
    step(delays, store, 10_000)
    store.add("b", 5_000)
    step(delays, store, 10_000)
    assert store.delivered == ["b"]


@pytest.mark.parametrize("has_queue", [True, False])
def test_a_message_before_the_first_step_is_above_every_position(
    store: FakeStore, path: str, has_queue: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(path).write_bytes(b'{"offsetTable":{2:17}}')
    delays = service(store, path)
    with monkeypatch.context() as patch:
        if not has_queue:
            patch.setattr(store, "queue", lambda *_: None)
        delays.fit()
    store.add("a", 0)
    step(delays, store, 10_000)
    assert store.delivered == ["a"]


def test_a_position_above_the_queue_is_lowered_for_good(store: FakeStore, path: str) -> None:
    """Otherwise a restart before the first delivery would bring the old position back."""
    Path(path).write_bytes(b'{"offsetTable":{2:17}}')
    delays = service(store, path)
    delays.positions.noted = lambda: None
    delays.fit()
    assert [bytes(change) for change in delays.positions.noted_changes()] == [
        b'{"offsetTable":{"2":0}}'
    ]
    keys = [str(number) for number in range(20)]
    for key in keys:
        store.add(key, 0)
    again = service(store, path)
    again.fit()
    step(again, store, 10_000)
    assert store.delivered == keys

    delays.positions.restart()
    assert delays.positions.offsets() == {}


def test_a_position_is_saved_only_when_the_copy_is_on_the_disk(store: FakeStore, path: str) -> None:
    """Otherwise a power failure could destroy the copy after the position has moved past it."""
    store.add("a", 0)
    delays = service(store, path)

    step(delays, store, 10_000)
    assert not Path(path).exists()
    store.flushed_offset = store.end
    step(delays, store, 10_100)

    assert Path(path).read_bytes() == b'{"offsetTable":{"2":1}}'


def test_a_position_is_saved_only_when_the_replicas_have_the_copy(
    store: FakeStore, path: str
) -> None:
    """Otherwise a failover could lose the copy after the saved position had moved past it."""
    store.add("a", 0)
    delays = service(store, path)
    store.confirm_offset = store.end
    step(delays, store, 10_000)
    store.flushed_offset = store.end
    step(delays, store, 10_100)
    assert not Path(path).exists()

    store.confirm_offset = store.end
    step(delays, store, 10_200)

    assert Path(path).read_bytes() == b'{"offsetTable":{"2":1}}'


def test_a_restart_goes_back_to_the_saved_positions(store: FakeStore, path: str) -> None:
    store.add("a", 0)
    delays = service(store, path)
    step(delays, store, 10_000)
    assert store.delivered == ["a"]

    store.copies.clear()  # lost with the end of the log
    delays.positions.restart()
    assert delays.positions.offsets() == {}
    step(delays, store, 10_100)

    assert store.delivered == ["a"]


def test_after_a_restart_copies_that_survived_are_not_delivered_again(
    store: FakeStore, path: str
) -> None:
    store.add("a", 0)
    delays = service(store, path)
    step(delays, store, 10_000)

    delays.positions.restart()
    delays.expect_copies(10_100)
    step(delays, store, 10_100)

    assert store.delivered == ["a"]
    assert delays.counts.skipped == 1


def test_after_a_crash_copies_in_the_log_are_not_delivered_again(
    store: FakeStore, path: str
) -> None:
    store.add("a", 0)
    store.add("b", 1_000)
    step(service(store, path), store, 5_500)
    assert store.delivered == ["a"]

    recovered = service(store, path)
    recovered.expect_copies(5_500)
    step(recovered, store, 10_000)

    assert store.delivered == ["a", "b"]
    assert recovered.counts.skipped == 1
    assert recovered.positions.offsets() == {LEVEL: 2}


def test_a_clean_stop_saves_every_position(store: FakeStore, path: str) -> None:
    store.add("a", 0)
    delays = service(store, path)
    step(delays, store, 10_000)

    store.flushed_offset = store.end
    delays.save_at_end()
    step(service(store, path), store, 20_000)

    assert store.delivered == ["a"]


def test_a_stop_on_a_disk_that_fails_saves_no_position_of_an_unsynced_copy(
    store: FakeStore, path: str
) -> None:
    store.add("a", 0)
    delays = service(store, path)
    step(delays, store, 10_000)
    delays.save_at_end()
    found = delay_file(path).load()
    assert found is None or not found.offset_table


def test_an_unreadable_record_holds_up_its_own_level_only(store: FakeStore, path: str) -> None:
    store.add("a", 0)
    delays = service(store, path)
    queue_of = store.reader.queue
    broken = BrokenQueue()

    def queue(topic: str, queue_id: int) -> FakeQueue | None:
        return broken if queue_id == 0 else queue_of(topic, queue_id)

    store.queue = queue  # type: ignore[method-assign]
    step(delays, store, 10_000)
    assert store.delivered == ["a"]


def test_an_unreadable_record_holds_up_no_message_before_it(store: FakeStore, path: str) -> None:
    for key in "abcd":
        store.add(key, 0)
    read, broken = store.read_record, list(store.records)[2]

    def read_some(physical_offset: int) -> Lookup[MessageRecord | None]:
        if physical_offset == broken:
            raise DiskError("read", "commitlog", errno.EIO)
        return read(physical_offset)

    delays = service(store, path)
    delays.recall([Delayed(LEVEL, 0, DELAY_MS)], "a", 10)
    store.read_record = read_some  # type: ignore[method-assign]
    for now_ms in (10_000, 10_100):
        step(delays, store, now_ms)
        assert (store.delivered, delays.positions.offsets()) == (["b"], {LEVEL: 2})
    assert delays.counts.recalled == 1, "a message is counted once"
    store.read_record = read  # type: ignore[method-assign]
    step(delays, store, 10_200)
    assert store.delivered == ["b", "c", "d"]


def test_a_damaged_message_waits_until_another_copy_has_repaired_it(
    store: FakeStore, path: str
) -> None:
    keys = [str(number) for number in range(BATCH_COUNT_MAX + 1)]
    for key in keys:
        store.add(key, 0)
    store.damaged = set(list(store.records)[:2])
    delays = service(store, path, repaired_count=int)
    step(delays, store, 10_000)
    assert (store.delivered, delays.positions.offsets()) == (keys[2:-1], {})
    store.damaged.clear()
    step(delays, store, 10_100)
    assert store.delivered == [*keys[2:-1], *keys[:2], keys[-1]]


def test_a_damaged_message_holds_up_its_level_for_a_limited_time(
    store: FakeStore, path: str
) -> None:
    for key in "abc":
        store.add(key, 0)
    a, _, c = store.records
    store.damaged = {a, c}
    repaired = 0
    delays = service(store, path, repaired_count=lambda: repaired)
    for _ in range(REPAIR_STEPS_MAX - 1):
        step(delays, store, 10_000)
    assert delays.positions.offsets() == {}
    step(delays, store, 10_000)
    assert (store.delivered, delays.positions.offsets()) == (["b"], {LEVEL: 3})

    store.add("d", 0)
    store.damaged.add(max(store.records))
    step(delays, store, 10_000)
    assert delays.positions.offsets() == {LEVEL: 4}, (
        "no repair has succeeded, so no message waits again"
    )
    store.add("e", 0)
    store.damaged.add(max(store.records))
    repaired = 1
    step(delays, store, 10_000)
    assert delays.positions.offsets() == {LEVEL: 4}


def test_a_damaged_message_without_another_copy_is_passed(store: FakeStore, path: str) -> None:
    store.add("a", 0)
    store.damaged = set(store.records)
    delays = service(store, path)
    step(delays, store, 10_000)
    assert delays.positions.offsets() == {LEVEL: 1}


def test_another_message_with_the_same_unique_key_is_no_copy(store: FakeStore, path: str) -> None:
    """Clients choose the key, so a copy must also match in its queue, retry count and body."""
    store.add("a", 0)
    step(service(store, path), store, 5_500)
    store.add("a", 100)
    end = max(store.records)
    store.records[end] = msgspec.structs.replace(store.records[end], body=b"another")

    recovered = service(store, path)
    recovered.expect_copies(6_000)
    step(recovered, store, 10_000)

    assert store.delivered == ["a", "another"]


def test_a_backlog_with_lost_records_is_delivered_in_one_step(store: FakeStore, path: str) -> None:
    keys = [str(number) for number in range(3 * BATCH_COUNT_MAX + 5)]
    for key in keys:
        store.add(key, 0)
    # The last record of a batch, and the first of the next.
    for lost in (BATCH_COUNT_MAX - 1, BATCH_COUNT_MAX):
        del store.records[list(store.records)[lost]]
        del keys[lost]
    delays = service(store, path)

    step(delays, store, 10_000)

    assert store.delivered == keys
    assert delays.positions.offsets() == {LEVEL: 3 * BATCH_COUNT_MAX + 5}


def test_a_refusal_ends_a_backlogs_step(store: FakeStore, path: str) -> None:
    for number in range(2 * BATCH_COUNT_MAX):
        store.add(str(number), 0)
    delays = service(store, path)
    store.status = PutStatus.SERVICE_NOT_AVAILABLE

    step(delays, store, 10_000)
    assert store.delivered == []
    store.status = PutStatus.PUT_OK
    step(delays, store, 10_100)

    assert store.delivered == [str(number) for number in range(2 * BATCH_COUNT_MAX)]


def test_a_backlog_does_not_hold_up_a_stop(store: FakeStore, path: str) -> None:
    for number in range(2 * BATCH_COUNT_MAX):
        store.add(str(number), 0)
    delays = service(store, path)
    put = store.put

    def put_and_stop(message: NewMessage, done: PutDone) -> None:
        delays.stop()
        put(message, done)

    store.put = put_and_stop  # type: ignore[method-assign]
    step(delays, store, 10_000)
    step(delays, store, 10_100)

    assert len(store.delivered) == BATCH_COUNT_MAX
    assert delays.positions.offsets() == {LEVEL: BATCH_COUNT_MAX}


def test_levels_are_clamped() -> None:
    assert [LEVELS.clamp(level) for level in (1, 2, 3, 99)] == [1, 2, 2, 2]
