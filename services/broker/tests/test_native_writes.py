# SPDX-License-Identifier: Apache-2.0
"""Many files are written and synced natively with the same results as in Python."""

import errno
import random
from pathlib import Path

import pytest

from cometmq.broker.native import IS_BUILT, open_native_writes
from cometmq.broker.settings import BrokerSettings
from cometmq.store.errors import DiskError
from cometmq.store.os_disk import OsDisk

FILE_BYTES = 10_000
OPEN_MAX = 4

pytestmark = pytest.mark.skipif(not IS_BUILT, reason="needs the native code: make setup builds it")


def disk_with(native, **options):
    return OsDisk(open_files_max=OPEN_MAX, native=native, **options)


def files_of(disk, folder, count):
    return [
        disk.create(f"{folder}/{number}", FILE_BYTES, temporary=f"{folder}/new")
        for number in range(count)
    ]


def test_the_setting_switches_native_writes_off():
    assert open_native_writes(BrokerSettings()) is not None
    assert open_native_writes(BrokerSettings(native_lane_enable=False)) is None


def test_pieces_are_written_as_in_python(tmp_path):
    """The pieces have all sizes, overlap, and belong to more files than may be open."""
    random_ = random.Random(5)
    places = [(random_.randrange(11), random_.randrange(9_000)) for _ in range(200)]
    pieces = [(*place, random_.randbytes(random_.randrange(1_000))) for place in places]
    found = []
    for name, native in (("python", None), ("native", open_native_writes(BrokerSettings()))):
        (tmp_path / name).mkdir()
        disk = disk_with(native)
        files = files_of(disk, tmp_path / name, 11)
        disk.write_each([(files[number], offset, data) for number, offset, data in pieces])
        disk.sync_each(files)
        disk.write_each([])
        disk.sync_each([])
        found.append([Path(file.path).read_bytes() for file in files])
    assert found[0] == found[1]
    assert any(found[0][0])


@pytest.mark.parametrize("is_native", [False, True])
def test_the_first_failure_names_its_file(tmp_path, is_native):
    """All pieces before it are written, and none after it."""
    native = open_native_writes(BrokerSettings()) if is_native else None
    paths = [file.path for file in files_of(disk_with(None), tmp_path, 7)]
    disk, protected = disk_with(native), disk_with(native, read_only=True)
    files = [disk.open(path) for path in paths]
    files[5] = protected.open(paths[5])
    with pytest.raises(DiskError) as caught:
        disk.write_each([(file, 3, b"abc") for file in files])
    assert (caught.value.operation, caught.value.path) == ("write", paths[5])
    assert caught.value.errno == errno.EBADF
    written = [Path(path).read_bytes()[3:6] == b"abc" for path in paths]
    assert written == [True] * 5 + [False] * 2


@pytest.mark.parametrize("is_native", [False, True])
def test_a_file_that_cannot_be_synced_is_named(tmp_path, is_native):
    native = open_native_writes(BrokerSettings()) if is_native else None
    disk = disk_with(native)
    files = [*files_of(disk, tmp_path, 5), disk.open("/dev/null")]
    with pytest.raises(DiskError) as caught:
        disk.sync_each(files)
    assert (caught.value.operation, caught.value.path) == ("sync", "/dev/null")
    assert caught.value.errno == errno.EINVAL


def test_a_missing_file_is_named(tmp_path):
    disk = disk_with(open_native_writes(BrokerSettings()))
    missing = disk.open(str(tmp_path / "missing"))
    with pytest.raises(DiskError, match="missing") as caught:
        disk.write_each([(missing, 0, b"abc")])
    assert caught.value.errno == errno.ENOENT
