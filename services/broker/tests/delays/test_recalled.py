# SPDX-License-Identifier: Apache-2.0
"""Recalled messages in the deliverer of delay levels: skipped, kept, and forgotten."""

from pathlib import Path

import pytest

from cometmq.broker.delays.recalled import AlreadyDue, Delayed, Recalled
from cometmq.remoting.message.new_message import NewMessage
from cometmq.store.results import PutDone, PutResult, PutStatus

from .conftest import DELAY_MS, LEVEL, FakeStore, ImmediateSaver, service, step


@pytest.fixture
def store() -> FakeStore:
    found = FakeStore()
    for key in ("a", "b", "c"):
        found.add(key, 1_000)
    return found


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "delayOffset.json")


B = Delayed(LEVEL, 1, 1_000 + DELAY_MS)


def test_an_entry_is_kept_until_the_saved_position_has_passed_it(
    store: FakeStore, path: str
) -> None:
    delays = service(store, path)
    step(delays, store, 2_000)
    delays.recall([B], "b", 2_000)
    step(delays, store, 6_000)
    assert store.delivered == ["a", "c"]
    assert delays.positions.recalled.as_table() == {LEVEL: {1: "b"}}, (
        "the copies could still be lost"
    )

    delays.positions.restart()
    step(delays, store, 6_100)
    assert store.delivered == ["a", "c", "a", "c"], "the saved position is before the first"
    store.flushed_offset = store.end
    step(delays, store, 6_200)
    assert (delays.positions.recalled.count, delays.positions.recalled.as_table()) == (0, {})


def test_the_file_has_the_entries(store: FakeStore, path: str) -> None:
    delays = service(store, path)
    delays.recall([B], "b", 2_000)
    ImmediateSaver().request(delays.positions)
    again = service(store, path)
    assert again.positions.recalled.as_table() == {LEVEL: {1: "b"}}
    step(again, store, 6_000)
    assert store.delivered == ["a", "c"]


def test_another_message_at_the_place_is_delivered(store: FakeStore, path: str) -> None:
    """A cut log may have a new message where a recalled one was."""
    delays = service(store, path)
    delays.recall([B], "lost", 2_000)
    step(delays, store, 6_000)
    assert store.delivered == ["a", "b", "c"]


def test_recalled_messages_do_not_wait(store: FakeStore, path: str) -> None:
    delays = service(store, path)
    delays.recall([B], "b", 2_000)
    assert delays.waiting.counts() == {LEVEL: 2}
    ImmediateSaver().request(delays.positions)
    again = service(store, path)
    assert again.waiting.counts() == {LEVEL: 2}
    step(again, store, 6_000)
    assert again.waiting.counts() == {LEVEL: 0}


def test_a_message_at_the_place_of_a_lost_one_waits(store: FakeStore, path: str) -> None:
    delays = service(store, path)
    delays.recall([B._replace(queue_offset=3)], "lost", 2_000)
    noted: list[bool] = []
    delays.positions.noted = lambda: noted.append(True)
    delays.fit()
    store.add("d", 1_000)
    assert (noted, delays.waiting.counts()) == ([True], {LEVEL: 4})


@pytest.mark.parametrize("now_ms", [1_000, 999])
def test_a_message_behind_a_clock_that_was_set_back_is_due(
    store: FakeStore, path: str, now_ms: int
) -> None:
    delays = service(store, path)
    if now_ms == 1_000:
        delays.recall([B], "b", now_ms)
        return
    with pytest.raises(AlreadyDue):
        delays.recall([B], "b", now_ms)


@pytest.mark.parametrize("clock_ms", [(500,), (6_000, 2_000)])
def test_a_message_on_its_way_is_not_recalled_after_the_clock_was_set(
    store: FakeStore, path: str, clock_ms: tuple[int, ...]
) -> None:
    delays = service(store, path)
    pending: list[NewMessage] = []
    store.put = lambda message, done: pending.append(message)  # type: ignore[method-assign]
    for now_ms in clock_ms:
        step(delays, store, now_ms)
    assert len(pending) == 3
    with pytest.raises(AlreadyDue):
        delays.recall([B], "b", 2_000)


def test_a_message_delivered_before_an_earlier_one_is_not_recalled(
    store: FakeStore, path: str
) -> None:
    delays = service(store, path)
    put = store.put

    def put_some(message: NewMessage, done: PutDone) -> None:
        if message.body == b"a":
            done(PutResult(PutStatus.SERVICE_NOT_AVAILABLE))
        else:
            put(message, done)

    store.put = put_some  # type: ignore[method-assign]
    for now_ms in (6_000, 2_000, 2_100):  # the clock is set back
        step(delays, store, now_ms)
    assert store.delivered == ["b", "c"]
    with pytest.raises(AlreadyDue):
        delays.recall([B], "b", 2_200)


def test_the_table() -> None:
    table = Recalled()
    table.update({1: {7: "x", 3: "y"}, 2: {4: "z"}})
    table.put(1, 7, "again")
    assert (table.count, table.key_at(1, 7), table.key_at(3, 7)) == (3, "again", None)
    assert [table.first(1, at) for at in (0, 3, 4, 7, 8)] == [3, 3, 7, 7, None]
    table.drop_below(1, 7)
    assert table.as_table() == {1: {7: "again"}, 2: {4: "z"}}
    other = {1: {7: "again", 9: "n"}}
    for change in table.changes_to(other):
        table.note(*change)
    assert (table.as_table(), table.count) == (other, 2)
    assert table.noted == {2: {4: ""}, 1: {9: "n"}}
    table.put(5, 5, "")
    table.drop_below(1, 100)
    assert (table.as_table(), table.first(1, 0)) == ({}, None)
