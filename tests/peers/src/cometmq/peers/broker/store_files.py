# SPDX-License-Identifier: Apache-2.0
"""Reads the files of a stopped store as RocketMQ does, without the store's own code."""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from cometmq.remoting.message.record import MessageRecord, decode_record

ENTRY: Final = struct.Struct(">qiq")
FILLER: Final = (0, 0x7FFFFFFF, 0)
TRANSACTION_MASK: Final = 0xC
UNQUEUED: Final = (0x4, 0xC)  # prepared and rolled back messages have no queue entry
BLANK_MAGIC: Final = 0xCBD43194
_HEAD: Final = struct.Struct(">iI")


def log_begin(store: Path) -> int:
    return min((int(path.name) for path in (store / "commitlog").iterdir()), default=0)


def read_log(store: Path) -> tuple[list[MessageRecord], int]:
    """Return all records, without bodies, and the end of the log; only zeros may follow it."""
    records: list[MessageRecord] = []
    end = -1
    for path in sorted((store / "commitlog").iterdir()):
        start, data = int(path.name), path.read_bytes()
        if end < 0:
            found, end = _read_file(start, data)
            records += found
        else:
            assert not any(data), f"{path} holds data behind the end {end}"
    return records, max(end, 0)


def _read_file(start: int, data: bytes) -> tuple[list[MessageRecord], int]:
    """Return one file's records and the end of the log, or -1 if a later file contains it."""
    records: list[MessageRecord] = []
    cursor = 0
    while cursor < len(data):
        rest = len(data) - cursor
        size, magic = _HEAD.unpack_from(data, cursor) if rest >= 8 else (0, 0)
        if magic == BLANK_MAGIC:
            assert size == rest, f"{start + cursor}: a blank of {size} bytes, {rest} are left"
            return records, -1
        if size == 0:
            assert not any(data[cursor:]), f"{start + cursor}: not zero behind the log's end"
            return records, start + cursor
        record = decode_record(data, cursor, check_crc=True)
        assert record.physical_offset == start + cursor
        record.body = b""
        records.append(record)
        cursor += record.size
    return records, -1


def judge_queues(store: Path, records: list[MessageRecord]) -> list[str]:
    wrong = []
    expected: dict[tuple[str, int], dict[int, MessageRecord]] = {}
    for record in records:
        if record.sys_flag & TRANSACTION_MASK in UNQUEUED:
            continue
        queue = expected.setdefault((record.topic, record.queue_id), {})
        if record.queue_offset in queue:
            wrong.append(f"{record.topic} {record.queue_id} {record.queue_offset} is there twice")
        queue[record.queue_offset] = record
    for (topic, queue_id), by_offset in expected.items():
        folder = store / "consumequeue" / topic / str(queue_id)
        found = dict(_entries(folder))
        for offset, record in by_offset.items():
            if found.get(offset) != (record.physical_offset, record.size):
                wrong.append(f"{folder} {offset}: {found.get(offset)} is not the record's place")
        begin = min(record.physical_offset for record in records)
        wrong += [
            f"{folder} {offset}: points to {place}, where no record of it is"
            for offset, place in found.items()
            if place[0] >= begin and place != FILLER[:2] and offset not in by_offset
        ]
    return wrong


def _entries(folder: Path) -> Iterator[tuple[int, tuple[int, int]]]:
    for path in sorted(folder.iterdir()):
        first = int(path.name) // ENTRY.size
        for number, entry in enumerate(ENTRY.iter_unpack(path.read_bytes())):
            if entry[1] != 0:
                yield first + number, entry[:2]
