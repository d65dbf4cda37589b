# SPDX-License-Identifier: Apache-2.0
"""A search for records finds every intact one of its range, whatever is damaged between them."""

from random import Random

import pytest

from cometmq.peers.long_forms import sampled
from cometmq.store.log.block_sums import BLOCK_BYTES, PAGE_BYTES
from cometmq.store.upkeep import entry_repair
from cometmq.store.upkeep.entry_repair import find_heads
from cometmq.testing.store.builders import StoreRig, make_message, small_settings

FILE_BYTES = 5 * BLOCK_BYTES
SETTINGS = small_settings(
    mapped_file_size_commit_log=FILE_BYTES, mapped_file_size_consume_queue=20_000
)


@sampled(8)
@pytest.mark.parametrize("has_checksums", [True, False])
@pytest.mark.parametrize("seed", range(20))
def test_every_intact_record_is_found(disk, monkeypatch, seed, has_checksums):
    random = Random(seed)
    rig = StoreRig(disk, SETTINGS)
    sizes = random.choices([10, 500, 3_000, 100_000], [20, 20, 20, 1], k=300)
    for number, size in enumerate(sizes):
        body = random.randbytes(size) + b"\xda\xa3\x20\xa7" * (number % 3)
        rig.put(make_message(queue_id=random.randrange(2), body=body))
    rig.work(3)
    rig.store.pulls.forget()
    whole = {
        (*rig.entry("T", queue_id, at)[:2], at): queue_id
        for queue_id in (0, 1)
        for at in range(rig.store.reader.max_offset("T", queue_id))
    }
    log = rig.store.commit_log
    if not has_checksums:
        log.verified.end = 0
        log.forget_view()
    damaged = [random.randrange(log.end) for _ in range(random.randrange(8))]
    for place in damaged:
        start = place - place % FILE_BYTES
        disk.contents[f"/store/commitlog/{start:020d}"][place - start] ^= 1 << random.randrange(8)
    monkeypatch.setattr(entry_repair, "CHUNK_BYTES", random.choice([BLOCK_BYTES, 1 << 20]))
    start, stop = sorted(random.randrange(log.end) for _ in range(2))

    found = list(find_heads(log.view(), start, stop, 0))

    def is_hit(offset: int, size: int) -> bool:
        first, last = offset, offset + size - 1
        if has_checksums:  # damage hides its page
            first -= first % FILE_BYTES % PAGE_BYTES
            last += PAGE_BYTES - last % FILE_BYTES % PAGE_BYTES
        return any(first <= place <= last for place in damaged)

    intact = {it for it, queue_id in whole.items() if queue_id == 0 and not is_hit(*it[:2])}
    assert len(set(found)) == len(found)
    assert {it for it in found if not is_hit(*it[:2])} == {
        it for it in intact if start <= it[0] < stop
    }
