# SPDX-License-Identifier: Apache-2.0
"""Delayed messages whose records are lost, unreadable or damaged."""

import errno

import msgspec
import pytest

from cometmq.broker.delays.finder import BATCH_COUNT_MAX
from cometmq.broker.delays.level import REPAIR_STEPS_MAX
from cometmq.broker.delays.recalled import Delayed
from cometmq.remoting.message.record import MessageRecord
from cometmq.store.errors import DiskError
from cometmq.store.queues.queue_files import ENTRY, FILLER
from cometmq.store.reads import Lookup

from .conftest import DELAY_MS, LEVEL, BrokenQueue, FakeQueue, FakeStore, service, step


def test_fillers_and_lost_records_are_skipped(store: FakeStore, path: str) -> None:
    for key in "abc":
        store.add(key, 0)
    store.delayed.entries = FILLER + store.delayed.entries[len(FILLER) :]
    del store.records[list(store.records)[1]]
    delays = service(store, path)

    step(delays, store, 10_000)

    assert store.delivered == ["c"]
    assert delays.positions.offsets() == {LEVEL: 3}


def test_trailing_lost_records_are_skipped_too(store: FakeStore, path: str) -> None:
    store.add("a", 0)
    store.add("b", 0)
    del store.records[max(store.records)]
    delays = service(store, path)

    step(delays, store, 10_000)

    assert store.delivered == ["a"]
    assert delays.positions.offsets() == {LEVEL: 2}


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


@pytest.mark.parametrize("damage", ["zeros", "another message", "no record"])
def test_an_entry_that_leads_elsewhere_waits_for_its_repair(
    store: FakeStore, path: str, damage: str
) -> None:
    for key in "abcd":
        store.add(key, 0)
    whole, size = store.delayed.entries, ENTRY.size
    places = {"zeros": bytes(12), "another message": whole[3 * size : 3 * size + 12]}
    wrong = places.get(damage, (1).to_bytes(8, "big") + whole[size + 8 : size + 12])
    store.delayed.entries = whole[:size] + wrong + whole[size + 12 :]
    store.bounds = 0, store.end
    delays = service(store, path)
    for now_ms in (10_000, 10_100):
        step(delays, store, now_ms)
        assert (store.delivered, delays.positions.offsets()) == (["a", "c", "d"], {LEVEL: 1})
    assert store.misplaced == [[1], [1]]
    store.delayed.entries = whole
    step(delays, store, 10_200)
    assert store.delivered == ["a", "c", "d", "b"]
    assert delays.positions.offsets() == {LEVEL: 4}


def test_an_entry_that_cannot_be_repaired_is_passed_in_the_end(store: FakeStore, path: str) -> None:
    for key in "ab":
        store.add(key, 0)
    store.delayed.entries = bytes(12) + store.delayed.entries[12:]
    delays = service(store, path)
    for _ in range(2 * REPAIR_STEPS_MAX):
        step(delays, store, 10_000)
    assert (store.delivered, delays.positions.offsets()) == (["b"], {})
    store.may_be_repaired = False
    step(delays, store, 10_000)
    assert (store.delivered, delays.positions.offsets()) == (["b"], {LEVEL: 2})
