# SPDX-License-Identifier: Apache-2.0
"""Files that are read, written and synced without the interpreter lock."""

import errno
import os
from pathlib import Path
from tempfile import TemporaryFile
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

accel = pytest.importorskip("cometmq.accel", reason="cometmq-accel is built only with cargo")


@given(st.binary(max_size=200_000), st.data())
def test_checksums_of_a_file_are_those_of_zlib(data, draw):
    ends = st.integers(0, len(data))
    numbers = st.integers(0, 2**32 - 1)
    parts = [
        (*sorted((draw.draw(ends), draw.draw(ends))), draw.draw(numbers))
        for _ in range(draw.draw(st.integers(0, 5)))
    ]
    expected = [crc32(data[begin:end], before) for begin, end, before in parts]
    with TemporaryFile() as file:
        file.write(data)
        file.flush()
        assert accel.file_crcs(file.fileno(), parts) == expected
        outside = (len(data), len(data) + 1, 0)
        assert accel.file_crcs(file.fileno(), [*parts, outside]) is None


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
    assert accel.file_crcs(-1, [(0, 1, 0)]) is None
