# SPDX-License-Identifier: Apache-2.0
"""When delayed messages are delivered, and which positions are saved."""

from pathlib import Path

import msgspec
import pytest

from cometmq.broker.delays.delays import IDLE_INTERVAL_MS, STEP_INTERVAL_MS
from cometmq.broker.delays.finder import BATCH_COUNT_MAX
from cometmq.broker.delays.level import DelayFile, delay_file
from cometmq.remoting.message.new_message import NewMessage
from cometmq.store.delay_levels import DelayLevels
from cometmq.store.results import PutDone, PutResult, PutStatus

from .conftest import LEVEL, FakeStore, service, step


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


def test_a_stop_on_a_disk_that_fails_saves_no_position_of_an_unsynced_copy(
    store: FakeStore, path: str
) -> None:
    store.add("a", 0)
    delays = service(store, path)
    step(delays, store, 10_000)
    delays.save_at_end()
    found = delay_file(path).load()
    assert found is None or not found.offset_table


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
