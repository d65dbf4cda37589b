# SPDX-License-Identifier: Apache-2.0
"""Every row of the table of ends of the log: torn tails, lost and damaged records."""

from typing import Any

import pytest

from cometmq.peers.long_forms import sampled
from cometmq.remoting.message.new_message import encode_record
from cometmq.remoting.message.record import Scan, ScanStatus
from cometmq.store.errors import CorruptStore
from cometmq.store.queues.consume_queue import last_entry
from cometmq.store.reads import finish
from cometmq.store.recovery.log_end import StopVerdict, judge_stop
from cometmq.store.recovery.start import StartReason
from cometmq.testing.store.builders import (
    Events,
    StoreRig,
    make_message,
    records_of,
    small_settings,
)
from cometmq.testing.store.memory_disk import MemoryDisk

from .stores import LOG, all_files, bodies, damage, fill, sent

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


@sampled(10)
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


def test_an_older_version_of_the_last_file_is_refused():
    """As when one file is restored from a backup; the progress knows that messages are missing."""
    disk = MemoryDisk()
    rig = StoreRig(disk)
    fill(rig, 10)
    rig.work()
    older = bytes(disk.contents[LOG + "0" * 20])
    fill(rig, 3, start=10)
    end = rig.store.commit_log.end
    rig.store.close()
    assert end < len(older)
    disk.contents[LOG + "0" * 20][:] = older
    with pytest.raises(CorruptStore, match=f"messages up to {end} were synced"):
        StoreRig(disk)


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


def test_damage_that_no_checksum_locates_refuses_to_start(disk):
    rig = StoreRig(disk)
    fill(rig, 20)
    rig.work(3)
    fill(rig, 10, start=20)
    offset = rig.entry("T", 0, 3).physical_offset
    damage(disk, offset)
    disk.crash()
    disk.remove_tree("/store/checksums")
    with pytest.raises(CorruptStore) as caught:
        StoreRig(disk)
    text = str(caught.value)
    assert LOG + "0" * 20 in text
    assert f"byte {offset} " in text
    assert "cometmq store verify" in text
    with pytest.raises(CorruptStore):  # the lock is released, but the refusal remains
        StoreRig(disk)


def test_a_refused_start_changes_nothing(disk):
    rig = StoreRig(disk)
    fill(rig, 100)
    rig.work(3)
    damage(disk, rig.entry("T", 0, 3).physical_offset)  # body-6
    disk.crash()
    disk.remove_tree("/store/checksums")
    before = all_files(disk, "/store/")
    with pytest.raises(CorruptStore):
        StoreRig(disk)
    assert all_files(disk, "/store/") == before


@pytest.mark.parametrize("field", [0, 4, 32], ids=["size", "magic", "offset"])
def test_damaged_headers_cost_the_messages_of_their_page(disk, field):
    settings = small_settings(mapped_file_size_commit_log=64 << 10)
    rig = StoreRig(disk, settings)
    fill(rig, 400)
    rig.work(3)
    places = [rig.entry("T", number % 2, number // 2)[:2] for number in range(400)]
    for victim in (100, 250):
        place = places[victim][0] + field
        disk.contents[LOG + "0" * 20][place : place + 4] = bytes(4)
    disk.crash()
    rig = StoreRig(disk, settings)
    assert rig.store.upkeep.recovered.start.reason is StartReason.PROGRESS
    wrong = (places[victim][0] + field + at for victim in (100, 250) for at in range(4))
    pages = {at // 4096 for at in wrong}
    intact = [
        b"body-%d" % number
        for number, (at, size) in enumerate(places)
        if not pages & {at // 4096, (at + size - 1) // 4096}
    ]
    found = [it.body for queue_id in (0, 1) for it in records_of(rig.store, "T", queue_id)]
    assert sorted(found) == sorted(intact)
    assert len(intact) > 300
