# SPDX-License-Identifier: Apache-2.0
"""Log checksums: the bytes they cover, and faults that do not count as damage to the log."""

import errno
from random import Random
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.peers.long_forms import sampled
from cometmq.store.errors import DiskError
from cometmq.store.log.block_sums import BLOCK_BYTES, PAGE_BYTES, SUMS_BYTES
from cometmq.store.log.checksums import Check, Checksums, spans
from cometmq.store.log.damage import DamagedRange
from cometmq.store.settings import StoreSettings
from cometmq.testing.store.builders import StoreRig, make_message, small_settings
from cometmq.testing.store.memory_disk import MemoryDisk

FILE_BYTES: Final = 5 * BLOCK_BYTES + 1000
BODY_BYTES: Final = BLOCK_BYTES // 15
SETTINGS: Final[StoreSettings] = small_settings(mapped_file_size_commit_log=FILE_BYTES)
LOG: Final = "/store/commitlog/" + "0" * 20
SUMS: Final = "/store/checksums/" + "0" * 20


def filled(disk: MemoryDisk) -> StoreRig:
    rig = StoreRig(disk, SETTINGS)
    random = Random(1)
    for _ in range(150):
        rig.put(make_message(body=random.randbytes(BODY_BYTES)))
    rig.work(3)
    return rig


def checked(rig: StoreRig, disk: MemoryDisk) -> Check:
    """Compare the whole log with the checksum files, as a new process would find them."""
    log = rig.store.commit_log
    checksums = Checksums(disk, rig.store.layout, FILE_BYTES)
    checksums.load()
    result = Check([], {})
    for span in spans(log.files, log.min_offset, log.end):
        damaged, unknown = checksums.check(span)
        result.damaged.extend(damaged)
        result.unknown.update({span.start // BLOCK_BYTES + at: it for at, it in unknown.items()})
    return result


def test_a_checkpoint_covers_everything_before_it(disk):
    rig = filled(disk)
    assert len(rig.store.commit_log.files.files) > 1
    assert checked(rig, disk) == Check([], {})


def test_a_block_that_grows_is_covered_after_each_checkpoint(disk):
    rig = StoreRig(disk, SETTINGS)
    for _ in range(60):
        rig.put(make_message(body=bytes(BODY_BYTES // 2)))
        rig.work(2)
        assert checked(rig, disk) == Check([], {})


@given(place=st.integers(0, 7 * BLOCK_BYTES), bit=st.integers(0, 7))
def test_every_flipped_bit_is_found_in_its_page(place, bit):
    disk = MemoryDisk()
    rig = filled(disk)
    file_start = place - place % FILE_BYTES
    data = disk.contents[f"/store/commitlog/{file_start:020d}"]
    data[place - file_start] ^= 1 << bit
    (found,) = checked(rig, disk).damaged
    assert found.start <= place < found.end
    assert found.end - found.start <= PAGE_BYTES


@given(st.data())
def test_a_damaged_file_of_checksums_is_no_damage_of_the_log(data):
    disk = MemoryDisk()
    rig = filled(disk)
    sums = disk.contents[SUMS]
    kind = data.draw(
        st.sampled_from(["overwritten", "zeroed", "cut", "shifted", "of-another-file"])
    )
    start = data.draw(st.integers(0, len(sums) - 1))
    size = data.draw(st.integers(1, len(sums)))
    if kind == "overwritten":
        garbage = data.draw(st.binary(min_size=size, max_size=size))[: len(sums) - start]
        sums[start : start + len(garbage)] = garbage
    elif kind == "zeroed":
        sums[start:] = bytes(len(sums) - start)
    elif kind == "cut":
        del sums[start:]
    elif kind == "shifted":
        sums[:] = (bytes(size) + sums)[: len(sums)]
    else:
        sums[:] = disk.contents[f"/store/checksums/{FILE_BYTES:020d}"]
    assert checked(rig, disk).damaged == []


def test_what_is_unknown_can_be_learned(disk):
    rig = filled(disk)
    disk.contents[SUMS][:] = bytes(len(disk.contents[SUMS]))
    log = rig.store.commit_log
    checksums = Checksums(disk, rig.store.layout, FILE_BYTES)
    checksums.load()
    for span in spans(log.files, 0, log.end):
        checksums.learn(span.start, checksums.check(span).unknown, checksums.generation)
    assert checked(rig, disk) == Check([], {})


def test_nothing_is_learned_about_bytes_that_were_cut_meanwhile(disk):
    rig = filled(disk)
    log = rig.store.commit_log
    checksums = Checksums(disk, rig.store.layout, FILE_BYTES)
    generation = checksums.generation
    checksums.truncate(log.files, FILE_BYTES)
    checksums.learn(0, {0: bytes(range(SUMS_BYTES))}, generation)
    assert checked(rig, disk).damaged == []


@given(keep=st.integers(1, 149), count=st.integers(1, 60), killed=st.booleans())
def test_a_log_that_was_cut_and_written_again_is_not_damaged(keep, count, killed):
    disk = MemoryDisk()
    rig = filled(disk)
    rig.store.truncate(rig.entry("T", 0, keep).physical_offset)
    assert checked(rig, disk) == Check([], {})
    for number in range(count):
        rig.put(make_message(body=b"%d" % number * (BODY_BYTES // 3)))
    rig.work(3)
    if killed:
        disk.crash()
        rig = StoreRig(disk, SETTINGS)
        rig.put(make_message(body=b"after"))
        rig.work(3)
    assert checked(rig, disk) == Check([], {})


@given(st.lists(st.sampled_from(["put", "checkpoint", "kill", "stop", "power"]), max_size=30))
def test_no_history_of_stops_and_kills_looks_like_damage(steps):
    disk = MemoryDisk()
    rig = StoreRig(disk, SETTINGS)
    for number, step in enumerate(steps):
        if step == "put":
            for _ in range(15):
                rig.put(make_message(body=b"%d" % number * (BODY_BYTES // 2)))
        elif step == "checkpoint":
            rig.work(2)
        else:
            if step == "stop":
                rig.store.close()
            else:
                disk.crash() if step == "kill" else disk.lose_power()
            rig = StoreRig(disk, SETTINGS)
        assert checked(rig, disk).damaged == []
    rig.work(3)
    assert checked(rig, disk) == Check([], {})


def test_bytes_that_cannot_be_read_are_damaged_and_the_rest_is_checked(disk):
    rig = filled(disk)
    log = rig.store.commit_log
    (span, *_) = spans(log.files, 0, FILE_BYTES)

    class Broken:
        path = span.file.path

        def read(self, offset: int, count: int) -> bytes:
            if offset < 2 * BLOCK_BYTES + 100 and offset + count > 2 * BLOCK_BYTES:
                raise DiskError("read", self.path, errno.EIO)
            return span.file.read(offset, count)

    checksums = Checksums(disk, rig.store.layout, FILE_BYTES)
    checksums.load()
    broken: Any = Broken()
    found = checksums.check(span._replace(file=broken))
    assert found.damaged == [(2 * BLOCK_BYTES, 2 * BLOCK_BYTES + PAGE_BYTES)]
    assert found.unknown == {}


def test_checksums_expire_with_their_file(disk):
    settings = small_settings(mapped_file_size_commit_log=FILE_BYTES, delete_when="99")
    rig = StoreRig(disk, settings)
    for _ in range(300):
        rig.put(make_message(body=bytes(BODY_BYTES)))
    rig.work(3)
    assert SUMS in disk.contents
    rig.clock.advance(100 * 3_600_000)
    rig.store.upkeep.cleaner.ask()
    rig.work(5)
    assert LOG not in disk.contents
    assert SUMS not in disk.contents
    log = rig.store.commit_log
    assert log.files.file_at(log.end - 1).path.replace("commitlog", "checksums") in disk.contents


def test_checksums_without_a_log_file_go_at_the_start(disk):
    filled(disk).store.close()
    stray = "/store/checksums/" + f"{FILE_BYTES * 9:020d}"
    disk.contents[stray] = bytearray(disk.contents[SUMS])
    StoreRig(disk, SETTINGS)
    assert stray not in disk.contents
    assert SUMS in disk.contents


def of_old_release(disk: MemoryDisk) -> None:
    """Cut the checksums of pages off, which releases before 1.1 do not write."""
    for path, content in disk.contents.items():
        if path.startswith("/store/checksums/") and path[-1].isdigit():
            del content[len(content) // SUMS_BYTES * 12 :]


def flip(disk: MemoryDisk, place: int) -> None:
    disk.contents[LOG][place] ^= 1


def test_without_checksums_of_pages_the_whole_block_is_damaged(disk):
    rig = filled(disk)
    of_old_release(disk)
    flip(disk, BLOCK_BYTES + 5)
    assert checked(rig, disk) == Check([DamagedRange(BLOCK_BYTES, 2 * BLOCK_BYTES)], {})


@sampled(3)
@pytest.mark.parametrize("at", range(0, SUMS_BYTES - 12, 7))
def test_damaged_checksums_of_pages_are_not_used(disk, at):
    rig = filled(disk)
    content = disk.contents[SUMS]
    content[len(content) // SUMS_BYTES * 12 + at] ^= 1
    assert checked(rig, disk) == Check([], {})
    flip(disk, 5)
    assert checked(rig, disk).damaged == [(0, BLOCK_BYTES)]


def test_the_checksums_of_pages_of_an_old_release_are_added(disk):
    rig = filled(disk)
    whole = {path: bytes(it) for path, it in disk.contents.items() if "/checksums/" in path}
    of_old_release(disk)
    flip(disk, BLOCK_BYTES + 5)  # nothing is learned about a damaged block
    log = rig.store.commit_log
    checksums = Checksums(disk, rig.store.layout, FILE_BYTES)
    checksums.load()
    for span in spans(log.files, 0, log.end):
        checksums.refine(span, checksums.generation)
    assert checked(rig, disk).damaged == [(BLOCK_BYTES, 2 * BLOCK_BYTES)]
    flip(disk, BLOCK_BYTES + 5)
    for span in spans(log.files, 0, log.end):
        checksums.refine(span, checksums.generation)
    assert whole == {path: disk.contents[path] for path in whole}
