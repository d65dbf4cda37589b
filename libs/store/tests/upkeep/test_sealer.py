# SPDX-License-Identifier: Apache-2.0
"""Checkpoints compute the checksums of new blocks but do not depend on them."""

import errno
from random import Random

from cometmq.store.log.block_sums import BLOCK_BYTES
from cometmq.store.log.checksums import Checksums, spans
from cometmq.testing.store.builders import StoreRig, make_message, small_settings

FILE_BYTES = 64 * BLOCK_BYTES
SETTINGS = small_settings(mapped_file_size_commit_log=FILE_BYTES, log_scrub_rate_max=64 << 10)
BODY_BYTES = BLOCK_BYTES // 15


def filled(disk, size=8 * BLOCK_BYTES):
    rig = StoreRig(disk, SETTINGS)
    put(rig, size)
    return rig


def put(rig, size):
    random, end = Random(1), rig.store.commit_log.end + size
    while rig.store.commit_log.end < end:
        rig.put(make_message(body=random.randbytes(BODY_BYTES)))


def checkpoint(rig):
    now_ms = rig.clock.advance(20_000)
    rig.flush(now_ms)
    for job in rig.store.jobs(now_ms):
        job.run()
        job.done(None)


def unknown_count(rig, disk):
    log = rig.store.commit_log
    checksums = Checksums(disk, rig.store.layout, FILE_BYTES)
    checksums.load()
    checks = [checksums.check(span) for span in spans(log.files, log.min_offset, log.end)]
    assert not any(check.damaged for check in checks)
    return sum(len(check.unknown) for check in checks)


def test_what_expiring_files_interrupt_is_covered_by_the_next_checkpoint(disk):
    rig = filled(disk)
    now_ms = rig.clock.advance(20_000)
    rig.flush(now_ms)
    (job,) = [job for job in rig.store.jobs(now_ms) if job.name == "checkpoint"]
    rig.store.upkeep.sealer._parts.checksums.take_paths([])
    job.run()
    job.done(None)
    assert unknown_count(rig, disk) >= 8
    put(rig, BLOCK_BYTES)
    checkpoint(rig)
    assert unknown_count(rig, disk) == 0


def test_a_checkpoint_does_not_need_its_checksums(disk):
    """The scrubber later computes the checksums that could not be written to a full disk."""
    rig = filled(disk)
    disk.fault = lambda _, path: errno.ENOSPC if "checksums" in path else 0
    checkpoint(rig)
    disk.fault = lambda *_: 0
    assert unknown_count(rig, disk) >= 8
    disk.crash()
    again = StoreRig(disk, SETTINGS)
    assert again.store.upkeep.recovered.start.offset == again.store.upkeep.recovered.end
    again.scrub(40)
    assert unknown_count(again, disk) <= 1  # the scrubber skips the block that still grows
