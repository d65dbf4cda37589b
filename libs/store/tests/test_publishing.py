# SPDX-License-Identifier: Apache-2.0
"""Readers of masters and replicas see nothing above the confirm offset that the caller has set."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.store import publishing
from cometmq.store.errors import DiskError
from cometmq.store.reads import finish
from cometmq.store.results import PutResult, PutStatus
from cometmq.store.writing.write_state import Refusal
from cometmq.testing.store.builders import StoreRig, make_message, records_of, small_settings
from cometmq.testing.store.memory_disk import MemoryDisk


def send(rig, number, queue_id=None, **more):
    queue_id = number % 2 if queue_id is None else queue_id
    return rig.put(make_message("T", queue_id, b"%d" % number, keys=f"k{number}", **more))


def facts_of(queue):
    return queue.topic, queue.queue_id, queue.max_offset


def visible(store):
    """Return the numbers of the messages in both queues that consumers can read."""
    return sorted(int(it.body) for queue_id in (0, 1) for it in records_of(store, "T", queue_id))


def test_commits_above_the_bound_are_stored_but_not_visible():
    rig = StoreRig(MemoryDisk())
    heard: list[tuple[str, int, int]] = []
    rig.store.publisher.listeners.append(lambda queues, _: heard.extend(map(facts_of, queues)))
    rig.store.publisher.confirm(0)
    ends = []
    for number in range(4):
        assert send(rig, number).queue_offset == number // 2
        ends.append(rig.store.commit_log.end)
    assert visible(rig.store) == heard == []
    assert rig.store.commit_log.confirm_offset == 0
    assert finish(rig.store.reader.query("T", "k0", 9, 0, 1 << 62)).records == []
    rig.store.publisher.confirm(ends[1] + 1)
    assert visible(rig.store) == [0, 1]
    assert heard == [("T", 0, 1), ("T", 1, 1)]
    assert rig.store.commit_log.confirm_offset == ends[1]
    assert len(finish(rig.store.reader.query("T", "k1", 9, 0, 1 << 62)).records) == 1
    rig.store.publisher.confirm(None)
    assert visible(rig.store) == [0, 1, 2, 3]
    send(rig, 4)
    assert visible(rig.store) == [0, 1, 2, 3, 4]


def test_a_lower_bound_hides_nothing():
    rig = StoreRig(MemoryDisk())
    send(rig, 0)
    rig.store.publisher.confirm(0)
    assert visible(rig.store) == [0]
    send(rig, 1)
    assert visible(rig.store) == [0]


def test_a_failed_write_returns_its_queue_offsets_only():
    disk = MemoryDisk()
    rig = StoreRig(disk)
    rig.store.publisher.confirm(0)
    send(rig, 0, queue_id=0)
    disk.fault = lambda operation, _path: 28 if operation == "write" else 0
    assert send(rig, 1, queue_id=0).status is PutStatus.SERVICE_NOT_AVAILABLE
    disk.fault = None
    rig.work(3)
    assert send(rig, 2, queue_id=0).queue_offset == 1
    rig.store.publisher.confirm(None)
    assert visible(rig.store) == [0, 2]


def test_a_checkpoint_does_not_cover_what_is_not_visible():
    disk = MemoryDisk()
    rig = StoreRig(disk)
    send(rig, 0)
    rig.store.publisher.confirm(rig.store.commit_log.end)
    send(rig, 1)
    rig.work(5)
    disk.crash()
    again = StoreRig(disk)
    assert visible(again.store) == [0, 1]


def test_messages_of_a_deleted_topic_do_not_come_back():
    rig = StoreRig(MemoryDisk())
    rig.store.publisher.confirm(0)
    send(rig, 0)
    rig.store.delete_topic("T")
    assert send(rig, 2, queue_id=0).queue_offset == 0
    rig.store.publisher.confirm(None)
    assert visible(rig.store) == [2]
    rig.work(3)
    rig.store.close()


def test_a_replica_dispatches_what_is_confirmed():
    disk = MemoryDisk()
    master = StoreRig(disk)
    ends = []
    for number in range(60):
        send(master, number)
        ends.append(master.store.commit_log.end)
    log = master.store.commit_log.read(0, ends[-1])
    rig = StoreRig(MemoryDisk())
    rig.store.write_state.role_writable = False
    rig.store.publisher.confirm(0)
    rig.store.replica.append(0, log[: ends[40]])
    assert visible(rig.store) == []
    assert rig.store.commit_log.end == ends[40]
    rig.store.publisher.confirm(ends[9])
    assert visible(rig.store) == list(range(10))
    rig.store.publisher.confirm(ends[-1])
    assert visible(rig.store) == list(range(41))
    rig.store.replica.append(ends[40], log[ends[40] :])
    assert visible(rig.store) == list(range(60))
    assert rig.store.commit_log.confirm_offset == ends[-1]


def test_a_deposed_master_dispatches_its_own_tail_from_the_log():
    rig = StoreRig(MemoryDisk())
    send(rig, 0)
    rig.store.publisher.confirm(rig.store.commit_log.end)
    for number in range(1, 4):
        send(rig, number)
    other = StoreRig(MemoryDisk())
    for number in range(5):
        send(other, number)
    end = rig.store.commit_log.end
    assert rig.store.commit_log.read(0, end) == other.store.commit_log.read(0, end)
    rig.store.write_state.role_writable = False
    rest = other.store.commit_log.end - end
    rig.store.replica.append(end, other.store.commit_log.read(end, rest))
    assert visible(rig.store) == [0]
    rig.store.publisher.confirm(None)
    assert visible(rig.store) == [0, 1, 2, 3, 4]


def test_a_deposed_master_refuses_its_pending_puts():
    rig = StoreRig(MemoryDisk())
    rig.store.writer.needs_replicas = True
    results: list[PutResult] = []
    rig.store.writer.put(make_message("T", 0, b"0"), results.append)
    rig.store.writer.commit()
    assert not results
    rig.store.writer.forget_unconfirmed()
    assert [result.status for result in results] == [PutStatus.SERVICE_NOT_AVAILABLE]


def test_replicas_cannot_confirm_messages_of_the_future():
    rig = StoreRig(MemoryDisk())
    rig.store.writer.needs_replicas = True
    rig.store.writer.note_replicated(1 << 40)
    results: list[PutResult] = []
    rig.store.writer.put(make_message("T", 0, b"0"), results.append)
    rig.store.writer.commit()
    assert not results
    rig.store.writer.note_replicated(rig.store.commit_log.end)
    assert [result.status for result in results] == [PutStatus.PUT_OK]


@pytest.mark.parametrize("confirmed", [0, 9, 29, 59])
def test_truncation_takes_back_what_is_not_visible_too(confirmed):
    disk = MemoryDisk()
    rig = StoreRig(disk)
    ends = []
    rig.store.publisher.confirm(0)
    for number in range(60):
        send(rig, number)
        ends.append(rig.store.commit_log.end)
    rig.work(2)
    rig.store.publisher.confirm(ends[confirmed])
    rig.store.truncate(ends[19])
    assert rig.store.commit_log.end == ends[19]
    seen = list(range(min(confirmed + 1, 20))) if confirmed else [0]
    assert visible(rig.store) == seen
    assert rig.store.commit_log.confirm_offset == ends[len(seen) - 1]
    rig.store.publisher.confirm(None)
    assert visible(rig.store) == list(range(20))
    assert send(rig, 20).queue_offset == 10
    assert visible(rig.store) == list(range(21))
    disk.crash()
    assert visible(StoreRig(disk).store) == list(range(21))


def test_a_failed_truncation_is_final():
    disk = MemoryDisk()
    rig = StoreRig(disk)
    for number in range(20):
        send(rig, number)
    border = rig.entry("T", 0, 5).physical_offset
    disk.fault = lambda operation, _path: 5 if operation == "sync" else 0
    with contextlib.suppress(DiskError):
        rig.store.truncate(border)
    disk.fault = None
    assert rig.store.write_state.has(Refusal.SYNC_FAILED)


def test_too_many_unconfirmed_bytes_stop_the_senders(monkeypatch):
    monkeypatch.setattr(publishing, "UNCONFIRMED_BYTES_MAX", 1_000)
    rig = StoreRig(MemoryDisk())
    rig.store.publisher.confirm(0)
    number = 0
    while send(rig, number).status is PutStatus.PUT_OK:
        number += 1
    assert 1_000 < rig.store.commit_log.end < 1_400
    assert rig.store.write_state.refusals == {Refusal.UNCONFIRMED}
    rig.store.publisher.confirm(rig.store.commit_log.end)
    assert rig.store.write_state.is_writable
    rig.store.publisher.confirm(0)
    while send(rig, number).status is PutStatus.PUT_OK:
        number += 1
    rig.store.writer.forget_unconfirmed()
    assert rig.store.write_state.is_writable


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(1, 4)),
        st.tuples(st.just("confirm"), st.integers(0, 100)),
        st.tuples(st.just("truncate"), st.integers(0, 100)),
        st.tuples(st.just("demote"), st.just(0)),
        st.tuples(st.just("work"), st.just(0)),
        st.tuples(st.just("crash"), st.just(0)),
    ),
    max_size=25,
)


def step_back(commits, end):
    """Forget the commits beyond a new end of the log; return the number of remaining messages."""
    del commits[1 + [commit for commit, _ in commits].index(end) :]
    return commits[-1][1]


@given(STEPS)
def test_readers_see_a_prefix_that_only_a_truncation_shortens(steps):
    disk = MemoryDisk()
    settings = small_settings(mapped_file_size_commit_log=1024)
    rig = StoreRig(disk, settings)
    commits, count = [(0, 0)], 0  # end of each commit, and the number of messages up to it
    results: list[PutResult] = []
    is_truncated = False
    for step, amount in steps:
        before = visible(rig.store)
        target = commits[amount % len(commits)][0]
        if step == "put":
            if is_truncated:
                rig.store.publisher.confirm(
                    None
                )  # a member dispatches all records before it leads again
                is_truncated = False
            for _ in range(amount):
                message = make_message("T", count % 2, b"%d" % count)
                rig.store.writer.put(message, results.append)
                count += 1
            rig.store.writer.commit()
            commits.append((rig.store.commit_log.end, count))
        elif step == "confirm":
            rig.store.publisher.confirm(target)
        elif step == "truncate":
            rig.store.truncate(target)
            count = step_back(commits, target)
            is_truncated = True
        elif step == "demote":
            rig.store.writer.forget_unconfirmed()
            rig.store.publisher.confirm(None)  # a new master dispatches all records
        else:
            rig.work(2)
        if step == "crash":
            disk.crash()
            rig = StoreRig(disk, settings)
            count = step_back(commits, rig.store.commit_log.end)
        seen = visible(rig.store)
        assert seen == list(range(len(seen)))
        assert len(seen) >= min(len(before), count)
        assert rig.store.commit_log.confirm_offset in [end for end, _ in commits]
    rig.store.publisher.confirm(None)
    assert visible(rig.store) == list(range(count))
