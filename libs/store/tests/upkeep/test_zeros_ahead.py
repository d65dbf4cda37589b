# SPDX-License-Identifier: Apache-2.0
"""Syncs of small batches overwrite zeros, of which no reader and no recovery takes notice."""

import errno
import os

import pytest

from cometmq.remoting.message.record import decode_records
from cometmq.store import writer
from cometmq.store.errors import DiskError
from cometmq.store.os_disk import OsDisk
from cometmq.store.results import PutResult, PutStatus
from cometmq.store.settings import FlushDiskType
from cometmq.store.upkeep import flush
from cometmq.testing.store.builders import Events, StoreRig, make_message, small_settings

FILE_BYTES = 1 << 20
AHEAD, SMALL = flush.AHEAD_BYTES, flush.SMALL_BYTES


def opened(folder, *, kind=FlushDiskType.SYNC_FLUSH, disk=None, log=None, file_bytes=FILE_BYTES):
    settings = small_settings(
        store_path_root_dir=str(folder), store_path_commit_log="", flush_disk_type=kind,
        mapped_file_size_commit_log=file_bytes, max_message_size=file_bytes // 2,
    )  # fmt: skip
    return StoreRig(disk or OsDisk(), settings, log=log or Events())


def put(rig, count=1, size=100):
    """Store messages in one batch, and sync it."""
    results: list[PutResult] = []
    for _ in range(count):
        rig.store.writer.put(make_message(body=bytes([1]) * size), results.append)
    rig.store.writer.commit()
    rig.flush()
    assert [one.status for one in results] == [PutStatus.PUT_OK] * count


def blocks_end(rig, number=0):
    return rig.store.commit_log.files.files[number].data_end()


@pytest.fixture(autouse=True)
def _has_holes(tmp_path):
    path = tmp_path / "holes"
    with path.open("wb") as file:
        file.truncate(FILE_BYTES)
        if os.lseek(file.fileno(), 0, os.SEEK_HOLE) == FILE_BYTES:
            pytest.fail("the file system of the temporary folder knows no holes")
    path.unlink()


def test_small_batches_are_synced_into_zeros_written_before(tmp_path):
    rig = opened(tmp_path / "store")
    put(rig)
    first = blocks_end(rig)
    assert AHEAD <= first <= AHEAD + 2 * flush.PAGE_BYTES
    log = rig.store.commit_log
    while log.end < AHEAD - SMALL - 1_000:
        put(rig, count=20)
        assert blocks_end(rig) == first
    put(rig, count=20)
    assert blocks_end(rig) > first
    file = log.files.files[0]
    assert file.read(log.end, FILE_BYTES) == bytes(FILE_BYTES - log.end)
    while log.end < FILE_BYTES:
        put(rig, count=20)
        assert blocks_end(rig) <= FILE_BYTES
    put(rig)
    assert blocks_end(rig, 1) >= AHEAD


def test_large_batches_and_other_flushes_write_no_zeros(tmp_path):
    rig = opened(tmp_path / "large")
    for _ in range(3):
        put(rig, size=2 * SMALL)
    assert blocks_end(rig) < rig.store.commit_log.end + flush.PAGE_BYTES
    rig = opened(tmp_path / "async", kind=FlushDiskType.ASYNC_FLUSH)
    put(rig)
    rig.work()
    assert blocks_end(rig) <= flush.PAGE_BYTES


def test_zeros_look_like_holes_after_a_kill_and_after_a_stop(tmp_path, disk):
    for is_killed in (True, False):
        log = Events()
        rig = opened(tmp_path, disk=disk)
        put(rig)
        end = rig.store.commit_log.end
        assert disk.contents[rig.store.commit_log.files.files[0].path] != b""
        if is_killed:
            disk.crash()
        else:
            rig.store.close()
        rig = opened(tmp_path, disk=disk, log=log)
        assert rig.store.commit_log.end == end
        assert not log.of("log.truncated")
        rig.store.close()


def test_any_byte_behind_zeros_is_found(tmp_path):
    rig = opened(tmp_path)
    put(rig)
    files, end = rig.store.commit_log.files, rig.store.commit_log.end
    assert files.has_data_from(0)
    assert not files.has_data_from(end)
    for position in (end, AHEAD - 1, AHEAD + 50_000, FILE_BYTES - 1):
        files.files[0].write(position, [b"x"])
        assert files.has_data_from(end)
        assert files.has_data_from(position)
        assert not files.has_data_from(position + 1)
        files.files[0].write(position, [b"\0"])


def test_a_disk_without_room_for_zeros_still_takes_messages(tmp_path):
    rig = opened(tmp_path)
    put(rig)
    file = rig.store.commit_log.files.files[0]
    write, refused = type(file).write, []

    def refuse(self, offset, buffers):
        if len(buffers) == 1 and not any(buffers[0]):
            refused.append(offset)
            raise DiskError("write", self.path, errno.ENOSPC)
        write(self, offset, buffers)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(file), "write", refuse)
        while not refused:
            put(rig, count=20)
        put(rig)
    assert rig.store.write_state.refusals == frozenset()


@pytest.mark.parametrize("step_count", range(5))
def test_zeros_are_never_written_over_a_unit_that_is_being_placed(
    tmp_path, monkeypatch, step_count
):
    monkeypatch.setattr(writer, "WRITE_BYTES", 4_096)
    monkeypatch.setattr(flush, "AHEAD_BYTES", 4_096)  # each batch needs more of them
    rig = opened(tmp_path)
    done: list[PutResult] = []
    put(rig)
    rig.store.writer.put(make_message(), done.append)
    rig.store.writer.commit()  # its sync is planned while the unit is being placed
    bodies = [bytes([number]) * 3_000 for number in range(1, 31)]
    unit = rig.store.writer.put_large([make_message(body=body) for body in bodies], done.append)
    for _ in range(step_count):
        if not unit.is_done:
            unit.step()
    rig.flush()
    unit.finish()
    rig.flush()
    assert [one.status for one in done] == [PutStatus.PUT_OK] * 2
    found = rig.store.reader.get_messages("T", 0, 2, 32, bytes_max=FILE_BYTES)
    assert [decode_records(bytes(one))[0].body for one in found.records] == bodies
