# SPDX-License-Identifier: Apache-2.0
from resource import RUSAGE_SELF, getrusage

import pytest

from cometmq.testing.store.memory_disk import SPARSE_BYTES_MIN, MemoryDisk


@pytest.mark.parametrize("is_sparse", [False, True])
def test_a_file_keeps_what_is_written(is_sparse: bool) -> None:
    disk, size = MemoryDisk(is_sparse=is_sparse), SPARSE_BYTES_MIN
    file = disk.create("/a", size, temporary="/b")
    file.write(10, [b"abc", b"def"])
    assert file.read(8, 6) == b"\0\0abcd"
    assert (file.size(), file.data_end(), file.next_data(12)) == (size, 16, 12)
    file.sync()
    file.write(16, [b"ghi"])
    disk.lose_power()
    assert file.read(10, 9) == b"abcdef\0\0\0"


@pytest.mark.parametrize("is_sparse", [False, True])
def test_a_resized_file_keeps_its_start(is_sparse: bool) -> None:
    disk, size = MemoryDisk(is_sparse=is_sparse), SPARSE_BYTES_MIN
    file = disk.create("/a", size, temporary="/b")
    file.write(0, [b"ab" * 20])
    for smaller, larger in ((30, 40), (25, size), (20, 2 * size)):
        disk.resize("/a", smaller)
        assert file.size() == smaller
        disk.resize("/a", larger)
        assert file.size() == larger
        assert bytes(disk.contents["/a"]) == (b"ab" * 20)[:smaller].ljust(larger, b"\0")


def test_an_unused_page_of_a_sparse_file_takes_no_memory() -> None:
    disk = MemoryDisk(is_sparse=True)
    before = getrusage(RUSAGE_SELF).ru_minflt
    for number in range(4):
        disk.create(f"/{number}", 32 << 20, temporary="/new").write(1 << 20, [b"x"])
    assert getrusage(RUSAGE_SELF).ru_minflt - before < 1_000
