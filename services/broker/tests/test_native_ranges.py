# SPDX-License-Identifier: Apache-2.0
"""Two stores get the same log, one with native dispatch, and must write the same files.

The log has records of every kind: with tags and keys in any encoding, delayed, half and ended
messages, several versions, deleted topics, queues that restart or have gaps, torn and damaged
records.
"""

import struct
from typing import NamedTuple
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.broker.copies.streams.records import whole_records
from cometmq.broker.copies.unfit import UnfitLog
from cometmq.broker.native import IS_BUILT, accel, header_follower, open_native_code, range_reader
from cometmq.broker.settings import BrokerSettings
from cometmq.remoting.log import NO_LOG
from cometmq.remoting.message.record_layout import BLANK_BYTES_MIN, MAGIC_BLANK, MAGIC_V1, MAGIC_V2
from cometmq.remoting.names import SCHEDULE_TOPIC
from cometmq.store.errors import StoreError
from cometmq.store.layout import file_name
from cometmq.store.parts import NO_NATIVE_CODE, NativeCode
from cometmq.store.reads import finish
from cometmq.testing.broker.logs import RecordingLog
from cometmq.testing.store.builders import SMALL, StoreRig, make_message, small_settings
from cometmq.testing.store.memory_disk import MemoryDisk

pytestmark = pytest.mark.skipif(not IS_BUILT, reason="cometmq-accel is built only with cargo")

FILE_BYTES = SMALL.mapped_file_size_commit_log
V6_BORN, V6_STORED = 0x10, 0x20
TOPICS = (b"T", b"Orders", SCHEDULE_TOPIC.encode(), "ünïcode".encode(), "𝄞".encode(), b"%RETRY%g")
ODD_TOPICS = (b"", b"..", b"a/b", b"a\0b", b"\xff\xfe")


class CountingReader:
    """Counts the records that were read natively."""

    def __init__(self):
        self._read = range_reader(NO_LOG)
        self.record_count = 0

    def __call__(self, *args, **options):
        found = self._read(*args, **options)
        assert found is not None
        self.record_count += found[1]
        return found


class Fields(NamedTuple):
    topic: bytes = b"T"
    queue_id: int = 0
    shift: int | None = 0
    """Distance from the expected queue offset; None for a queue that restarts."""
    sys_flag: int = 0
    elapsed_ms: int = 0
    properties: bytes = b"UNIQ_KEY\x01A1"
    is_long: bool = False
    body_bytes: int = 10
    damage: int | None = None


def encode(fields, queue_offset, physical_offset, now_ms):
    """Encode a record as a broker writes it, or one that was damaged later."""
    born = bytes(20 if fields.sys_flag & V6_BORN else 8)
    stored = bytes(20 if fields.sys_flag & V6_STORED else 8)
    body = b"x" * fields.body_bytes
    length = struct.pack(">h" if fields.is_long else ">B", len(fields.topic))
    tail = body + length + fields.topic + struct.pack(">h", len(fields.properties))
    tail += fields.properties
    head = struct.pack(
        f">Iiiqqiq{len(born)}sq{len(stored)}siqi", crc32(body) & 0x7FFFFFFF, fields.queue_id, 0,
        queue_offset, physical_offset, fields.sys_flag, 0, born, now_ms, stored, 0, 0, len(body),
    )  # fmt: skip
    magic = MAGIC_V2 if fields.is_long else MAGIC_V1
    record = bytearray(struct.pack(">ii", 8 + len(head) + len(tail), magic) + head + tail)
    if fields.damage is not None:
        record[fields.damage % len(record)] ^= 1 << fields.damage % 8
    return bytes(record)


def lay_out(rows):
    """Place records one after another in files of `FILE_BYTES`."""
    log = b""
    expected: dict[tuple[bytes, int], int] = {}
    now_ms = 1_700_000_000_000
    for fields in rows:
        key = fields.topic, fields.queue_id
        at = 0 if fields.shift is None else max(-1, expected.get(key, 0) + fields.shift)
        now_ms += fields.elapsed_ms
        size = len(encode(fields, 0, 0, now_ms))
        left = FILE_BYTES - len(log) % FILE_BYTES
        if size > left - BLANK_BYTES_MIN:
            log += struct.pack(">ii", left, MAGIC_BLANK).ljust(left, b"\0")
        if not fields.sys_flag & 4:
            expected[key] = at + 1
        elif fields.properties == b"DELETED\1" + fields.topic:
            expected = {key: end for key, end in expected.items() if key[0] != fields.topic}
        log += encode(fields, at, len(log), now_ms)
    return log


def mostly(usual, unusual):
    """Draw from the first list, and occasionally from the second."""
    return st.integers(0, 9).flatmap(lambda at: st.sampled_from(usual if at else unusual))


texts = st.one_of(
    st.text(st.characters(blacklist_characters="\1\2", codec="utf-8"), max_size=12).map(str.encode),
    st.sampled_from([b"a", b"a b  c ", b"AC1100020A", b" ", b"\xc3", b"\xff", b"x\0"]),
)
pairs = st.tuples(
    st.sampled_from([b"TAGS", b"KEYS", b"UNIQ_KEY", b"UNIQ_KEY", b"other", b"", b"TAGSX"]), texts
).map(b"\1".join)
times = st.sampled_from(
    [b"1700000000700", b"1900000000000", b"2147483647", b"2147483648", b"9" * 18, b"9" * 19, b"x"]
).map(b"TIMER_OUT_MS\1".__add__)
properties = st.one_of(
    st.just(b"UNIQ_KEY\x01A1\x02TAGS\x01t"),
    st.lists(times, min_size=1, max_size=2).map(b"\2".join),
    st.lists(st.one_of(pairs, pairs, texts), max_size=4).map(b"\2".join),
)
rows = st.builds(
    Fields,
    topic=mostly(TOPICS, ODD_TOPICS),
    queue_id=mostly([0, 0, 1], [17, 18, -1, 5]),
    shift=mostly([0], [None, 1, -1, 3, -2]),
    sys_flag=mostly([0, 0, 0, 4, 8, 12], [V6_BORN, V6_STORED, V6_BORN | V6_STORED, 1]),
    elapsed_ms=st.sampled_from([0, 0, 1, 700]),
    properties=properties,
    is_long=mostly([False], [True]),
    body_bytes=mostly([0, 10, 50], [900]),
    # A flipped high bit of the queue offset (bytes 20 to 27) would make a gap of terabytes.
    damage=mostly([None], [None, None, None, 7, 9, 27, 30, 100]),
)
marks = st.sampled_from(TOPICS).map(
    lambda topic: Fields(topic, -1, sys_flag=12, properties=b"DELETED\1" + topic, body_bytes=0)
)
"""Deletions of topics."""
rows_and_marks = st.integers(0, 9).flatmap(lambda at: rows if at else marks)
logs = st.lists(rows_and_marks, min_size=1, max_size=60).map(lay_out)


def contents(rig, disk):
    """Close a store; return the state that was visible before, and the store's files."""
    store = rig.store
    queues = {
        key: (store.reader.min_offset(*key), store.reader.max_offset(*key))
        for key in sorted(store.reader.queue_ids())
    }
    found = finish(store.reader.query("T", "A1", 64, 0, 1 << 62)).records
    state = (
        store.commit_log.confirm_offset,
        store.commit_log.end,
        store.upkeep.recovered,
        queues,
        found,
    )
    store.close()
    return state, {path: bytes(data) for path, data in disk.contents.items()}


def outcome(action):
    """Run an action; return the text of the store's refusal, or None if it succeeds."""
    try:
        action()
    except StoreError as error:
        return str(error)
    return None


def replicate(log, pieces, limits, read_range):
    """Append a log in pieces of the given sizes; the confirm offset lags by the given bytes."""
    disk = MemoryDisk()
    rig = StoreRig(disk, native=NativeCode(read_range))
    rig.store.write_state.role_writable = False
    seen, start, step = [], 0, 0
    while start < len(log):
        size = pieces[step % len(pieces)]
        lag = limits[step % len(limits)]
        if lag is not None:
            rig.store.publisher.confirm(max(0, start - lag))
        end = min(start + size, len(log))
        seen.append(
            outcome(lambda at=start, part=log[start:end]: rig.store.replica.append(at, part))
        )
        start, step = end, step + 1
    seen.append(outcome(lambda: rig.store.publisher.confirm(None)))
    rig.work(2)
    return seen, contents(rig, disk)


def recover(log, settings_, read_range):
    """Open a store whose log was written by a broker that crashed before its first checkpoint."""
    disk = MemoryDisk()
    for start in range(0, len(log), FILE_BYTES):
        path = f"/store/commitlog/{file_name(start)}"
        disk.create(path, FILE_BYTES, temporary="/store/.new")
        part = log[start : start + FILE_BYTES]
        disk.contents[path][: len(part)] = part
    disk.create("/store/abort", 0, temporary="/store/.abort")
    try:
        rig = StoreRig(disk, settings_, native=NativeCode(read_range))
    except StoreError as error:
        return str(error), {path: bytes(data) for path, data in disk.contents.items()}
    return contents(rig, disk)


@given(
    logs,
    st.lists(st.sampled_from([1, 33, 91, 400, 1000, 5000, 1 << 20]), min_size=1, max_size=4),
    st.lists(st.sampled_from([None, 0, 150, 1000, 6000]), min_size=1, max_size=3),
)
def test_a_follower_makes_the_same_store(log, pieces, limits):
    if 1 in pieces:
        log = log[:1200]  # a thousand appends
    assert replicate(log, pieces, limits, None) == replicate(log, pieces, limits, CountingReader())


@given(logs, st.integers(0, 200), st.booleans(), st.booleans())
def test_recovery_makes_the_same_store(log, cut, checks_crc, is_indexing):
    log = log[: max(1, len(log) - cut)]
    changes = {"check_crc_on_recover": checks_crc, "message_index_enable": is_indexing}
    changed = small_settings(**changes)
    assert recover(log, changed, None) == recover(log, changed, CountingReader())


@given(logs, st.integers(0, 200), st.integers(0, 3000), st.sampled_from([0, FILE_BYTES]))
def test_headers_are_followed_as_python_follows_them(log, cut, bytes_max, start):
    data = log[start : max(start, len(log) - cut)]
    found = header_follower(NO_LOG)(data, start, FILE_BYTES, bytes_max)
    try:
        expected = whole_records(data, start, FILE_BYTES, bytes_max)
    except UnfitLog:
        assert found is None
    else:
        assert found == expected


def test_plain_records_are_read_natively():
    rows_ = [Fields(queue_id=number % 3, elapsed_ms=number % 2) for number in range(200)]
    rows_ += [Fields(topic=SCHEDULE_TOPIC.encode(), queue_id=3), Fields(sys_flag=4)]
    reader = CountingReader()
    log = lay_out(rows_)
    _, ((confirmed, *_), _) = replicate(log, [1 << 20], [None], reader)
    assert confirmed == len(log)
    assert reader.record_count == len(rows_)


def test_queues_that_lost_entries_are_rebuilt_natively():
    """Cut the entries of one queue, so that recovery finds a gap and scans the log again."""
    found = []
    for reader in (None, CountingReader()):
        disk = MemoryDisk()
        rig = StoreRig(disk)
        for number in range(60):
            rig.put(make_message("T", number % 2, b"%d" % number, unique_key=f"U{number}"))
        rig.work(3)
        disk.crash()
        for path in [path for path in disk.contents if path.startswith("/store/consumequeue/T/1/")]:
            disk.remove(path)
        for name in ("progress", "checkpoint"):
            disk.remove(f"/store/{name}")
        found.append(contents(StoreRig(disk, native=NativeCode(reader)), disk))
    assert found[0] == found[1]


def test_a_fault_of_the_native_code_leaves_the_log_to_python(monkeypatch):
    def fail(*_args, **_options):
        raise accel.PanicException("a bug")

    monkeypatch.setattr(accel, "read_range", fail)
    log = RecordingLog()
    plain = lay_out([Fields() for _ in range(10)])
    assert replicate(plain, [500], [None], None) == replicate(
        plain, [500], [None], range_reader(log)
    )
    assert [it["part"] for it in log.named("native.failed")] == ["dispatch"]


def test_after_one_panic_headers_are_followed_in_python_for_good(monkeypatch):
    calls = []

    def fail(*_args):
        calls.append(1)
        raise accel.PanicException("a bug")

    monkeypatch.setattr(accel, "follow_headers", fail)
    log = RecordingLog()
    follow = header_follower(log)
    assert [follow(b"", 0, 1024, 1024) for _ in range(3)] == [None] * 3
    assert len(calls) == 1
    assert [it["part"] for it in log.named("native.failed")] == ["stream"]
    monkeypatch.setattr(accel, "follow_headers", lambda *_args: 1 / 0)
    with pytest.raises(ZeroDivisionError):  # it ends panics only
        header_follower(log)(b"", 0, 1024, 1024)


def test_the_setting_turns_native_code_off():
    assert open_native_code(BrokerSettings(native_lane_enable=False), NO_LOG) == NO_NATIVE_CODE
    assert all(open_native_code(BrokerSettings(), NO_LOG))
