# SPDX-License-Identifier: Apache-2.0
"""Record boundaries in a log that arrives in pieces."""

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.broker.copies.streams.records import (
    HEAD_BYTES,
    RecordStream,
    is_border,
    whole_records,
)
from cometmq.broker.copies.unfit import ACTIONS, Unfit, UnfitLog
from cometmq.testing.store.builders import StoreRig, make_message
from cometmq.testing.store.memory_disk import MemoryDisk

FILE_SIZE = 4096
RECORD_MAX = 1 << 20


def master_log(count: int = 150) -> tuple[bytes, list[int]]:
    """Return a log that spans several files, and the offsets where its records and blanks begin."""
    disk = MemoryDisk()
    rig = StoreRig(disk)
    for number in range(count):
        rig.put(make_message("T", number % 2, b"%d" % number * (number % 9), keys=f"k{number}"))
    folder = "/store/commitlog"
    data = b"".join(disk.contents[f"{folder}/{name}"] for name in disk.names(folder))
    data = bytes(data[: rig.store.commit_log.end])
    borders = []
    place = 0
    while place < len(data):
        borders.append(place)
        place += int.from_bytes(data[place : place + 4], "big")
    return data, [*borders, place]


LOG, BORDERS = master_log()


def stream(end: int = 0, **changes: int) -> RecordStream:
    limits: dict[str, Any] = {"file_size": FILE_SIZE, "record_bytes_max": RECORD_MAX, **changes}
    return RecordStream(end, **limits)


@given(st.lists(st.integers(0, len(LOG)), max_size=40))
def test_pieces_of_any_size_give_whole_records(cuts: list[int]) -> None:
    borders = sorted({0, len(LOG), *cuts})
    records, found = stream(), b""
    for start, stop in itertools.pairwise(borders):
        found += records.feed(LOG[start:stop])
        assert len(found) == max(border for border in BORDERS if border <= stop)
        assert records.end == stop == len(found) + records.held_bytes
    assert found == LOG


def test_a_stream_may_begin_at_any_border() -> None:
    for border in BORDERS:
        assert stream(border).feed(LOG[border:]) == LOG[border:]


@pytest.mark.parametrize("bytes_max", [1, 200, 1000, FILE_SIZE, 1 << 20])
def test_a_cut_is_the_last_border_within_the_limit_or_the_first_record(bytes_max: int) -> None:
    for border, following in itertools.pairwise(BORDERS):
        cut = whole_records(LOG[border:], border, FILE_SIZE, bytes_max)
        fitting = [one for one in BORDERS if following < one <= border + bytes_max]
        assert border + cut.whole_bytes == max([following, *fitting])


def test_only_the_beginning_of_a_record_is_a_border() -> None:
    for place in range(3000):
        assert is_border(LOG[place : place + HEAD_BYTES], place, FILE_SIZE) is (place in BORDERS)


def test_a_short_rest_of_the_log_is_no_border() -> None:
    assert not is_border(b"", 0, FILE_SIZE)
    assert not is_border(LOG[: HEAD_BYTES - 1], 0, FILE_SIZE)


@pytest.mark.parametrize("shift", [1, 100, FILE_SIZE])
def test_records_of_another_place_are_refused(shift: int) -> None:
    with pytest.raises(UnfitLog) as caught:
        stream(shift).feed(LOG[: FILE_SIZE // 2])
    assert caught.value.reason is Unfit.NOT_A_RECORD


@pytest.mark.parametrize("file_size", [FILE_SIZE // 2, FILE_SIZE * 2])
def test_files_of_another_size_are_refused_by_name(file_size: int) -> None:
    with pytest.raises(UnfitLog, match=f"mappedFileSizeCommitLog={file_size}") as caught:
        stream(file_size=file_size).feed(LOG)
    assert caught.value.reason is Unfit.FILE_SIZE


def test_a_record_above_the_limit_is_refused_by_its_header() -> None:
    with pytest.raises(UnfitLog, match="this broker takes 90") as caught:
        stream(record_bytes_max=90).feed(LOG[:HEAD_BYTES])
    assert caught.value.reason is Unfit.RECORD_TOO_LARGE
    assert "maxMessageSize" in caught.value.action


@given(st.binary(max_size=200), st.integers(0, len(LOG)))
def test_hostile_bytes_never_pass(noise: bytes, place: int) -> None:
    """Only a record at its own offset, or the blank that ends a file, may pass."""
    records = stream(place)
    try:
        passed = records.feed(noise)
    except UnfitLog:
        return
    assert passed == b"" or int.from_bytes(passed[:4], "big") <= len(passed)


def test_every_reason_says_what_to_do() -> None:
    assert ACTIONS.keys() == set(Unfit)
