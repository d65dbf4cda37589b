# SPDX-License-Identifier: Apache-2.0
import ctypes
import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cometmq.store import os_disk as disk_module
from cometmq.store.disk import DiskUsage
from cometmq.store.errors import DiskError, LockHeld
from cometmq.store.layout import Layout
from cometmq.store.log.block_sums import BLOCK_BYTES, SUMS_BYTES
from cometmq.store.log.checksums import Checksums
from cometmq.store.os_disk import OsDisk
from cometmq.store.redo_log import RedoLog
from cometmq.store.settings import StoreSettings


@pytest.fixture
def disk():
    return OsDisk(open_files_max=3)


def make(disk, folder, name, size=4096):
    return disk.create(f"{folder}/{name}", size, temporary=f"{folder}/.new")


def test_a_file_is_made_sparse_and_complete(disk, tmp_path):
    file = disk.create(f"{tmp_path}/a/b/x", 1 << 30, temporary=f"{tmp_path}/.new")
    assert file.size() == 1 << 30
    assert Path(file.path).stat().st_blocks == 0
    assert disk.names(f"{tmp_path}/a/b") == ["x"]


def test_what_is_written_is_read(disk, tmp_path):
    file = make(disk, tmp_path, "x")
    file.write(10, [b"ab", memoryview(b"cd"), bytearray(b"e")])
    assert file.read(8, 9) == b"\0\0abcde\0\0"
    assert bytes(file.read_cached(10, 5)) == b"abcde"
    assert file.read(4090, 100) == bytes(6)
    file.sync()
    disk.sync_folder(str(tmp_path))


def test_more_buffers_than_one_call_takes(disk, tmp_path):
    file = make(disk, tmp_path, "x", 1 << 20)
    buffers = [b"%05d" % number for number in range(3000)]
    file.write(7, buffers)
    assert file.read(7, 15000) == b"".join(buffers)


def test_a_short_write_is_finished(disk, tmp_path, monkeypatch):
    file = make(disk, tmp_path, "x")
    real = os.pwritev
    monkeypatch.setattr(os, "pwritev", lambda fd, parts, at: real(fd, [b"".join(parts)[:3]], at))
    file.write(0, [b"abc", b"defg"])
    assert file.read(0, 8) == b"abcdefg\0"


def test_reads_that_would_wait_say_so(disk, tmp_path, monkeypatch):
    file = make(disk, tmp_path, "x")

    def refuse(*_):
        raise BlockingIOError(errno.EAGAIN, "would wait")

    monkeypatch.setattr(os, "preadv", refuse)
    assert file.read_cached(0, 10) is None


def test_a_part_in_memory_is_not_enough(disk, tmp_path, monkeypatch):
    file = make(disk, tmp_path, "x")
    monkeypatch.setattr(os, "preadv", lambda *_: 5)
    assert file.read_cached(0, 10) is None


def test_file_systems_without_such_reads_are_read_plainly(disk, tmp_path, monkeypatch):
    file = make(disk, tmp_path, "x")
    file.write(0, [b"abc"])

    def refuse(*_):
        raise OSError(errno.EOPNOTSUPP, "not supported")

    monkeypatch.setattr(os, "preadv", refuse)
    assert file.descriptor() is not None
    assert file.read_cached(0, 3) == b"abc"
    assert not disk.can_read_no_wait
    assert file.descriptor() is None
    monkeypatch.undo()
    assert file.read_cached(0, 3) == b"abc"


def is_open(path):
    return path in {os.path.realpath(link) for link in Path("/proc/self/fd").iterdir()}


def test_a_descriptor_stays_open_as_long_as_it_is_referenced(disk, tmp_path):
    file = make(disk, tmp_path, "x")
    file.write(0, [b"abc"])
    descriptor = file.descriptor()
    file.close()
    assert os.pread(descriptor.number, 3, 0) == b"abc"
    assert is_open(file.path)
    del descriptor
    assert not is_open(file.path)


def open_count():
    return len(list(Path("/proc/self/fd").iterdir()))


def test_open_files_are_bounded_and_come_back(disk, tmp_path):
    before = open_count()
    files = [make(disk, tmp_path, f"{number}") for number in range(50)]
    for number, file in enumerate(files):
        file.write(0, [b"%d" % number])
    assert open_count() <= before + 3
    assert [file.read(0, 1) for file in files[:10]] == [b"%d" % n for n in range(10)]


def test_a_file_that_its_owner_drops_is_closed(disk, tmp_path):
    """Otherwise the space of deleted files is not freed (rabbitmq/rabbitmq-server#14177)."""
    before = open_count()
    for number in range(50):
        file = make(disk, tmp_path, f"{number}")
        file.write(0, [b"x"])
        assert open_count() == before + 1
        disk.remove(file.path)
        del file
        assert open_count() == before
    kept = [make(disk, tmp_path, f"kept{number}") for number in range(5)]
    for file in kept * 3:
        file.write(0, [b"y"])
    assert open_count() == before + 3


def test_no_deleted_file_of_a_store_stays_open(tmp_path):
    """Retention, a truncation and a redo log delete files that have been read and written."""
    disk = OsDisk()
    layout = Layout(StoreSettings(store_path_root_dir=str(tmp_path)))
    checksums = Checksums(disk, layout, BLOCK_BYTES)
    for start in range(0, 4 * BLOCK_BYTES, BLOCK_BYTES):
        checksums.learn(start, {0: bytes(SUMS_BYTES)}, checksums.generation)
    for path in checksums.take_paths([0, BLOCK_BYTES]):
        disk.remove(path)
    log = RedoLog(disk, f"{tmp_path}/redo", file_bytes=4096)
    assert list(log.replay()) == []
    for number in range(4):
        log.begin_file(1, b"")
        log.append(2, b"%d" % number)
    for path in log.forget_below(log.file_start):
        disk.remove(path)

    kept = [layout.checksum_file(start) for start in (2 * BLOCK_BYTES, 3 * BLOCK_BYTES)]
    assert log.file is not None
    assert open_paths(tmp_path) == sorted([*kept, log.file.path])


def open_paths(folder):
    """Return what this process has open in a folder, deleted files included."""
    links = list(Path("/proc/self/fd").iterdir())
    paths = [str(link.readlink()) for link in links if link.is_symlink()]
    return sorted(path for path in paths if path.startswith(f"{folder}/"))


def test_a_reader_keeps_a_deleted_file(disk, tmp_path):
    file = make(disk, tmp_path, "x")
    file.write(0, [b"abc"])
    descriptor = file._open()
    file.close()
    disk.remove(file.path)
    assert os.pread(descriptor.number, 3, 0) == b"abc"
    assert not disk.exists(file.path)
    disk.remove(file.path)  # deleting a missing file is allowed
    with pytest.raises(DiskError) as caught:
        file.read(0, 1)
    assert caught.value.errno == errno.ENOENT


def test_next_data_skips_holes(disk, tmp_path):
    file = make(disk, tmp_path, "x", 1 << 20)
    assert file.next_data(0) is None
    file.write(600_000, [b"x"])
    found = file.next_data(0)
    assert found is None or found <= 600_000  # the file system may not support SEEK_DATA
    last = file.size() - 1
    assert file.next_data(last) in {None, last}


def test_padding_and_cutting(disk, tmp_path):
    file = make(disk, tmp_path, "x", 100)
    file.write(0, [b"x" * 100])
    disk.resize(file.path, 50)
    disk.resize(file.path, 100)
    assert file.read(0, 100) == b"x" * 50 + bytes(50)


def test_errors_carry_operation_path_and_number(disk, tmp_path):
    with pytest.raises(DiskError) as caught:
        disk.open(f"{tmp_path}/missing").read(0, 1)
    error = caught.value
    assert (error.operation, error.errno) == ("open", errno.ENOENT)
    assert str(error) == f"cannot open {tmp_path}/missing: ENOENT"
    assert not error.is_space_missing
    assert DiskError("write", "/x", errno.ENOSPC).is_space_missing


def test_a_read_only_disk_does_not_write(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"abc")
    file = OsDisk(read_only=True).open(str(path))
    assert file.read(0, 3) == b"abc"
    with pytest.raises(DiskError):
        file.write(0, [b"z"])


def test_folders(disk, tmp_path):
    assert disk.names(f"{tmp_path}/none") == []
    disk.make_folder(f"{tmp_path}/a/b")
    assert disk.is_folder(f"{tmp_path}/a/b")
    make(disk, f"{tmp_path}/a/b", "x")
    disk.rename(f"{tmp_path}/a/b/x", f"{tmp_path}/a/y")
    assert disk.names(f"{tmp_path}/a") == ["b", "y"]
    disk.remove_tree(f"{tmp_path}/a")
    disk.remove_tree(f"{tmp_path}/a")
    assert not disk.exists(f"{tmp_path}/a")


@pytest.mark.parametrize("folder", ["/", "/dev/shm", "."])  # folders on different file systems
def test_usage_is_that_of_df(folder):
    """As in `df`, blocks reserved for root do not count as available."""
    lines = subprocess.run(
        ["df", "--output=pcent", folder], capture_output=True, text=True, check=True
    ).stdout.split()
    wanted = int(lines[-1].removesuffix("%"))
    assert abs(OsDisk().usage(folder).percent - wanted) <= 1  # other processes may write meanwhile


def test_usage_rounds_up():
    assert DiskUsage(1, 999).percent == 1
    assert DiskUsage(900, 100).percent == 90
    assert DiskUsage(0, 0).percent == 0
    assert 0 < OsDisk().usage("/").percent <= 100


LOCK_IN_CHILD = """
import sys
from cometmq.store.os_disk import OsDisk
from cometmq.store.errors import LockHeld
try:
    OsDisk().lock(sys.argv[1])
except LockHeld:
    sys.exit(7)
"""


def lock_in_child(path):
    return subprocess.run([sys.executable, "-c", LOCK_IN_CHILD, path], check=False).returncode


def test_a_lock_excludes_this_and_other_processes(disk, tmp_path):
    path = str(tmp_path / "lock")
    lock = disk.lock(path)
    with pytest.raises(LockHeld):
        OsDisk().lock(path)
    assert lock_in_child(path) == 7
    lock.release()
    assert lock_in_child(path) == 0
    disk.lock(path).release()
    assert (tmp_path / "lock").read_bytes() == b"lock"


def test_writeback_changes_nothing_that_readers_see(disk, tmp_path):
    file = make(disk, tmp_path, "x", 3 * 4096)
    file.write(0, [b"ab" * 4096])
    file.start_writeback(0, 8192)
    file.start_writeback(8192, 1 << 40)  # beyond the end
    assert file.read(0, 8192) == b"ab" * 4096
    file.sync()


def test_all_files_of_a_locked_folder_are_synced_at_once(disk, tmp_path):
    assert not disk.sync_all(str(tmp_path))  # the kernel could hide what failed before
    lock = disk.lock(f"{tmp_path}/lock")
    for number in range(10):
        make(disk, tmp_path / "a", str(number)).write(0, [b"x"])
    assert disk.sync_all(f"{tmp_path}/a")
    assert not disk.sync_all("/proc")  # another file system
    lock.release()


def test_a_failed_sync_of_all_files_is_an_error(disk, tmp_path, monkeypatch):
    lock = disk.lock(f"{tmp_path}/lock")
    monkeypatch.setattr(disk_module, "_syncfs", lambda _: -1)
    monkeypatch.setattr(ctypes, "get_errno", lambda: errno.EIO)
    with pytest.raises(DiskError) as caught:
        disk.sync_all(str(tmp_path))
    assert (caught.value.operation, caught.value.errno) == ("sync", errno.EIO)
    lock.release()


def test_a_file_that_is_open_apart_shares_no_description_and_stays_open(disk, tmp_path):
    path = make(disk, tmp_path, "x").path
    first, second = disk.open_apart(path), disk.open_apart(path)
    numbers = first.opened().number, second.opened().number
    os.lseek(numbers[0], 7, os.SEEK_SET)
    assert os.lseek(numbers[1], 0, os.SEEK_CUR) == 0
    for name in "abcde":  # more than may be open
        make(disk, tmp_path, name).read(0, 1)
    assert (first.opened().number, second.opened().number) == numbers
    first.sync()


def test_a_file_that_cannot_be_opened_apart_is_an_error_at_once(disk, tmp_path):
    with pytest.raises(DiskError, match="cannot open"):
        disk.open_apart(f"{tmp_path}/missing")
