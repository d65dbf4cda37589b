# SPDX-License-Identifier: Apache-2.0
"""Files that are read, written and synced without the interpreter lock."""

import errno
import os
import struct
from pathlib import Path
from tempfile import TemporaryFile
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

accel = pytest.importorskip("cometmq.accel", reason="cometmq-accel is built only with cargo")


@given(st.binary(max_size=200_000), st.data())
def test_checksums_of_blocks_are_those_of_zlib(data, draw):
    block_bytes = 64 << 10
    numbers = st.integers(0, 2**32 - 1)
    start = draw.draw(st.integers(0, 2**40)) * block_bytes
    parts, expected = [], []
    for block in range(0, len(data), block_bytes):
        most = min(block_bytes, len(data) - block)
        begin, end = sorted(draw.draw(st.integers(0, most)) for _ in range(2))
        before = draw.draw(numbers)
        parts.append((block + begin, block + end, before, None))
        fields = start + block, end, crc32(data[block + begin : block + end], before)
        packed = struct.pack(">qII", *fields)
        expected.append(packed[8:] + struct.pack(">I", crc32(packed, block_bytes)) + bytes(64))
    with TemporaryFile() as file:
        file.write(data)
        file.flush()
        assert accel.block_sums(file.fileno(), start, parts) == b"".join(expected)
        outside = (len(data), len(data) + 1, 0, None)
        assert accel.block_sums(file.fileno(), start, [*parts, outside]) is None


def test_a_file_that_cannot_be_used_is_reported():
    with TemporaryFile() as file:
        number = file.fileno()
        with Path(os.devnull).open("rb") as read_only:
            pieces = [(number, 2, b"abc"), (read_only.fileno(), 0, b"x"), (number, 0, b"y")]
            assert accel.write_files(pieces) == (1, errno.EBADF)
            assert accel.sync_files([number, read_only.fileno()]) == (1, errno.EINVAL)
        file.seek(0)
        assert file.read() == b"\0\0abc"
        assert accel.write_files([]) is accel.sync_files([number]) is None
    assert accel.write_files([(-1, 0, b"x")]) == accel.sync_files([-1]) == (0, errno.EBADF)
    assert accel.block_sums(-1, 0, [(0, 1, 0, None)]) is None
