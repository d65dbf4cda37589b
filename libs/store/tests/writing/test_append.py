# SPDX-License-Identifier: Apache-2.0
"""In a commit of many puts, each put gets the same position and bytes as if committed alone."""

import errno
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cometmq.remoting.message.new_message import NewMessage
from cometmq.store import writer
from cometmq.store.results import PutResult, PutStatus
from cometmq.store.writing import append
from cometmq.testing.store.builders import StoreRig, make_message, small_settings
from cometmq.testing.store.memory_disk import MemoryDisk

UNENCODABLE = 1 << 40  # a sysFlag too large for a record; only the encoder checks it
PREPARED, ROLLBACK = 0x4, 0xC

messages = st.builds(
    make_message,
    topic=st.sampled_from(["T", "U", "bad topic", "t" * 128]),
    queue_id=st.integers(-1, 2),
    body=st.one_of(st.binary(max_size=600), st.just(b"x" * 5_000)),
    tags=st.sampled_from([None, "a"]),
    keys=st.sampled_from([None, "k1 k2"]),
    unique_key=st.sampled_from([None, "0A"]),
    sys_flag=st.sampled_from([0, 0, 0, 0, PREPARED, ROLLBACK, UNENCODABLE]),
    properties=st.sampled_from([None, None, None, {"P": "ü" * 16_400}, {"P": "p" * 33_000}]),
)
puts = st.lists(
    st.one_of(messages, messages, st.lists(messages, min_size=1, max_size=3)), max_size=12
)


def stored(
    every: list[NewMessage | list[NewMessage]], *, at_once: bool, step_count: int | None = None
) -> tuple[dict[int, PutResult], dict[str, bytes]]:
    """Return the result of each put, and the files; commit once, or after each put.

    With a `step_count`, batches are placed in steps; `step_count` steps run before the next put.
    """
    disk = MemoryDisk()
    rig = StoreRig(disk, small_settings())
    results: dict[int, PutResult] = {}
    for number, put in enumerate(every):
        done = partial(results.__setitem__, number)
        if isinstance(put, list) and step_count is not None:
            placing = rig.store.writer.put_large(put, done)
            for _ in range(step_count):
                placing.step()
        elif isinstance(put, list):
            rig.store.writer.put_batch(put, done)
        else:
            rig.store.writer.put(put, done)
        if not at_once:
            rig.store.writer.commit()
    rig.store.writer.commit()
    rig.work()
    rig.store.close()
    return results, {path: bytes(data) for path, data in disk.contents.items()}


@settings(deadline=None)
@given(puts)
def test_puts_of_one_commit_are_stored_as_if_each_had_its_own(every):
    results, files = stored(every, at_once=True)
    assert (results, files) == stored(every, at_once=False)
    assert len(results) == len(every)


@settings(deadline=None)
@given(puts, st.integers(0, 12), st.integers(1, 3))
def test_a_unit_that_is_placed_in_steps_is_stored_as_at_once(every, step_count, part_count):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(append, "UNIT_STEP_WEIGHT", part_count)
        patch.setattr(writer, "WRITE_BYTES", 300)
        results, files = stored(every, at_once=True, step_count=step_count)
    assert (results, files) == stored(every, at_once=False)
    assert len(results) == len(every)


def test_other_puts_wait_until_a_unit_is_placed():
    rig = StoreRig(MemoryDisk(), small_settings(mapped_file_size_commit_log=1 << 20))
    results: list[PutResult] = []
    unit = rig.store.writer.put_large(
        [make_message(body=b"%d" % n) for n in range(5_000)], results.append
    )
    step_count = 0
    while not unit.is_done:
        rig.store.writer.put(make_message(body=b"x"), lambda _: None)
        unit.step()
        step_count += 1
        assert rig.store.reader.max_offset("T", 0) == (5_000 if unit.is_done else 0)
    assert step_count > 9  # three each to check, to encode and to place the messages
    assert results[0].queue_offset == 0
    rig.store.writer.commit()
    assert rig.store.reader.max_offset("T", 0) == 5_000 + step_count


def test_messages_with_many_keys_are_placed_in_more_steps():
    rig = StoreRig(MemoryDisk(), small_settings(mapped_file_size_commit_log=1 << 20))
    message = make_message(body=b"x", keys=" ".join(f"{key:04x}" for key in range(3_000)))
    unit = rig.store.writer.put_large([message] * 50, lambda _: None)
    step_count = 0
    while not unit.is_done:
        unit.step()
        step_count += 1
    assert step_count > 3 * 50 * len(message.properties) // 64 // append.UNIT_STEP_WEIGHT
    assert rig.store.reader.max_offset("T", 0) == 50


def test_keys_count_for_the_size_of_a_commit():
    appender = StoreRig(MemoryDisk(), small_settings()).store.writer.appender
    assert appender.put(make_message(body=b"x", keys="a b"), lambda _: None) > 2 * append.KEY_BYTES


def test_a_unit_whose_last_write_fails_leaves_nothing_behind(monkeypatch):
    monkeypatch.setattr(append, "UNIT_STEP_WEIGHT", 300)
    monkeypatch.setattr(writer, "WRITE_BYTES", 1)
    disk, settings = MemoryDisk(), small_settings(mapped_file_size_commit_log=1 << 20)
    rig = StoreRig(disk, settings)
    results: list[PutResult] = []
    unit = rig.store.writer.put_large([make_message(body=bytes(100))] * 2_000, results.append)
    while "commitlog" not in disk.last_write[0]:
        unit.step()
    disk.fault = lambda *_: errno.EIO
    unit.finish()
    assert [result.status for result in results] == [PutStatus.SERVICE_NOT_AVAILABLE]
    disk.fault = None
    rig.clock.advance(10_000)
    rig.work(3)
    assert rig.put(make_message(body=b"1")).queue_offset == 0
    disk.crash()
    assert StoreRig(disk, settings).store.reader.max_offset("T", 0) <= 1


def test_a_put_that_cannot_be_encoded_costs_its_commit_nothing():
    good = make_message(unique_key="0A")
    bad = make_message(sys_flag=UNENCODABLE)
    results, files = stored([good, bad, [good, bad], good], at_once=True)
    assert [results[number].status for number in range(4)] == [
        PutStatus.PUT_OK, PutStatus.MESSAGE_ILLEGAL, PutStatus.MESSAGE_ILLEGAL, PutStatus.PUT_OK
    ]  # fmt: skip
    assert files == stored([good, good], at_once=False)[1]


def test_a_refused_unit_does_not_begin_a_file():
    filler = make_message(body=b"x" * 3_700)
    unit = [make_message(body=b"y" * 300), make_message(sys_flag=UNENCODABLE)]
    assert stored([filler, unit], at_once=True)[1] == stored([filler], at_once=True)[1]
