# SPDX-License-Identifier: Apache-2.0
"""A store with native checksums writes the same checksum files as one without."""

from collections.abc import Sequence
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from cometmq.broker.native import IS_BUILT, accel
from cometmq.store.log.checksums import BLOCK_BYTES, Check, Checksums, FileCrcs, Part, spans
from cometmq.store.native_code import NativeCode
from cometmq.store.os_disk import OsDisk
from cometmq.store.testing.builders import StoreRig, make_message, small_settings

pytestmark = pytest.mark.skipif(not IS_BUILT, reason="cometmq-accel is built only with cargo")

FILE_BYTES: Final = 3 * BLOCK_BYTES + 1000
SETTINGS: Final = small_settings(mapped_file_size_commit_log=FILE_BYTES)


def checksum_files(file_crcs: FileCrcs | None, sizes: list[int]) -> dict[str, bytes]:
    """Store bodies with a checkpoint after each; check the log with the same code; return the
    checksum files.
    """
    random = Random(1)
    with TemporaryDirectory() as folder:
        disk, settings = OsDisk(), replace(SETTINGS, store_path_root_dir=folder)
        rig = StoreRig(disk, settings, native=NativeCode(file_crcs=file_crcs))
        for size in sizes:
            rig.put(make_message(body=random.randbytes(size)))
            rig.work(2)
        log = rig.store.commit_log
        checksums = Checksums(disk, rig.store.layout, FILE_BYTES, file_crcs=file_crcs)
        checksums.load()
        for span in spans(log.files, log.min_offset, log.end):
            assert checksums.check(span) == Check([], {})
        rig.store.close()
        paths = sorted(Path(rig.store.layout.checksums).iterdir())
        return {path.name: path.read_bytes() for path in paths if path.name.isdigit()}


@given(st.lists(st.integers(1, 60_000), min_size=1, max_size=12))
def test_checkpoints_of_any_size_write_the_same_files(sizes: list[int]) -> None:
    calls = 0

    def counted(fd: int, parts: Sequence[Part]) -> Sequence[int] | None:
        nonlocal calls
        calls += 1
        return accel.file_crcs(fd, parts)

    native = checksum_files(counted, sizes)
    assert native
    assert calls >= len(sizes)
    assert native == checksum_files(None, sizes)
