# SPDX-License-Identifier: Apache-2.0
"""Files of equal size: the search for data behind an offset."""

import os
from typing import Final

import pytest

from cometmq.peers.long_forms import sampled
from cometmq.store.log.file_sequence import FileSequence
from cometmq.store.os_disk import OsDisk

FILE_BYTES: Final = 3 << 20
PLACES: Final = (0, 59, 60, 4_095, 4_096, 12_287, 12_288, (1 << 20) - 1, 1 << 20, FILE_BYTES - 1)


@pytest.fixture
def files(tmp_path):
    found = FileSequence(OsDisk(), str(tmp_path), FILE_BYTES, lambda path: f"{path}.new")
    found.create_next()
    return found


@sampled(5)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("are_zeros_written", [False, True])
def test_one_byte_is_found_from_every_offset_up_to_it(files, place, are_zeros_written):
    if are_zeros_written:
        files.files[0].write(0, [bytes(FILE_BYTES)])
    files.files[0].write(place, [b"x"])
    for offset in PLACES:
        assert files.has_data_from(offset) == (offset <= place)


def test_behind_the_last_entry_of_a_sparse_file_little_is_read(files, monkeypatch):
    """A start reads the rest of each queue after a kill: 1 MiB each took 10 s for 6,000 queues."""
    files.files[0].write(0, [b"x" * 60])
    counts = []
    pread = os.pread

    def counted(descriptor, count, offset):
        counts.append(count)
        return pread(descriptor, count, offset)

    monkeypatch.setattr(os, "pread", counted)
    assert not files.has_data_from(60)
    assert 0 < sum(counts) <= 64 << 10  # the block size of the file system
