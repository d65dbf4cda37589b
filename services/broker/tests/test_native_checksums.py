# SPDX-License-Identifier: Apache-2.0
"""A store with native checksums writes the same checksum files as one without."""

from collections.abc import Sequence
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from cometmq.broker.native import IS_BUILT, accel
from cometmq.store.log.block_sums import BLOCK_BYTES, BlockSums, Part, encoded
from cometmq.store.log.checksums import Check, Checksums, spans
from cometmq.store.os_disk import OsDisk
from cometmq.store.parts import NativeCode
from cometmq.testing.store.builders import StoreRig, make_message, small_settings

pytestmark = pytest.mark.skipif(not IS_BUILT, reason="cometmq-accel is built only with cargo")

FILE_BYTES: Final = 3 * BLOCK_BYTES + 1000
SETTINGS: Final = small_settings(mapped_file_size_commit_log=FILE_BYTES)


def checksum_files(block_sums: BlockSums | None, sizes: list[int]) -> dict[str, bytes]:
    """Store bodies with a checkpoint after each; check the log with the same code; return the
    checksum files.
    """
    random = Random(1)
    with TemporaryDirectory() as folder:
        disk, settings = OsDisk(), replace(SETTINGS, store_path_root_dir=folder)
        rig = StoreRig(disk, settings, native=NativeCode(block_sums=block_sums))
        for size in sizes:
            rig.put(make_message(body=random.randbytes(size)))
            rig.work(2)
        log = rig.store.commit_log
        checksums = Checksums(disk, rig.store.layout, FILE_BYTES, block_sums=block_sums)
        checksums.load()
        for span in spans(log.files, log.min_offset, log.end):
            assert checksums.check(span) == Check([], {})
        rig.store.close()
        paths = sorted(Path(rig.store.layout.checksums).iterdir())
        return {path.name: path.read_bytes() for path in paths if path.name.isdigit()}


@given(st.lists(st.integers(1, 60_000), min_size=1, max_size=12))
def test_checkpoints_of_any_size_write_the_same_files(sizes: list[int]) -> None:
    calls = 0

    def counted(fd: int, start: int, parts: Sequence[Part]) -> bytes | None:
        nonlocal calls
        calls += 1
        return accel.block_sums(fd, start, parts)

    native = checksum_files(counted, sizes)
    assert native
    assert calls >= len(sizes)
    assert native == checksum_files(None, sizes)


@given(st.lists(st.tuples(*[st.integers(0, BLOCK_BYTES)] * 2), min_size=1), st.data())
def test_parts_of_blocks_have_the_same_checksums(
    ends: list[tuple[int, int]], draw: st.DataObject
) -> None:
    content = Random(1).randbytes(len(ends) * BLOCK_BYTES)
    start = draw.draw(st.integers(0, 2**20)) * BLOCK_BYTES
    known = st.none() | st.binary(min_size=60, max_size=60)
    with TemporaryFile() as file:
        file.write(content)
        file.flush()
        for number, pair in enumerate(ends):
            begin, end = (number * BLOCK_BYTES + it for it in sorted(pair))
            part = begin, end, draw.draw(st.integers(0, 2**32 - 1)), draw.draw(known)
            expected = encoded(content[begin:end], start, [part])
            assert accel.block_sums(file.fileno(), start, [part]) == expected
