# SPDX-License-Identifier: Apache-2.0
"""Every row of the recovery tables, and the crashes that lead to it."""

from typing import Any

import pytest

from cometmq.remoting.message.new_message import encode_record
from cometmq.remoting.message.record import Scan, ScanStatus, decode_record
from cometmq.store.errors import CorruptStore, DiskError
from cometmq.store.queues.consume_queue import last_entry
from cometmq.store.reads import finish
from cometmq.store.recovery.log_end import StopVerdict, judge_stop
from cometmq.store.recovery.start import StartReason
from cometmq.store.results import GetStatus, PutStatus
from cometmq.store.settings import FlushDiskType
from cometmq.store.testing.builders import Events, StoreRig, make_message, small_settings
from cometmq.store.testing.memory_disk import MemoryDisk

LOG = "/store/commitlog/"


@pytest.fixture
def disk():
    return MemoryDisk()


def fill(rig, count, start=0, topic="T", queues=2):
    for number in range(start, start + count):
        message = make_message(
            topic, number % queues, b"body-%d" % number, keys=f"k{number}", tags="A"
        )
        assert rig.put(message).status is PutStatus.PUT_OK


def bodies(rig, topic="T", queues=2):
    found = []
    for queue_id in range(queues):
        offset = rig.store.reader.min_offset(topic, queue_id)
        while True:
            result = rig.store.reader.get_messages(topic, queue_id, offset, 32)
            if result.status is not GetStatus.FOUND:
                break
            for record in map(decode_record, result.records):
                assert record.queue_offset == offset
                offset += 1
                found.append(record.body)
    return sorted(found, key=lambda body: int(body.split(b"-")[1]))


def sent(count):
    return [b"body-%d" % number for number in range(count)]


def found_by_key(rig, key, topic="T"):
    return [
        record.body for record in finish(rig.store.reader.query(topic, key, 10, 0, 1 << 62)).records
    ]


def stopped_store(disk, stop, rounds=3):
    """Leave a store of 50 messages, closed or crashed after some rounds of background jobs."""
    rig = StoreRig(disk)
    fill(rig, 50)
    rig.work(rounds)
    if stop == "clean":
        rig.store.close()
    else:
        disk.crash()


def all_files(disk, folder):
    return {path: bytes(data) for path, data in disk.contents.items() if path.startswith(folder)}


# Start of recovery


def test_an_empty_folder_starts_at_zero(disk):
    rig = StoreRig(disk)
    assert rig.store.upkeep.recovered.start == (0, StartReason.EMPTY_LOG)


def test_a_clean_stop_scans_nothing(disk):
    rig = StoreRig(disk)
    fill(rig, 50)
    rig.store.close()
    rig = StoreRig(disk)
    assert rig.store.upkeep.recovered.start == (rig.store.commit_log.end, StartReason.PROGRESS)
    assert rig.store.upkeep.recovered.record_count == 0
    assert bodies(rig) == sent(50)


def test_a_crash_scans_what_came_after_the_checkpoint(disk):
    rig = StoreRig(disk)
    fill(rig, 40)
    rig.work(3)
    checkpoint = rig.store.stats().checkpoint_offset
    fill(rig, 10, start=40)
    disk.crash()
    rig = StoreRig(disk)
    assert rig.store.upkeep.recovered.start == (checkpoint, StartReason.PROGRESS)
    assert rig.store.upkeep.recovered.record_count == 10
    assert bodies(rig) == sent(50)
    assert found_by_key(rig, "k5") == [b"body-5"]
    assert found_by_key(rig, "k45") == [b"body-45"]
    assert rig.put(make_message("T", 0, b"body-50")).queue_offset == 25


def test_a_crash_before_the_first_checkpoint_scans_everything(disk):
    rig = StoreRig(disk)
    fill(rig, 50)
    disk.crash()
    rig = StoreRig(disk)
    assert rig.store.upkeep.recovered.record_count == 50
    assert bodies(rig) == sent(50)


@pytest.mark.parametrize("stop", ["clean", "crash"])
def test_deleted_queues_are_built_again(disk, stop):
    stopped_store(disk, stop)
    disk.remove_tree("/store/consumequeue/T/1")
    rig = StoreRig(disk)
    assert rig.store.upkeep.recovered.start.reason is StartReason.QUEUES_LOST
    assert bodies(rig) == sent(50)


@pytest.mark.parametrize("stop", ["clean", "crash"])
def test_a_deleted_index_is_built_again(disk, stop):
    stopped_store(disk, stop)
    disk.remove_tree("/store/index")
    rig = StoreRig(disk)
    assert rig.store.upkeep.recovered.start.reason is StartReason.INDEX_LOST
    assert bodies(rig) == sent(50)
    assert found_by_key(rig, "k5") == [b"body-5"]
    rig.store.close()
    rig = StoreRig(disk)
    assert rig.store.upkeep.recovered.start.reason is StartReason.PROGRESS
    assert found_by_key(rig, "k5") == [b"body-5"]


@pytest.mark.parametrize("stop", ["clean", "crash"])
def test_a_log_alone_is_enough(disk, stop):
    """All other files are derived from the log, so a copy of the log alone is a complete store."""
    stopped_store(disk, stop, rounds=0)
    for path in list(disk.contents):
        if not path.startswith(LOG) and path != "/store/abort":
            disk.remove(path)
    disk.remove_tree("/store/consumequeue")
    rig = StoreRig(disk)
    assert bodies(rig) == sent(50)
    assert found_by_key(rig, "k7") == [b"body-7"]


def test_without_progress_a_clean_stop_starts_at_the_end_of_the_queues(disk):
    """A Java broker leaves the store like this, because it writes no progress file."""
    rig = StoreRig(disk)
    fill(rig, 50)
    rig.store.close()
    disk.remove("/store/progress")
    rig = StoreRig(disk)
    assert rig.store.upkeep.recovered.start == (rig.store.commit_log.end, StartReason.QUEUE_END)
    assert bodies(rig) == sent(50)


def test_without_progress_a_crash_starts_at_the_last_checkpointed_file(disk):
    rig = StoreRig(disk)
    fill(rig, 100)
    rig.work(3)
    rig.clock.advance(10_000)
    fill(rig, 100, start=100)
    rig.work(3)
    disk.crash()
    disk.remove("/store/progress")
    rig = StoreRig(disk)
    start = rig.store.upkeep.recovered.start
    assert start.reason is StartReason.CHECKPOINT
    assert 0 < start.offset < rig.store.commit_log.end
    assert start.offset % 4096 == 0
    assert bodies(rig) == sent(200)
    assert found_by_key(rig, "k3") == [b"body-3"]
    assert found_by_key(rig, "k199") == [b"body-199"]


def test_progress_of_another_programs_checkpoint_is_not_believed(disk):
    rig = StoreRig(disk)
    fill(rig, 50)
    rig.store.close()
    disk.contents["/store/checkpoint"][0:8] = (1 << 60).to_bytes(8, "big")
    rig = StoreRig(disk)
    assert rig.store.upkeep.recovered.start.reason is StartReason.QUEUE_END
    assert bodies(rig) == sent(50)


def test_a_damaged_progress_file_is_not_believed(disk):
    rig = StoreRig(disk)
    fill(rig, 50)
    rig.store.close()
    disk.contents["/store/progress"][10] ^= 1
    rig = StoreRig(disk)
    assert rig.store.upkeep.recovered.start.reason is StartReason.QUEUE_END
    assert bodies(rig) == sent(50)


# End of the log

FOLLOWS = Scan(ScanStatus.RECORD, 100, store_timestamp=5000)


@pytest.mark.parametrize(
    ("stop", "safe_offset", "safe_timestamp", "follows", "verdict"),
    [
        (100, 0, 0, None, StopVerdict.END),
        (100, 100, 9000, None, StopVerdict.END),
        (100, 101, 0, None, StopVerdict.MISSING),
        (100, 100, 5000, FOLLOWS, StopVerdict.TRUNCATE),
        (100, 101, 0, FOLLOWS, StopVerdict.REFUSE),
        (100, 0, 5001, FOLLOWS, StopVerdict.REFUSE),
    ],
)
def test_the_stop_table(stop, safe_offset, safe_timestamp, follows, verdict):
    found = judge_stop(
        stop=stop, safe_offset=safe_offset, safe_timestamp=safe_timestamp, follows=follows
    )
    assert found is verdict


def last_record_size():
    message = make_message("T", 0, b"body-10", keys="k10", tags="A")
    return len(encode_record(message, 5, 0, 0))


@pytest.mark.parametrize("lost_bytes", range(1, last_record_size() + 1))
def test_a_torn_tail_costs_exactly_the_torn_record(lost_bytes):
    """A crash may persist any prefix of the last record; none of it may survive."""
    disk = MemoryDisk()
    rig = StoreRig(disk)
    fill(rig, 10)
    kept = rig.store.commit_log.end
    fill(rig, 1, start=10)
    disk.crash(lost_bytes=lost_bytes)
    rig = StoreRig(disk)
    assert rig.store.commit_log.end == kept
    assert not rig.store.upkeep.recovered.has_cut_records
    assert bodies(rig) == sent(10)
    assert not any(disk.contents[LOG + "0" * 20][kept:])
    assert rig.put(make_message("T", 0, b"body-10")).queue_offset == 5
    assert bodies(rig) == sent(11)


def test_a_torn_tail_and_another_crash_revive_nothing(disk):
    """A later end may coincide with an old record boundary; the cut records must not reappear."""
    rig = StoreRig(disk)
    fill(rig, 12)
    queue = rig.queue("T", 1)
    last: Any = last_entry(queue)
    cut = rig.entry("T", 0, 4)
    data = disk.contents[LOG + "0" * 20]
    data[cut.physical_offset + 4 : cut.physical_offset + 8] = b"torn"
    disk.crash()
    rig = StoreRig(disk)
    assert bodies(rig) == sent(8)
    disk.crash()
    rig = StoreRig(disk)
    fill(rig, 1, start=8)
    disk.crash()
    rig = StoreRig(disk)
    assert bodies(rig) == sent(9)
    assert finish(rig.store.reader.read_record(last.physical_offset)) is None


def test_entries_of_cut_off_records_are_zero_on_disk(disk):
    rig = StoreRig(disk)
    fill(rig, 10)
    rig.work(2)
    fill(rig, 10, start=10)
    position = rig.queue("T", 0).max_offset
    rig.queue("T", 0).write_tail()
    first_lost = rig.entry("T", 0, 7).physical_offset
    disk.contents[LOG + "0" * 20][first_lost : first_lost + 8] = bytes(8)
    disk.crash()
    rig = StoreRig(disk)
    kept = rig.store.reader.max_offset("T", 0)
    assert kept == 7
    for number in range(kept, position):
        name = f"/store/consumequeue/T/0/{number * 20 // 200 * 200:020d}"
        data = disk.contents.get(name, bytes(200))
        assert not any(data[number * 20 % 200 : number * 20 % 200 + 20])
    assert bodies(rig) == sent(14)


def damage(disk, physical_offset):
    name = f"{physical_offset // 4096 * 4096:020d}"
    position = physical_offset % 4096
    disk.contents[LOG + name][position + 4 : position + 20] = bytes(16)


def test_damage_behind_the_checkpoint_ends_the_log(disk):
    rig = StoreRig(disk)
    fill(rig, 20)
    rig.work(3)
    rig.clock.advance(10_000)
    fill(rig, 10, start=20)
    damage(disk, rig.entry("T", 0, 12).physical_offset)  # body-24
    disk.crash()
    rig = StoreRig(disk)
    assert bodies(rig) == sent(24)
    assert rig.store.upkeep.recovered.has_cut_records


LOSSES = ["zeroed tail", "last file", "all files"]


def lose_end(disk, loss, stop="crash"):
    """Remove synced messages from the end of a log of 60 messages; return the synced end."""
    rig = StoreRig(disk)
    fill(rig, 60)
    rig.work(3)
    synced_end = rig.store.commit_log.end
    start = rig.entry("T", 1, 27).physical_offset  # body-55
    last_path = f"{LOG}{start // 4096 * 4096:020d}"
    if stop == "clean":
        rig.store.close()
    else:
        disk.crash()
    if loss == "zeroed tail":
        disk.contents[last_path][start % 4096 :] = bytes(4096 - start % 4096)
    else:
        for path in all_files(disk, LOG):
            if loss == "all files" or path >= last_path:
                del disk.contents[path]
    return synced_end


@pytest.mark.parametrize("loss", LOSSES)
def test_a_copy_starts_without_its_last_messages_and_reports_it(disk, loss):
    synced_end = lose_end(disk, loss)
    events = Events()
    rig = StoreRig(disk, log=events, has_copies=True)
    end = rig.store.commit_log.end
    assert end < synced_end
    assert events.of("log.shortened") == [{"end": end, "synced_end": synced_end}]
    assert rig.store.upkeep.recovered.has_cut_records
    count = len(bodies(rig))
    assert bodies(rig) == sent(count)
    assert count == 0 if loss == "all files" else 30 < count < 60
    rig.store.close()
    assert not StoreRig(disk).store.upkeep.recovered.has_cut_records


@pytest.mark.parametrize(
    ("loss", "stop"), [(LOSSES[0], "crash"), *((it, "crash") for it in LOSSES[1:]),
    *((it, "clean") for it in LOSSES[1:])],
)  # fmt: skip
def test_missing_synced_messages_refuse_a_start_without_copies(disk, loss, stop):
    synced_end = lose_end(disk, loss, stop)
    before = all_files(disk, "/store/")
    for _ in range(2):  # the lock is released, but the refusal remains
        with pytest.raises(CorruptStore) as caught:
            StoreRig(disk)
        assert f"messages up to {synced_end} were synced" in str(caught.value)
        assert "remove /store/progress" in str(caught.value)
    abort = "/store/abort"
    assert {**all_files(disk, "/store/"), abort: b""} == {**before, abort: b""}
    del disk.contents["/store/progress"]
    rig = StoreRig(disk)
    count = len(bodies(rig))
    assert bodies(rig) == sent(count)
    assert count < 60


def test_damage_before_the_checkpoint_refuses_to_start(disk):
    rig = StoreRig(disk)
    fill(rig, 20)
    rig.work(3)
    fill(rig, 10, start=20)
    offset = rig.entry("T", 0, 3).physical_offset
    damage(disk, offset)
    disk.crash()
    with pytest.raises(CorruptStore) as caught:
        StoreRig(disk)
    text = str(caught.value)
    assert LOG + "0" * 20 in text
    assert f"byte {offset} " in text
    assert "cometmq store verify" in text
    with pytest.raises(CorruptStore):  # the lock is released, but the refusal remains
        StoreRig(disk)


def test_a_refused_start_changes_nothing_so_that_all_but_the_damage_can_still_be_served(disk):
    rig = StoreRig(disk)
    fill(rig, 100)
    rig.work(3)
    damage(disk, rig.entry("T", 0, 3).physical_offset)  # body-6
    disk.crash()
    before = all_files(disk, "/store/")
    with pytest.raises(CorruptStore):
        StoreRig(disk)
    assert all_files(disk, "/store/") == before
    disk.remove("/store/abort")
    rig = StoreRig(disk)
    assert rig.store.upkeep.recovered.start.reason is StartReason.PROGRESS
    assert rig.store.reader.get_messages("T", 0, 0, 32).damaged_count  # the block of the damage
    assert rig.store.reader.get_messages("T", 0, 30, 32).count == 20  # all messages of later files
    assert rig.store.reader.max_offset("T", 1) == 50


def test_a_short_last_file_is_padded_and_keeps_whole_records(disk):
    rig = StoreRig(disk)
    fill(rig, 10)
    rig.work(3)
    keep = rig.entry("T", 0, 3).physical_offset  # body-6
    disk.crash()
    del disk.contents[LOG + "0" * 20][keep + 10 :]
    rig = StoreRig(disk, has_copies=True)
    assert len(disk.contents[LOG + "0" * 20]) == 4096
    assert bodies(rig) == sent(6)
    assert rig.put(make_message("T", 0, b"body-6")).queue_offset == 3


def test_a_file_of_another_size_is_named(disk):
    rig = StoreRig(disk)
    fill(rig, 100)
    rig.store.close()
    with pytest.raises(CorruptStore, match="configured"):
        StoreRig(disk, small_settings(mapped_file_size_commit_log=8192))
    with pytest.raises(CorruptStore, match="configured"):
        StoreRig(disk, small_settings(mapped_file_size_commit_log=2048))


def test_one_file_of_another_size_is_named(disk):
    rig = StoreRig(disk)
    while rig.store.commit_log.end < 4096:
        rig.put(make_message())
    disk.crash()
    for name in disk.names("/store/commitlog")[1:]:
        disk.remove(LOG + name)
    with pytest.raises(CorruptStore, match="configured"):
        StoreRig(disk, small_settings(mapped_file_size_commit_log=8192))
    assert len(disk.contents[LOG + "0" * 20]) == 4096


def test_a_foreign_file_is_named(disk):
    rig = StoreRig(disk)
    fill(rig, 3)
    rig.store.close()
    disk.create(LOG + "lost+found", 10, temporary="/tmp")
    with pytest.raises(CorruptStore, match=r"lost\+found"):
        StoreRig(disk)


def test_a_spare_file_of_zeros_is_accepted(disk):
    rig = StoreRig(disk)
    fill(rig, 30)
    rig.work(3)
    disk.crash()
    assert int(disk.names("/store/commitlog")[-1]) > rig.store.commit_log.end
    assert bodies(StoreRig(disk)) == sent(30)


# Power loss


def test_what_was_acknowledged_after_a_sync_survives_a_power_loss(disk):
    settings = small_settings(flush_disk_type=FlushDiskType.SYNC_FLUSH)
    rig = StoreRig(disk, settings)
    acknowledged: list[Any] = []
    for number in range(40):
        message = make_message("T", number % 2, b"body-%d" % number, keys=f"k{number}")
        rig.store.writer.put(message, acknowledged.append)
        rig.store.writer.commit()
        rig.flush()
    assert len(acknowledged) == 40
    disk.lose_power()  # queues and index were never synced: their files are zeros
    rig = StoreRig(disk, settings)
    assert bodies(rig) == sent(40)
    assert found_by_key(rig, "k33") == [b"body-33"]


def test_a_power_loss_between_checkpoints_keeps_what_was_synced(disk):
    rig = StoreRig(disk)
    fill(rig, 30)
    rig.work(3)
    fill(rig, 30, start=30)
    disk.lose_power()
    rig = StoreRig(disk)
    assert bodies(rig) == sent(30)
    assert found_by_key(rig, "k29") == [b"body-29"]
    fill(rig, 10, start=30)
    assert bodies(rig) == sent(40)


@pytest.mark.parametrize("at", range(1, 40))
def test_a_crash_at_any_disk_operation_of_a_checkpoint_loses_nothing(at):
    """A crash may interrupt the background jobs after any of their steps."""
    disk = MemoryDisk()
    rig = StoreRig(disk)
    fill(rig, 25)
    rig.work(2)
    fill(rig, 25, start=25)
    calls = 0

    def fault(operation, _path):
        nonlocal calls
        if operation in {"write", "sync", "create", "delete"}:
            calls += 1
        return 5 if calls >= at else 0

    disk.fault = fault
    rig.work(2)
    disk.fault = None
    disk.crash()
    rig = StoreRig(disk)
    assert bodies(rig) == sent(50)
    for number in range(50):
        assert found_by_key(rig, f"k{number}") == [b"body-%d" % number]


def test_opening_fails_cleanly_on_a_broken_disk(disk):
    rig = StoreRig(disk)
    fill(rig, 5)
    disk.crash()
    disk.fault = lambda operation, _path: 5 if operation == "read" else 0
    with pytest.raises(DiskError):
        StoreRig(disk)
    disk.fault = None
    assert bodies(StoreRig(disk)) == sent(5)


def test_a_queue_that_lost_entries_is_built_again_when_a_record_shows_it(disk):
    rig = StoreRig(disk)
    fill(rig, 60)
    rig.work(6)
    fill(rig, 1, start=60)
    disk.crash()
    for name in disk.names("/store/consumequeue/T/0")[1:]:
        disk.remove(f"/store/consumequeue/T/0/{name}")
    disk.remove("/store/progress")  # no other file records the number of entries
    disk.remove("/store/abort")
    rig = StoreRig(disk)
    assert rig.store.upkeep.recovered.start.reason is StartReason.QUEUE_END
    assert bodies(rig) == sent(61)


def test_a_log_without_its_head_begins_where_it_begins(disk):
    rig = StoreRig(disk)
    fill(rig, 100)
    rig.store.close()
    disk.remove(LOG + disk.names("/store/commitlog")[0])
    disk.remove_tree("/store/consumequeue")
    disk.remove("/store/progress")
    rig = StoreRig(disk)
    first = rig.store.reader.min_offset("T", 0)
    assert first > 0
    assert rig.store.commit_log.min_offset == 4096
    found = bodies(rig)
    assert found == sent(100)[-len(found) :]
    result = rig.store.reader.get_messages("T", 0, 0, 32)
    assert (result.status, result.next_offset) == (GetStatus.OFFSET_TOO_SMALL, first)
    rig.store.close()
    assert bodies(StoreRig(disk)) == found
