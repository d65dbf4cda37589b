# SPDX-License-Identifier: Apache-2.0
from datetime import UTC, datetime

import pytest

from cometmq.remoting.message.record import decode_record
from cometmq.store.queues.consume_queue import entry_at
from cometmq.store.reads import finish
from cometmq.store.results import GetStatus
from cometmq.store.settings import StoreSettings
from cometmq.store.upkeep.retention import Decision, DiskState, decide, is_delete_hour
from cometmq.testing.store.builders import START_MS, Events, StoreRig, make_message, small_settings

HOUR_MS = 3_600_000
NOW_MS = START_MS + 1000 * HOUR_MS


def hour_of(now_ms):
    return datetime.fromtimestamp(now_ms / 1000, tz=UTC).astimezone().hour


NOT_NOW = str((hour_of(NOW_MS) + 2) % 24)
AGES = [NOW_MS - 100 * HOUR_MS, NOW_MS - 73 * HOUR_MS, NOW_MS - 71 * HOUR_MS]


@pytest.mark.parametrize(
    ("used", "when", "asked", "expected"),
    [
        (
            50,
            NOT_NOW,
            False,
            Decision(0, is_full=False, is_above_clean_ratio=False, expired_count=0),
        ),
        (
            50,
            str(hour_of(NOW_MS)),
            False,
            Decision(2, is_full=False, is_above_clean_ratio=False, expired_count=2),
        ),
        (
            50,
            NOT_NOW,
            True,
            Decision(2, is_full=False, is_above_clean_ratio=False, expired_count=2),
        ),
        (
            76,
            NOT_NOW,
            False,
            Decision(2, is_full=False, is_above_clean_ratio=True, expired_count=2),
        ),
        (
            86,
            NOT_NOW,
            False,
            Decision(3, is_full=False, is_above_clean_ratio=True, expired_count=2),
        ),
        (91, NOT_NOW, False, Decision(3, is_full=True, is_above_clean_ratio=True, expired_count=2)),
    ],
)
def test_the_retention_table(used, when, asked, expected):
    settings = StoreSettings(delete_when=when)
    assert decide(settings, DiskState(used, AGES), NOW_MS, is_asked_for=asked) == expected


@pytest.mark.parametrize(
    ("surplus_bytes", "count"),
    [(1, 1), (1 << 30, 1), ((1 << 30) + 1, 2), (5 << 30, 5), (100 << 30, 10), (None, 10)],
)
def test_forced_deletion_takes_only_the_files_that_are_needed(surplus_bytes, count):
    """RocketMQ deletes ten files in each round, even if one were enough."""
    settings = StoreSettings(delete_when=NOT_NOW)
    state = DiskState(86, [NOW_MS] * 10, surplus_bytes)
    assert decide(settings, state, NOW_MS, is_asked_for=False).delete_count == count
    expired = DiskState(86, AGES, surplus_bytes)  # two of the three files
    found = decide(settings, expired, NOW_MS, is_asked_for=False).delete_count
    assert found == max(2, min(3, count))


def test_files_that_have_not_expired_stay_if_forcing_is_off():
    settings = StoreSettings(delete_when=NOT_NOW, clean_file_forcibly_enable=False)
    assert decide(settings, DiskState(95, AGES), NOW_MS, is_asked_for=False).delete_count == 2


def test_a_younger_file_protects_the_ones_behind_it():
    ages = [AGES[2], AGES[0]]
    state = DiskState(50, ages)
    assert decide(StoreSettings(), state, NOW_MS, is_asked_for=True).delete_count == 0


def test_a_round_deletes_ten_files_at_most():
    state = DiskState(99, [0] * 50)
    assert decide(StoreSettings(), state, NOW_MS, is_asked_for=False).delete_count == 10


def test_several_hours_may_delete():
    hour = hour_of(NOW_MS)
    assert is_delete_hour(f"{(hour + 3) % 24};{hour}", NOW_MS)
    assert not is_delete_hour(f"{(hour + 3) % 24};{(hour + 5) % 24}", NOW_MS)


def expire(rig, disk, count):
    """Fill the log, let all its files expire, and request their deletion."""
    for number in range(count):
        rig.put(make_message("T", number % 2, b"%d" % number, keys=f"k{number}"))
    rig.put(make_message("Old", 0, b"old"))
    rig.work(3)
    rig.clock.advance(73 * HOUR_MS)
    rig.store.upkeep.cleaner.ask()
    rig.work(60)


def test_expired_files_go_and_queues_and_index_follow(disk):
    rig = StoreRig(disk, small_settings(delete_when=NOT_NOW))
    expire(rig, disk, 200)
    store = rig.store
    first = store.commit_log.min_offset
    assert first > 0
    assert disk.names("/store/commitlog")[0] == f"{first:020d}"
    for queue_id in range(2):
        queue = rig.queue("T", queue_id)
        assert rig.entry("T", queue_id, queue.min_offset).physical_offset >= first
        assert entry_at(queue, queue.min_offset - 1) is None
        name = disk.names(f"/store/consumequeue/T/{queue_id}")[0]
        assert int(name) <= queue.min_offset * 20 < int(name) + 200
        result = store.reader.get_messages("T", queue_id, 0, 32)
        assert (result.status, result.next_offset) == (
            GetStatus.OFFSET_TOO_SMALL,
            queue.min_offset,
        )
    assert finish(store.reader.query("T", "k0", 9, 0, 1 << 62)).records == []
    assert len(finish(store.reader.query("T", "k199", 9, 0, 1 << 62)).records) == 1


def test_the_last_file_never_goes(disk):
    rig = StoreRig(disk)
    expire(rig, disk, 300)
    rig.store.upkeep.cleaner.ask()
    rig.work(60)
    used = [name for name in disk.names("/store/commitlog") if int(name) < rig.store.commit_log.end]
    assert len(used) == 1
    assert rig.put(make_message("T", 0)).queue_offset == 150


def test_a_queue_whose_messages_are_all_gone_is_empty_but_remembers_its_end(disk):
    rig = StoreRig(disk)
    rig.put(make_message("Gone", 0))
    expire(rig, disk, 300)
    queue = rig.queue("Gone", 0)
    assert (queue.min_offset, queue.max_offset) == (1, 1)
    result = rig.store.reader.get_messages("Gone", 0, 0, 32)
    assert (result.status, result.next_offset) == (GetStatus.OFFSET_TOO_SMALL, 1)
    rig.store.close()
    rig = StoreRig(disk)
    queue = rig.queue("Gone", 0)
    assert (queue.min_offset, queue.max_offset) == (1, 1)
    assert rig.put(make_message("Gone", 0)).queue_offset == 1
    assert rig.store.reader.get_messages("Gone", 0, 1, 32).count == 1


def test_a_crash_after_a_deletion_recovers(disk):
    rig = StoreRig(disk)
    expire(rig, disk, 300)
    rig.put(make_message("T", 0, b"new"))
    minimum = rig.store.reader.min_offset("T", 0)
    disk.crash()
    rig = StoreRig(disk)
    assert rig.store.reader.min_offset("T", 0) == minimum
    last = rig.store.reader.get_messages("T", 0, rig.store.reader.max_offset("T", 0) - 1, 1)
    assert decode_record(last.records[0]).body == b"new"


def test_nothing_goes_at_other_hours(disk):
    rig = StoreRig(disk, small_settings(delete_when=str((hour_of(START_MS) + 12) % 24)))
    for _ in range(300):
        rig.put(make_message())
    rig.clock.advance(73 * HOUR_MS)
    rig.store.apply(small_settings(delete_when=str((hour_of(rig.clock.now_ms) + 12) % 24)))
    rig.work(60)
    assert rig.store.commit_log.min_offset == 0


@pytest.mark.parametrize(("used_percent", "deleted_count"), [(86, 1), (88, 1), (90, 2), (95, 3)])
def test_a_round_on_a_full_disk_frees_what_exceeds_the_ratio(disk, used_percent, deleted_count):
    settings = small_settings(disk_space_clean_forcibly_ratio=85, delete_when=NOT_NOW)
    rig = StoreRig(disk, settings)
    for _ in range(300):
        rig.put(make_message())
    rig.work(3)
    disk.used_percent = used_percent  # of 100,000 bytes; a file has 4,096
    files = rig.store.commit_log.files
    while not rig.store.commit_log.min_offset:
        rig.work(1)
    assert rig.store.stats().disk_used_percent == used_percent
    disk.used_percent = 50
    assert files.first == deleted_count * files.file_size


def forced(disk):
    """A store of 300 messages that deletes files only above 85 % disk usage, and its events."""
    events = Events()
    settings = small_settings(disk_space_clean_forcibly_ratio=85, delete_when=NOT_NOW)
    rig = StoreRig(disk, settings, log=events)
    for _ in range(300):
        rig.put(make_message())
    return rig, events


def test_consumers_of_deleted_messages_are_told_that_they_have_expired(disk):
    """A pull never skips messages without reporting them as expired."""
    rig = StoreRig(disk, small_settings(disk_space_clean_forcibly_ratio=85, delete_when=NOT_NOW))
    disk.used_percent = 86
    seen = set()
    for number in range(100):
        for _ in range(20):
            rig.put(make_message(queue_id=0, body=b"%d" % number))
        for offset in range(0, rig.queue("T", 0).max_offset, 50):
            found = rig.store.reader.get_messages("T", 0, offset, 32)
            seen.add(found.status)
            if found.status is GetStatus.OFFSET_TOO_SMALL:
                assert found.next_offset == found.min_offset > offset
            else:
                assert found.status is GetStatus.FOUND
                assert found.next_offset == offset + found.count
        rig.work(3)
    assert seen == {GetStatus.FOUND, GetStatus.OFFSET_TOO_SMALL}


def test_a_deletion_goes_on_if_the_queues_cannot_be_read(disk):
    rig, events = forced(disk)
    rig.work(30)
    disk.used_percent = 86
    disk.fault = lambda operation, path: (
        5 if operation == "read" and "/consumequeue/" in path else 0
    )
    rig.work(30)
    assert {"step": "trim"}.items() <= events.of("cleaning.failed")[0].items()
    assert rig.store.commit_log.min_offset > 0


def test_files_that_are_deleted_before_they_expire_are_reported(disk):
    rig, events = forced(disk)
    disk.used_percent = 86
    rig.work(60)
    (warning,) = events.of("files.sacrificed")
    assert warning["used_percent"] == 86
    assert 0 < warning["bytes"] <= rig.store.commit_log.min_offset
    assert "cleanFileForciblyEnable=false" in warning["advice"]
    for _ in range(300):
        rig.put(make_message())
    rig.work(700)
    warnings = events.of("files.sacrificed")
    assert len(warnings) == 2
    assert sum(one["bytes"] for one in warnings) == rig.store.commit_log.min_offset


def test_expired_files_are_deleted_without_a_warning(disk):
    events = Events()
    rig = StoreRig(disk, small_settings(delete_when=NOT_NOW), log=events)
    expire(rig, disk, 300)
    disk.used_percent = 86
    rig.work(60)
    assert events.of("files.expired")
    assert events.of("files.sacrificed") == []


def test_queues_follow_the_log_when_asked(disk):
    rig = StoreRig(disk)
    expire(rig, disk, 300)
    rig.store.upkeep.cleaner.ask_trim()

    (job,) = rig.store.jobs(rig.clock.now_ms)
    assert job.name == "trim"
    job.run()
    job.done(None)

    queue = rig.queue("Old", 0)
    assert (queue.min_offset, queue.max_offset) == (0, 1)
    assert rig.put(make_message("T", 0)).queue_offset == 150


def test_a_forced_deletion_trims_entries_that_are_only_in_memory(disk):
    never_ms = 100_000_000
    rig = StoreRig(
        disk,
        small_settings(disk_space_clean_forcibly_ratio=85, flush_interval_consume_queue=never_ms),
    )
    rig.put(make_message())
    rig.work(5)  # the first checkpoint
    for _ in range(300):
        rig.put(make_message())
    queue = rig.queue("T", 0)
    disk.used_percent = 86
    rig.work(60)
    first = rig.store.commit_log.min_offset
    assert first > 0
    assert queue.written_offset == 1, "no checkpoint has written the entries"
    assert rig.entry("T", 0, queue.min_offset).physical_offset == first
    rig.store.close()
    assert StoreRig(disk).store.reader.min_offset("T", 0) == queue.min_offset
