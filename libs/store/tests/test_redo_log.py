# SPDX-License-Identifier: Apache-2.0
"""Wherever it is cut, a redo log yields its complete records, and a torn write is not damage."""

import pytest

from cometmq.store.redo_log import Cut, Record, RedoLog
from cometmq.testing.store.memory_disk import MemoryDisk

FOLDER = "/log"
FILE_BYTES = 200
HEAD_BYTES = 9
PAGE_BYTES = 4096


def path(start: int) -> str:
    return f"{FOLDER}/{start:020d}"


def open_log(disk: MemoryDisk) -> RedoLog:
    return RedoLog(disk, FOLDER, file_bytes=FILE_BYTES)


def filled(disk: MemoryDisk, count: int) -> list[Record]:
    log = open_log(disk)
    assert list(log.replay()) == []
    records = [Record(2, b"change %d" % number) for number in range(count)]
    for record in records:
        if not log.has_room(len(record.payload)):
            log.begin_file(1, b"")
        log.append(*record)
    return records


def changes(log: RedoLog) -> list[Record]:
    return [record for record in log.replay() if record.kind == 2]


def test_records_come_back_in_order_over_several_files(disk: MemoryDisk) -> None:
    records = filled(disk, 30)
    log = open_log(disk)
    assert changes(log) == records
    assert len(log.starts) > 2
    assert log.cut is None


def test_a_write_torn_at_any_byte_leaves_the_records_before_it(disk: MemoryDisk) -> None:
    records = filled(disk, 5)
    whole = disk.contents[path(0)].rstrip(b"\0")
    ends = [HEAD_BYTES]
    for record in records:
        ends.append(ends[-1] + HEAD_BYTES + len(record.payload))
    for size in range(HEAD_BYTES, len(whole)):
        disk.contents[path(0)][:] = whole[:size].ljust(FILE_BYTES, b"\0")
        log = open_log(disk)
        count = sum(end <= size for end in ends[1:])
        assert changes(log) == records[:count]
        if log.cut is not None:
            assert (log.cut.position, log.cut.is_damage) == (ends[count], False)
        log.append(2, b"another")
        assert changes(open_log(disk)) == [*records[:count], Record(2, b"another")]


def test_a_damaged_record_ends_the_log_and_is_told_from_a_torn_write(disk: MemoryDisk) -> None:
    records = filled(disk, 30)
    disk.contents[path(0)][HEAD_BYTES + HEAD_BYTES] ^= 1  # in the first change
    log = open_log(disk)
    assert list(log.records()) == [Record(1, b"")]
    size = len(disk.contents[path(0)].rstrip(b"\0"))
    assert log.cut == Cut(path(0), HEAD_BYTES, size - HEAD_BYTES, is_damage=True)
    assert len(disk.names(FOLDER)) == len(log.starts) > 1  # nothing is changed yet
    assert changes(log) == []
    assert records
    assert disk.names(FOLDER) == [path(0).rpartition("/")[2]]
    assert disk.contents[path(0)].rstrip(b"\0") == disk.contents[path(0)][:HEAD_BYTES].rstrip(b"\0")


def test_damage_in_the_last_record_of_a_file_is_seen_by_the_next_file(disk: MemoryDisk) -> None:
    filled(disk, 30)
    data = disk.contents[path(0)]
    data[len(data.rstrip(b"\0")) - 1] ^= 1
    log = open_log(disk)
    list(log.records())
    assert log.cut is not None
    assert log.cut.is_damage


@pytest.mark.parametrize("place", [0, 3, 4, 7, 8, HEAD_BYTES, -1])
def test_damage_in_the_last_record_is_told_from_a_torn_write(disk: MemoryDisk, place: int) -> None:
    """A record that was written to its end was answered, so losing it is reported."""
    records = filled(disk, 3)
    data = disk.contents[path(0)]
    end = len(data.rstrip(b"\0"))
    begin = end - HEAD_BYTES - len(records[-1].payload)
    data[begin + place if place >= 0 else end + place] ^= 0x10
    log = open_log(disk)
    assert changes(log) == records[:-1]
    assert log.cut == Cut(path(0), begin, end - begin, is_damage=True)


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_pages_that_a_crash_of_the_host_has_lost_are_no_damage(disk: MemoryDisk, lost: int) -> None:
    log = RedoLog(disk, FOLDER, file_bytes=4 * PAGE_BYTES)
    assert list(log.replay()) == []
    log.begin_file(1, b"")
    log.append(2, b"first")
    begin = len(disk.contents[path(0)].rstrip(b"\0"))
    log.append(2, b"x" * (2 * PAGE_BYTES))
    gone = slice(max(begin, lost * PAGE_BYTES), (lost + 1) * PAGE_BYTES)
    disk.contents[path(0)][gone] = bytes(gone.stop - gone.start)
    log = RedoLog(disk, FOLDER, file_bytes=4 * PAGE_BYTES)
    assert changes(log) == [Record(2, b"first")]
    assert log.cut is not None
    assert (log.cut.position, log.cut.is_damage) == (begin, False)
