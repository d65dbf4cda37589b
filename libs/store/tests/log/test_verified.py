# SPDX-License-Identifier: Apache-2.0
"""Whatever changes in the sealed part of the log, no reader gets it; all other reads are right."""

import errno
import os
import struct
from functools import partial
from random import Random
from zlib import crc32

import pytest

from cometmq.peers.long_forms import sampled
from cometmq.remoting.message.record import decode_record
from cometmq.store.errors import DiskError
from cometmq.store.log.block_sums import BLOCK_BYTES, PAGE_BYTES
from cometmq.store.log.verified import KEPT_COUNT_MAX
from cometmq.store.os_disk import OsDisk
from cometmq.store.queues.pulls import read_log
from cometmq.store.reads import finish
from cometmq.store.results import GetStatus
from cometmq.testing.store.builders import Events, StoreRig, make_message, small_settings
from cometmq.testing.store.memory_disk import MemoryDisk

FILE_BYTES = 3 * BLOCK_BYTES + 4096
SETTINGS = small_settings(mapped_file_size_commit_log=FILE_BYTES)
COUNT = 120
BODY_BYTES = BLOCK_BYTES // 15


def opened(disk, **options):
    events = Events()
    return StoreRig(disk, SETTINGS, log=events, boot_id="boot", **options), events


def filled(disk):
    rig, events = opened(disk)
    random = Random(1)
    for number in range(COUNT):
        body = random.randbytes(random.randrange(BODY_BYTES))
        rig.put(make_message(queue_id=number % 2, body=body, keys=f"k{number}"))
    rig.work(3)
    return rig, events


def log_file(disk, place):
    start = place - place % FILE_BYTES
    return disk.contents[f"/store/commitlog/{start:020d}"], place - start


def flip(disk, place, bits=1):
    data, position = log_file(disk, place)
    data[position] ^= bits


def pull(rig, queue_id, offset, count=32):
    def read():
        result = rig.store.reader.get_messages("T", queue_id, offset, count)
        if result.is_cold:
            result = rig.store.reader.settled("T", queue_id, offset, result.load())
        return result

    return rig.settled(read)


def search(rig, queue_id, offset, count=32):
    reader = rig.store.reader
    return rig.settled(
        lambda: finish(reader.find_messages("T", queue_id, offset, count, lambda _: True))
    )


def read(rig, queue_id, way=pull):
    offset, found = 0, {}
    while offset < rig.store.reader.max_offset("T", queue_id):
        result = way(rig, queue_id, offset)
        assert result.status in {GetStatus.FOUND, GetStatus.MESSAGE_WAS_REMOVING}
        assert result.next_offset > offset
        for record in result.records:
            found[decode_record(record).queue_offset] = bytes(record)
        offset = result.next_offset
    return found


def all_of(rig, way=pull):
    return {(queue, at): it for queue in (0, 1) for at, it in read(rig, queue, way).items()}


@sampled(6)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("way", [pull, search])
@pytest.mark.parametrize("is_cold", [False, True])
@pytest.mark.parametrize("is_restarted", [False, True])
def test_any_flipped_byte_is_left_out_with_its_page_and_nothing_else(
    disk, is_restarted, is_cold, way, seed
):
    random = Random(seed)
    rig, events = filled(disk)
    whole = all_of(rig)
    if is_restarted:
        rig.store.close()
        rig, events = opened(disk)
    else:
        rig.store.pulls.forget()
    place = random.randrange(rig.store.commit_log.end)
    flip(disk, place, 1 << random.randrange(8))
    disk.is_cold = is_cold
    found = all_of(rig, way)
    for key in whole.keys() - found.keys():
        record = decode_record(whole[key])
        page = place - place % FILE_BYTES % PAGE_BYTES
        start, end = record.physical_offset, record.physical_offset + record.size
        assert start < page + PAGE_BYTES
        assert end > page
    assert {key: whole[key] for key in found} == found
    rig.scrub(1)
    gone = len(whole) - len(found)
    named = [line["message_count"] for line in events.of("log.damaged")]
    if gone:
        assert named == [gone]
        assert events.of("records.damaged")
        assert rig.store.stats().damaged_message_count == gone
    assert all_of(rig, way) == found
    rig.scrub()
    assert len(events.of("log.damaged")) <= 1


def test_every_other_read_leaves_it_out_too(disk):
    rig, _ = filled(disk)
    entry = rig.entry("T", 0, 10)
    rig.store.pulls.forget()
    flip(disk, entry.physical_offset + entry.size - 3)
    store = rig.store
    assert finish(store.reader.read_record(entry.physical_offset)) is None
    assert finish(store.reader.read_span(entry.physical_offset, entry.size)) is None
    assert finish(store.reader.query("T", "k20", 32, 0, 1 << 60)).records == []
    assert finish(store.reader.store_time("T", 0, 10)) == finish(store.reader.store_time("T", 0, 0))
    view = store.commit_log.view_to_end()
    assert len(view.read(entry.physical_offset, 100, may_block=True)) < 100
    assert view.is_damaged(entry.physical_offset, 100)
    whole = store.commit_log.raw_view().read(entry.physical_offset, 100, may_block=True)
    assert len(whole) == 100


def test_a_record_before_the_damage_is_read_although_its_read_covers_more(disk):
    rig, _ = filled(disk)
    places = [rig.entry("T", queue_id, at) for at in range(COUNT // 2) for queue_id in (0, 1)]
    before = max(place for place in places if place.physical_offset + place.size <= BLOCK_BYTES)
    rig.store.pulls.forget()
    flip(disk, BLOCK_BYTES + 10)
    record = finish(rig.store.reader.read_record(before.physical_offset))
    assert record.physical_offset == before.physical_offset


def test_searches_by_time_do_not_skip_what_lies_behind_the_damage(disk):
    rig, _ = opened(disk)
    for number in range(60):
        rig.clock.advance(1_000)
        rig.put(make_message(body=bytes(BODY_BYTES), keys=f"k{number}"))
    times = [finish(rig.store.reader.store_time("T", 0, at)) for at in range(60)]
    rig.work(3)
    rig.store.pulls.forget()
    flip(disk, rig.entry("T", 0, 20).physical_offset + 50)
    intact = read(rig, 0)
    for at, stored_ms in enumerate(times):
        found = finish(rig.store.reader.offset_by_time("T", 0, stored_ms))
        assert not [skipped for skipped in range(at, found) if skipped in intact]


def test_bytes_that_were_compared_are_not_read_again(disk):
    rig, events = filled(disk)
    rig.store.pulls.forget()
    before = read(rig, 0)
    for start in range(0, rig.store.commit_log.end - BLOCK_BYTES, 1_000):
        flip(disk, start)
    assert {at: before[at] for at in range(20)} == {
        decode_record(record).queue_offset: bytes(record) for record in pull(rig, 0, 0, 20).records
    }
    assert events.of("records.damaged") == []
    assert len(rig.store.commit_log.verified._blocks) <= KEPT_COUNT_MAX


@pytest.mark.parametrize("content", [b"", b"\0", b"\xff"])
def test_a_block_without_a_checksum_is_served(disk, content):
    rig, events = filled(disk)
    whole = all_of(rig)
    rig.store.close()
    for path in [path for path in disk.contents if path.startswith("/store/checksums/0")]:
        if content:
            disk.contents[path][:] = content * len(disk.contents[path])
        else:
            del disk.contents[path]
    rig, events = opened(disk)
    assert all_of(rig) == whole
    assert events.of("log.damaged") == []


def test_bytes_behind_the_last_checkpoint_are_served_at_once(disk):
    rig, _ = filled(disk)
    for number in range(20):
        rig.put(make_message(body=b"new", keys=f"n{number}"))
        assert decode_record(pull(rig, 0, COUNT // 2 + number).records[0]).body == b"new"
    rig.work(3)
    assert len(read(rig, 0)) == COUNT // 2 + 20


def test_a_block_that_cannot_be_read_is_damage_and_other_errors_are_none(disk):
    rig, events = filled(disk)
    rig.store.pulls.forget()

    def fault(number, operation, path):
        return number if operation == "read" and path.endswith("commitlog/" + "0" * 20) else 0

    disk.fault = partial(fault, errno.EIO)
    assert pull(rig, 0, 0).status is GetStatus.MESSAGE_WAS_REMOVING
    rig.scrub(1)
    assert events.of("log.damaged")
    rig, _ = filled(MemoryDisk())
    rig.store._parts.disk.fault = partial(fault, errno.ENOMEM)
    rig.store.pulls.forget()
    with pytest.raises(DiskError):
        pull(rig, 0, 0)


def test_damage_found_while_the_log_is_cut_is_forgotten(disk):
    rig, events = filled(disk)
    rig.store.pulls.forget()
    entry = rig.entry("T", 0, 50)
    flip(disk, entry.physical_offset + 50)
    pull(rig, 0, 50, 1)
    job = rig.store.upkeep.scrubber.job(rig.clock())
    job.run()
    rig.store.truncate(rig.entry("T", 0, 20).physical_offset)
    job.done(None)
    rig.scrub()
    assert events.of("log.damaged") == []
    assert len(read(rig, 0)) == 20


def test_native_code_gets_the_checksums_of_what_it_reads(tmp_path):
    settings = small_settings(
        store_path_root_dir=str(tmp_path / "store"), mapped_file_size_commit_log=FILE_BYTES
    )
    rig = StoreRig(OsDisk(), settings)
    for number in range(COUNT):
        rig.put(make_message(body=bytes(BODY_BYTES), keys=f"k{number}"))
    rig.work(3)
    view = rig.store.commit_log.view()
    covered = 0
    starts = [
        start
        for first in range(0, view.end, FILE_BYTES)
        for start in range(first, min(first + FILE_BYTES, view.end), BLOCK_BYTES)
    ]
    for start in starts:
        count = min(BLOCK_BYTES, FILE_BYTES - start % FILE_BYTES, view.end - start)
        place = read_log(view, start, 10, count)
        assert isinstance(place, tuple)
        file, descriptor, number, position, sealed = place
        assert file.descriptor() is descriptor
        assert descriptor.number == number
        assert position == start % FILE_BYTES + 10
        if sealed is None:
            continue
        _, entries, offset, first, stop = sealed
        assert offset == start
        data = os.pread(number, count, start % FILE_BYTES)
        for block in range(first, stop):
            length, crc, _ = struct.unpack(">III", os.pread(entries, 12, 12 * block))
            begin = BLOCK_BYTES * block - start % FILE_BYTES
            assert crc32(data[begin : begin + length]) == crc
            covered += length
    assert covered >= view.end - BLOCK_BYTES
    rig.store.close()
