# SPDX-License-Identifier: Apache-2.0
"""The log is written to the disk in pieces, before a sync needs it."""

import errno

import pytest

from cometmq.store.upkeep import flush
from cometmq.testing.store.builders import StoreRig, make_message, small_settings

PAGE = flush.PAGE_BYTES
PIECE = 4 * PAGE
FILE_BYTES = 16 * PAGE


@pytest.fixture
def rig(disk, monkeypatch):
    monkeypatch.setattr(flush, "WRITEBACK_BYTES", PIECE)
    return StoreRig(disk, small_settings(mapped_file_size_commit_log=FILE_BYTES))


def put_bytes(rig, count):
    """Append at least this many bytes."""
    target = rig.store.commit_log.end + count
    while rig.store.commit_log.end < target:
        rig.put(make_message(body=bytes(900)))


def write_back(rig):
    job = rig.store.upkeep.flusher.writeback_job()
    job.run()
    job.done(None)


def test_nothing_is_written_back_below_the_size_of_a_piece(rig):
    put_bytes(rig, PIECE - 2_000)
    assert rig.store.commit_log.end < PIECE
    assert rig.store.upkeep.flusher.writeback_job() is None


def test_pieces_end_at_a_page_and_continue_one_another(disk, rig):
    for _ in range(2):
        put_bytes(rig, PIECE)
        write_back(rig)
    (first_path, first, size), (second_path, second, _) = disk.writebacks
    assert first_path == second_path == rig.store.commit_log.files.files[0].path
    assert (first, size % PAGE, second) == (0, 0, size)
    assert PIECE <= size <= rig.store.commit_log.end
    assert rig.store.upkeep.flusher.writeback_job() is None


def test_one_piece_is_written_back_at_a_time(rig):
    put_bytes(rig, PIECE)
    job = rig.store.upkeep.flusher.writeback_job()
    put_bytes(rig, 2 * PIECE)
    assert rig.store.upkeep.flusher.writeback_job() is None
    job.done(None)
    write_back(rig)


def test_what_a_sync_has_written_is_left_out(disk, rig):
    put_bytes(rig, PIECE)
    rig.work(1)
    synced = rig.store.stats().flushed_offset
    assert synced % PAGE
    assert synced == rig.store.commit_log.end
    assert rig.store.upkeep.flusher.writeback_job() is None
    put_bytes(rig, PIECE)
    write_back(rig)
    (_, offset, size) = disk.writebacks[0]
    assert offset == synced
    assert offset + size == rig.store.commit_log.end // PAGE * PAGE


def test_a_piece_lies_in_the_newest_file(disk, rig):
    put_bytes(rig, FILE_BYTES + PAGE)
    write_back(rig)
    (path, offset, size) = disk.writebacks[0]
    assert path == rig.store.commit_log.files.files[1].path
    assert (offset, size) == (0, (rig.store.commit_log.end - FILE_BYTES) // PAGE * PAGE)


def test_a_new_file_without_a_whole_page_is_left_to_the_sync(rig):
    put_bytes(rig, FILE_BYTES)
    assert 0 < rig.store.commit_log.end - FILE_BYTES < PAGE
    assert rig.store.upkeep.flusher.writeback_job() is None
    put_bytes(rig, PIECE + PAGE)
    write_back(rig)


def test_a_truncated_log_is_written_back_again(disk, rig):
    put_bytes(rig, PIECE)
    write_back(rig)
    rig.store.write_state.role_writable = False
    rig.store.truncate(0)
    rig.store.write_state.role_writable = True
    put_bytes(rig, PIECE)
    write_back(rig)
    assert [offset for _, offset, _ in disk.writebacks] == [0, 0]


def test_a_store_whose_sync_failed_writes_nothing_back(disk, rig):
    put_bytes(rig, PIECE)
    disk.fault = lambda operation, path: errno.EIO if operation == "sync" else 0
    rig.work(1)
    assert rig.store.upkeep.flusher.writeback_job() is None
