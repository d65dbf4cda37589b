# SPDX-License-Identifier: Apache-2.0
"""A store with native checksums writes the same checksum files as one without."""

from random import Random
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.broker.native import IS_BUILT, accel
from cometmq.store.log.checksums import BLOCK_BYTES, Check, Checksums, Crcs, spans
from cometmq.store.native_code import NativeCode
from cometmq.store.testing.builders import StoreRig, make_message, small_settings
from cometmq.store.testing.memory_disk import MemoryDisk

pytestmark = pytest.mark.skipif(not IS_BUILT, reason="cometmq-accel is built only with cargo")

FILE_BYTES: Final = 3 * BLOCK_BYTES + 1000
SETTINGS: Final = small_settings(mapped_file_size_commit_log=FILE_BYTES)


def checksum_files(crcs: Crcs | None, sizes: list[int]) -> dict[str, bytes]:
    """Store bodies with a checkpoint after each; check the log with the same code; return the
    checksum files.
    """
    disk, random = MemoryDisk(), Random(1)
    rig = StoreRig(disk, SETTINGS, native=NativeCode(crcs=crcs))
    for size in sizes:
        rig.put(make_message(body=random.randbytes(size)))
        rig.work(2)
    log = rig.store.commit_log
    checksums = Checksums(disk, rig.store.layout, FILE_BYTES, crcs=crcs)
    checksums.load()
    for span in spans(log.files, log.min_offset, log.end):
        assert checksums.check(span) == Check([], {})
    return {
        path: bytes(disk.contents[path])
        for path in sorted(disk.contents)
        if path.startswith("/store/checksums/")
    }


@given(st.lists(st.integers(1, 60_000), min_size=1, max_size=12))
def test_checkpoints_of_any_size_write_the_same_files(sizes: list[int]) -> None:
    native = checksum_files(accel.crcs, sizes)
    assert native
    assert native == checksum_files(None, sizes)
