# SPDX-License-Identifier: Apache-2.0
"""The memory of a verification does not grow with the store."""

import tracemalloc

from cometmq.store.inspection.verify import verify_store
from cometmq.testing.store.builders import StoreRig, make_message, small_settings
from cometmq.testing.store.memory_disk import MemoryDisk

SETTINGS = small_settings(
    mapped_file_size_commit_log=64 << 10, mapped_file_size_consume_queue=20_000,
    max_hash_slot_num=1 << 16, max_index_num=1 << 16,
)  # fmt: skip
BYTES_PER_MESSAGE_MAX = 30


def peak(count: int) -> int:
    disk = MemoryDisk()
    rig = StoreRig(disk, SETTINGS)
    for number in range(count):
        rig.put(make_message(body=b"%d" % number, keys=f"k{number}"))
    rig.work(3)
    rig.store.close()
    tracemalloc.start()
    try:
        assert verify_store("/store", disk=disk, settings=SETTINGS).index_entry_count == count
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_verification_needs_few_bytes_per_message() -> None:
    peak(1_000)  # fills caches
    assert peak(6_000) - peak(1_000) < 5_000 * BYTES_PER_MESSAGE_MAX
