# SPDX-License-Identifier: Apache-2.0
"""A search for records finds every intact one of its range, whatever is damaged between them."""

from random import Random

import pytest

from cometmq.peers.long_forms import sampled
from cometmq.store.errors import DiskError
from cometmq.store.log.log_scanner import SKIPPED_BYTES, records_in
from cometmq.testing.store.builders import StoreRig, make_message, small_settings
from cometmq.testing.store.memory_disk import MemoryFile

FILE_BYTES = 5 << 16
MAGIC = b"\xda\xa3\x20\xa7"
SETTINGS = small_settings(
    mapped_file_size_commit_log=FILE_BYTES, mapped_file_size_consume_queue=20_000
)


@sampled(8)
@pytest.mark.parametrize("seed", range(20))
def test_every_intact_record_is_found(disk, monkeypatch, seed):
    random = Random(seed)
    rig = StoreRig(disk, SETTINGS)
    sizes = random.choices([10, 500, 3_000, 100_000], [20, 20, 20, 1], k=300)
    for number, size in enumerate(sizes):
        rig.put(make_message(body=random.randbytes(size) + MAGIC * (number % 3)))
    places = [rig.entry("T", 0, at)[:2] for at in range(300)]
    log = rig.store.commit_log
    for place in random.sample(places, 6):  # a wrong size, or magic number
        at = place[0] + random.randrange(8)
        start = at - at % FILE_BYTES
        disk.contents[f"/store/commitlog/{start:020d}"][at - start] ^= 1 << random.randrange(8)
    start, stop = sorted(random.randrange(log.end) for _ in range(2))
    found = [scan.physical_offset for scan in records_in(log.files, start, stop)]
    hit = {it for it, size in places if log.files.read(it, 8) != size.to_bytes(4) + MAGIC}
    assert found == sorted(set(found))
    assert set(found) - hit == {
        it for it, size in places if start <= it and it + size <= stop and it not in hit
    }


def test_records_beside_unreadable_bytes_are_found(disk, monkeypatch):
    rig = StoreRig(disk, SETTINGS)
    for _ in range(300):
        rig.put(make_message(body=bytes(900)))
    files, read, bad = rig.store.commit_log.files, MemoryFile.read, 3 * SKIPPED_BYTES + 17

    def failing(file, offset, count):
        if file.path.endswith("0" * 20) and offset <= bad < offset + count:
            raise DiskError("read", file.path, 5)
        return read(file, offset, count)

    places = [rig.entry("T", 0, at)[0] for at in range(300)]
    monkeypatch.setattr(MemoryFile, "read", failing)
    found = {scan.physical_offset for scan in records_in(files, 0, rig.store.commit_log.end)}
    assert {it for it in places if abs(it - bad) > 5 * SKIPPED_BYTES} <= found
    assert {it for it in places if it < 2 * SKIPPED_BYTES} <= found
