# SPDX-License-Identifier: Apache-2.0
"""The overall verdicts of `verify`: healthy, in use, needs recovery, damaged."""

import errno
import os
import subprocess
import sys
import tracemalloc
from random import Random
from typing import Any

import pytest

from cometmq.store.errors import DiskError
from cometmq.store.inspection.dump import dump_log, dump_queue
from cometmq.store.inspection.inspect import inspect_store
from cometmq.store.inspection.overlay import OverlayDisk
from cometmq.store.inspection.verification import FindingKind, StoreState
from cometmq.store.inspection.verify import verify_store
from cometmq.store.message_store import MessageStore
from cometmq.store.os_disk import OsDisk
from cometmq.testing.store.builders import StoreRig, make_message, small_settings

LOG = "/store/commitlog/"
QUEUE = "/store/consumequeue/T/0/"
SHAPE = small_settings(max_hash_slot_num=16, max_index_num=64)


def fill(rig, count, topic="T"):
    for number in range(count):
        rig.put(make_message(topic, number % 2, b"%d" % number, keys=f"k{number}", tags="A"))


@pytest.fixture
def running(disk):
    """Return a broker's store with 100 messages before its last checkpoint and 30 after it."""
    rig: Any = StoreRig(disk, SHAPE)
    fill(rig, 100)
    rig.work()
    rig.checkpointed = rig.store.stats().checkpoint_offset
    fill(rig, 30)
    return rig


def verify(disk):
    return verify_store("/store", disk=disk, settings=SHAPE)


def flip(disk, path, position):
    disk.contents[path][position] ^= 0xFF


def body_of(disk, number):
    """Return the file and position of the first byte of a record's body."""
    place = list(dump_log("/store", disk=disk))[number].physical_offset + 88
    start = place - place % 4096
    return f"{LOG}{start:020d}", place - start


def test_a_store_in_use_is_checked_up_to_its_checkpoint(disk, running):
    before = {path: bytes(data) for path, data in disk.contents.items()}
    found = verify(disk)
    assert (found.state, found.findings) == (StoreState.IN_USE, [])
    assert found.in_use_by == 0
    assert (found.record_count, found.queue_entry_count, found.index_entry_count) == (100,) * 3
    assert found.max_offset == running.checkpointed
    assert {path: bytes(data) for path, data in disk.contents.items()} == before
    running.store.close()
    assert verify(disk).state is StoreState.HEALTHY


def test_inspect_counts_the_index_entries_of_a_store_in_use_as_verify_does(disk, running):
    """The growing file's header reaches the disk later than its entries."""
    (file,) = inspect_store("/store", disk=disk, settings=SHAPE).index_files[-1:]
    found = verify(disk)
    counts = [
        it.entry_count for it in inspect_store("/store", disk=disk, settings=SHAPE).index_files
    ]
    assert sum(counts) == found.index_entry_count == 100
    last = list(dump_log("/store", disk=disk))[99]
    assert file.end_offset == last.physical_offset
    assert last.store_timestamp - 1000 < file.end_timestamp <= last.store_timestamp


def test_damage_before_the_checkpoint_of_a_store_in_use_is_found(disk, running):
    flip(disk, *body_of(disk, 10))
    found = verify(disk)
    assert found.state is StoreState.DAMAGED
    assert FindingKind.LOG_DAMAGED in {finding.kind for finding in found.findings}


def test_what_is_being_written_is_no_damage(disk, running):
    flip(disk, *body_of(disk, 120))
    assert verify(disk).state is StoreState.IN_USE
    assert inspect_store("/store", disk=disk, settings=SHAPE).damages == []
    assert len(list(dump_log("/store", disk=disk))) == 120
    assert len(list(dump_queue("/store", "T", 0, disk=disk))) == 50


def test_files_that_expire_while_a_store_in_use_is_read_are_left_out(disk, running):
    victims = [LOG + disk.names(LOG)[0], LOG + disk.names(LOG)[1]]

    def expire(done, total):
        for path in victims:
            disk.remove(path)

    found = verify_store("/store", disk=disk, settings=SHAPE, on_progress=expire)
    assert found.state is StoreState.IN_USE
    assert 0 < found.record_count < 100


def test_a_killed_store_needs_recovery_and_nothing_is_wrong(disk, running):
    disk.crash()
    found = verify(disk)
    assert (found.state, found.findings) == (StoreState.NEEDS_RECOVERY, [])
    assert found.recovery.start.offset == running.checkpointed
    assert found.recovery.record_count == 30
    assert (found.record_count, found.queue_entry_count, found.index_entry_count) == (130,) * 3


def test_a_log_whose_last_file_is_closed_is_not_shorter_than_its_checkpoint(disk):
    """A kill may happen between the blank that closes a file and the next file's first record."""
    rig: Any = StoreRig(disk, SHAPE)
    while len(disk.names(LOG)) < 3:
        fill(rig, 1)
    disk.crash()
    boundary = int(disk.names(LOG)[-1])
    disk.remove(f"{LOG}{boundary:020d}")
    again: Any = StoreRig(disk, SHAPE)
    assert again.store.stats().max_offset == boundary
    again.work()
    disk.crash()
    found = verify(disk)
    assert (found.state, found.findings) == (StoreState.NEEDS_RECOVERY, [])
    assert found.max_offset == boundary


def test_a_torn_end_is_no_damage(disk, running):
    disk.crash(lost_bytes=20)
    found = verify(disk)
    assert (found.state, found.findings) == (StoreState.NEEDS_RECOVERY, [])
    assert found.record_count == 129


def test_queues_that_a_start_builds_again_need_recovery(disk, running):
    running.store.close()
    disk.remove_tree("/store/consumequeue/T/1")
    found = verify(disk)
    assert found.state is StoreState.NEEDS_RECOVERY
    assert {finding.kind for finding in found.findings} == {FindingKind.QUEUE_ENTRY_MISSING}
    assert len(list(dump_queue("/store", "T", 1, disk=disk))) == 0  # nothing was changed
    StoreRig(disk, SHAPE).store.close()
    assert verify(disk).state is StoreState.HEALTHY


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize(
    ("harm", "kind"),
    [
        (lambda disk: flip(disk, *body_of(disk, 10)), FindingKind.LOG_DAMAGED),
        (
            lambda disk: disk.contents[QUEUE + "0" * 20].__setitem__(
                slice(20, 40), disk.contents[QUEUE + "0" * 20][40:60]
            ),
            FindingKind.QUEUE_ENTRY_WRONG,
        ),
        (
            lambda disk: disk.contents[QUEUE + "0" * 20].__setitem__(slice(20, 40), bytes(20)),
            FindingKind.QUEUE_ENTRY_MISSING,
        ),
        (
            lambda disk: disk.contents.__delitem__(LOG + disk.names(LOG)[1]),
            FindingKind.FILE_DAMAGED,
        ),
        (
            lambda disk: disk.contents[LOG + disk.names(LOG)[1]].__delitem__(slice(2000, 4096)),
            FindingKind.FILE_DAMAGED,
        ),
        (
            lambda disk: disk.contents[LOG + disk.names(LOG)[0]].__delitem__(slice(2000, 4096)),
            FindingKind.FILE_DAMAGED,
        ),
        (
            lambda disk: disk.contents[QUEUE + disk.names(QUEUE)[1]].__delitem__(slice(50, 200)),
            FindingKind.FILE_DAMAGED,
        ),
        (
            lambda disk: disk.contents["/store/index/" + disk.names("/store/index")[0]].__delitem__(
                slice(500, None)
            ),
            FindingKind.FILE_DAMAGED,
        ),
    ],
)
def test_what_no_start_makes_good_is_damage(disk, running, harm, kind, is_killed):
    if is_killed:
        disk.crash()
    else:
        running.store.close()
    harm(disk)
    found = verify(disk)
    assert found.state is StoreState.DAMAGED
    assert kind in {finding.kind for finding in found.findings}


@pytest.mark.parametrize("end", ["stop", "kill", "run"])
def test_a_log_that_ends_before_its_checkpoint_is_damage(disk, running, end):
    if end == "stop":
        running.store.close()
    elif end == "kill":
        disk.crash()
    last = LOG + disk.names(LOG)[-1]
    while int(last[-20:]) > running.checkpointed - 4096:
        disk.remove(last)
        last = LOG + disk.names(LOG)[-1]
    found = verify(disk)
    assert found.state is StoreState.DAMAGED
    assert "was safe on the disk" in "".join(finding.text for finding in found.findings)


def test_a_bad_sector_is_damage(disk, running):
    running.store.close()
    path = LOG + disk.names(LOG)[1]
    disk.fault = lambda operation, name: errno.EIO if (operation, name) == ("read", path) else 0
    found = verify(disk)
    assert found.state is StoreState.DAMAGED
    assert path in "".join(finding.text for finding in found.findings)


def test_a_file_that_may_not_be_read_is_an_error_and_no_damage(disk, running):
    running.store.close()
    disk.fault = lambda operation, name: errno.EACCES if operation == "read" else 0
    with pytest.raises(DiskError, match="EACCES"):
        verify(disk)


@pytest.mark.parametrize("end", ["stop", "kill", "run"])
@pytest.mark.parametrize("is_made_again", [False, True])
def test_messages_of_a_deleted_topic_are_no_findings(disk, end, is_made_again):
    rig = StoreRig(disk, SHAPE)
    fill(rig, 20)
    fill(rig, 20, "Gone")
    rig.work()
    rig.store.delete_topic("Gone")
    fill(rig, 20, "Gone" if is_made_again else "T")
    rig.work()
    if end == "stop":
        rig.store.close()
    elif end == "kill":
        disk.crash()
    found = verify(disk)
    expected = {
        "stop": StoreState.HEALTHY,
        "kill": StoreState.NEEDS_RECOVERY,
        "run": StoreState.IN_USE,
    }
    assert (found.state, found.findings) == (expected[end], [])


def test_the_lock_names_the_process_that_holds_it(tmp_path):
    path = tmp_path / "lock"
    disk = OsDisk(read_only=True)
    assert disk.locked_by(str(path)) is None
    path.touch()
    assert disk.locked_by(str(path)) is None
    code = (
        "import fcntl, sys; file = open(sys.argv[1], 'r+b');"
        "fcntl.lockf(file, fcntl.LOCK_EX, 1, 0); print(flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout
        child.stdout.readline()
        assert disk.locked_by(str(path)) == child.pid
        assert child.stdin
        child.stdin.close()
    assert disk.locked_by(str(path)) is None


def test_asking_for_the_lock_keeps_the_lock(tmp_path):
    disk = OsDisk()
    path = str(tmp_path / "lock")
    lock = disk.lock(path)
    assert disk.locked_by(path) == os.getpid()
    code = (
        "import fcntl, sys; file = open(sys.argv[1], 'r+b');"
        "fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, path], capture_output=True, check=False, timeout=120
    )
    assert b"BlockingIOError" in done.stderr
    lock.release()


def test_an_overlay_shows_what_was_written_and_changes_nothing(disk):
    rig = StoreRig(disk, SHAPE)
    fill(rig, 60)
    rig.work()
    disk.crash()
    before = {path: bytes(data) for path, data in disk.contents.items()}
    overlay = OverlayDisk(disk)
    rig = StoreRig(overlay, SHAPE)
    fill(rig, 60)
    rig.store.delete_topic("T")
    fill(rig, 40)
    rig.work()
    rig.store.close()
    again = MessageStore.open(SHAPE, disk=overlay, clock_ms=lambda: 0)
    assert again.reader.max_offset("T", 0) == 20
    again.close()
    assert len(list(dump_log("/store", disk=overlay))) == 160
    assert {path: bytes(data) for path, data in disk.contents.items()} == before


@pytest.mark.parametrize("size", [10, 70_000, 200_000])
def test_an_overlay_file_is_cut_and_padded(disk, size):
    disk.contents["/a"] = bytearray(b"x" * 150_000)
    overlay = OverlayDisk(disk)
    file = overlay.open("/a")
    file.write(100_000, [b"new", b"er"])
    assert file.read(99_999, 7) == b"xnewerx"
    overlay.resize("/a", size)
    overlay.resize("/a", 150_000)
    wanted = bytearray(b"x" * 100_000 + b"newer" + b"x" * 49_995)[:size].ljust(150_000, b"\0")
    assert file.read(0, 200_000) == wanted
    assert file.read_cached(149_999, 2) is None
    data = file.next_data(size - 1)
    assert data is None or data <= size - 1 or not any(wanted[size:])
    assert not any(wanted[file.data_end() :])


def test_a_rehearsal_keeps_little_in_memory(disk, monkeypatch, tmp_path):
    monkeypatch.setattr("cometmq.store.inspection.overlay.MEMORY_BYTES_MAX", 1 << 17)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    files = OverlayDisk(disk)
    file = files.create("/store/index/1", 1 << 20, temporary="")
    content = Random(1).randbytes(1 << 20)
    tracemalloc.start()
    try:
        for at in range(0, len(content), 1 << 12):
            file.write(at, [content[at : at + (1 << 12)]])
        assert tracemalloc.get_traced_memory()[0] < 1 << 18
    finally:
        tracemalloc.stop()
    assert file.read(0, 1 << 20) == content
    del files, file
    assert not any(tmp_path.iterdir())
