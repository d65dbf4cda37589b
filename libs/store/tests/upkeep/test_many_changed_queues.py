# SPDX-License-Identifier: Apache-2.0
"""A checkpoint of thousands of changed queues is written in portions, whatever happens between."""

import errno

import pytest

from cometmq.store.inspection.verify import verify_store
from cometmq.store.queues import unsaved_queues
from cometmq.store.queues.consume_queue import ConsumeQueue
from cometmq.store.reads import finish
from cometmq.store.recovery.start import StartReason
from cometmq.store.upkeep import checkpointer
from cometmq.testing.store.builders import StoreRig, make_message, small_settings

PORTION = 8
COUNT = 5 * PORTION - 1
SETTINGS = small_settings(mapped_file_size_commit_log=1 << 20, max_index_num=1_000)


@pytest.fixture(autouse=True)
def small_portions(monkeypatch):
    monkeypatch.setattr(unsaved_queues, "PORTION_QUEUES", PORTION)


@pytest.fixture
def rig(disk):
    """A store in which all queues have a file, and have changed since the last checkpoint."""
    rig = StoreRig(disk, SETTINGS)
    put_all(rig, "old")
    save(rig)
    put_all(rig, "new")
    return rig


def put_all(rig, text):
    for number in range(COUNT):
        rig.put(make_message(f"t{number}", body=text.encode(), keys=f"{text}{number}"))


def is_saved(rig):
    return rig.store.stats().checkpoint_offset == rig.store.commit_log.end


def save(rig):
    for _ in range(60):
        if is_saved(rig):
            return
        rig.work(1)
    pytest.fail("no checkpoint")


def begin(rig):
    """Run the first job of a checkpoint, with the log on the disk."""
    rig.flush(rig.clock.advance(60_000))
    assert run_job(rig) == "spill"


def run_job(rig):
    """Run the next job; return its name."""
    (job,) = rig.store.jobs(rig.clock.advance(1))
    job.run()
    job.done(None)
    return job.name


def lost(rig, count, text="new"):
    """Return the queues with another number of messages, or whose last key is not in the index."""
    return [
        number
        for number in range(COUNT)
        if rig.store.reader.max_offset(f"t{number}", 0) != count
        or len(rig.store.reader.get_messages(f"t{number}", 0, 0, 32).records) != count
        or not finish(
            rig.store.reader.query(f"t{number}", f"{text}{number}", 9, 0, 1 << 62)
        ).records
    ]


def reopened(disk, loss):
    getattr(disk, loss)()
    assert verify_store("/store", disk=disk, settings=SETTINGS).findings == []
    return StoreRig(disk, SETTINGS)


def reason(rig):
    return rig.store.upkeep.recovered.start.reason


def test_each_job_copies_and_releases_a_portion(rig, monkeypatch):
    """The event loop did both for 40,000 queues at once, which held it for 50 to 90 ms."""
    calls = {"unwritten": 0, "mark_written": 0}

    def count(name):
        method = getattr(ConsumeQueue, name)

        def counted(*args):
            calls[name] += 1
            return method(*args)

        monkeypatch.setattr(ConsumeQueue, name, counted)

    for name in calls:
        count(name)
    rig.clock.advance(60_000)
    job_count = 0
    while not is_saved(rig):
        before = dict(calls)
        run_job(rig)
        job_count += 1
        assert all(calls[name] - before[name] <= PORTION for name in calls)
    assert job_count == 5
    assert calls == {"unwritten": COUNT, "mark_written": COUNT}


def test_puts_between_the_jobs_do_not_delay_the_checkpoint(disk, rig):
    end = rig.store.commit_log.end
    begin(rig)
    for number in range(3):
        put_all(rig, f"late{number}-")
        assert run_job(rig) == "spill"
    put_all(rig, "last")
    assert run_job(rig) == "checkpoint"
    assert rig.store.stats().checkpoint_offset == end
    rig.flush(rig.clock.advance(60_000))
    again = reopened(disk, "lose_power")
    assert (reason(again), lost(again, 6, "last")) == (StartReason.PROGRESS, [])


@pytest.mark.parametrize("loss", ["crash", "lose_power"])
@pytest.mark.parametrize("job_count", range(5))
def test_nothing_is_lost_between_the_jobs(disk, rig, job_count, loss):
    begin(rig)
    for number in range(job_count):
        rig.put(make_message(f"t{number}", body=b"late", keys="late"))
        run_job(rig)
    assert rig.store.upkeep.checkpointer.is_begun == (job_count < 4)
    rig.flush(rig.clock.advance(60_000))
    again = reopened(disk, loss)
    assert reason(again) is StartReason.PROGRESS
    counts = [again.store.reader.max_offset(f"t{number}", 0) for number in range(COUNT)]
    assert counts == [3] * job_count + [2] * (COUNT - job_count)
    again.store.close()
    assert verify_store("/store", disk=disk, settings=SETTINGS).findings == []


@pytest.mark.parametrize("number", [0, COUNT - 1])
def test_a_topic_may_be_deleted_between_the_jobs(disk, rig, number):
    begin(rig)
    rig.store.delete_topic(f"t{number}")
    save(rig)
    assert not disk.exists(f"/store/consumequeue/t{number}")
    rig.flush(rig.clock.advance(60_000))
    again = reopened(disk, "lose_power")
    assert (reason(again), lost(again, 2)) == (StartReason.PROGRESS, [number])


def test_a_job_that_fails_ends_the_checkpoint(disk, rig):
    """The queues of that job are not on the disk, so the checkpoint must not count them."""
    begin(rig)
    disk.fault = lambda operation, path: (
        errno.ENOSPC if operation == "write" and "consumequeue" in path else 0
    )
    rig.work(1, elapsed_ms=1)
    assert not rig.store.write_state.is_writable
    disk.fault = None
    assert not rig.store.upkeep.checkpointer.is_begun
    save(rig)
    assert rig.store.write_state.is_writable
    again = reopened(disk, "lose_power")
    assert (reason(again), lost(again, 2)) == (StartReason.PROGRESS, [])


def test_a_truncation_ends_the_checkpoint(disk, rig):
    old_end = rig.store.stats().checkpoint_offset
    begin(rig)
    rig.store.truncate(old_end)
    assert not rig.store.upkeep.checkpointer.is_begun
    assert rig.store.stats().checkpoint_offset == rig.store.commit_log.end == old_end
    again = reopened(disk, "lose_power")
    assert (reason(again), lost(again, 1, "old")) == (StartReason.PROGRESS, [])


def test_a_stop_between_the_jobs_saves_all(disk, rig):
    begin(rig)
    put_all(rig, "late")
    rig.store.close()
    again = reopened(disk, "lose_power")
    assert again.store.upkeep.recovered.record_count == 0
    assert lost(again, 3, "late") == []


def test_a_spill_is_written_in_portions(disk, rig, monkeypatch):
    save(rig)
    monkeypatch.setattr(checkpointer, "SPILL_BYTES", 0)
    monkeypatch.setattr(checkpointer, "SPILL_QUEUE_BYTES", 0)
    offset = rig.store.stats().checkpoint_offset
    put_all(rig, "late")
    left = []
    while rig.store.upkeep.checkpointer.must_spill:
        assert run_job(rig) == "spill"
        left.append(len(rig.store.upkeep.checkpointer.unsaved.queues))
    assert left == [COUNT - PORTION * number for number in range(1, 5)] + [0]
    assert rig.store.stats().checkpoint_offset == offset
    rig.flush(rig.clock.advance(60_000))
    assert lost(reopened(disk, "lose_power"), 3, "late") == []
