# SPDX-License-Identifier: Apache-2.0
"""Members of a group that follow one another over loopback."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from cometmq.broker.copies.state import FollowState
from cometmq.broker.copies.streams import master_stream, sending
from cometmq.store.results import PutStatus
from cometmq.testing.broker.member_nodes import MemberNode, is_equal
from cometmq.testing.broker.replicas import DEADLINE_S, until
from cometmq.testing.store.builders import make_message
from cometmq.testing.store.memory_disk import MemoryDisk


async def test_a_follower_catches_up_and_stays_equal(tmp_path: Path) -> None:
    async with MemberNode(tmp_path, 0) as master, MemberNode(tmp_path, 1) as slave:
        await master.fill(100)
        await master.lead(1)
        await master.fill(50)
        await slave.follow_member(master, 1)
        await until(lambda: is_equal(slave, master))
        assert slave.log_bytes() == master.log_bytes()
        assert slave.history == [(1, master.rig.entry("T", 0, 50).physical_offset)]
        assert slave.state.following.state is FollowState.FOLLOWING
        for _ in range(5):
            await master.fill(7)
        await until(lambda: is_equal(slave, master) and slave.visible_count == 185)
        assert slave.log_bytes() == master.log_bytes()
        assert slave.replica.may_read()
        assert [view.copy for view in master.sender.followers()] == [slave.copy]
        await until(lambda: master.sender.followers()[0].acked_offset == master.end)


async def test_a_follower_without_space_for_its_next_file_continues_once_there_is_some(
    tmp_path: Path,
) -> None:
    async with MemberNode(tmp_path, 0) as master, MemberNode(tmp_path, 1) as slave:
        await master.lead(1)
        await master.fill(100)
        assert isinstance(slave.disk, MemoryDisk)
        slave.disk.fault = lambda operation, path: (
            28 if operation == "create" and path.endswith("commitlog/00000000000000004096") else 0
        )
        await slave.follow_member(master, 1)
        await until(lambda: slave.end == 4096)
        await until(lambda: slave.state.following.state is FollowState.FAILED)
        slave.disk.fault = None
        await until(lambda: is_equal(slave, master))
        assert slave.log_bytes() == master.log_bytes()


async def test_a_follower_that_cannot_read_its_log_continues_once_it_can(tmp_path: Path) -> None:
    async with MemberNode(tmp_path, 0) as master, MemberNode(tmp_path, 1) as slave:
        await master.lead(1)
        await master.fill(100)
        assert isinstance(slave.disk, MemoryDisk)
        slave.disk.fault = lambda operation, path: (
            5 if operation == "read" and "/commitlog/" in path else 0
        )
        await slave.follow_member(master, 1)
        await until(lambda: slave.end > 0)
        await until(lambda: len(slave.log.named("replica.lost")) > 1)  # the second in a handshake
        assert slave.visible_count == 0
        assert slave.errors == []
        slave.disk.fault = None
        await until(lambda: is_equal(slave, master))
        assert slave.log_bytes() == master.log_bytes()


async def test_sends_wait_for_every_member_of_the_set(tmp_path: Path) -> None:
    async with MemberNode(tmp_path, 0) as master, MemberNode(tmp_path, 1) as slave:
        await master.lead(1, [slave])
        result = master.put(make_message(body=b"one"))
        await asyncio.sleep(0.05)
        assert not result
        assert master.visible_count == 0
        await slave.follow_member(master, 1)
        await until(lambda: result)
        assert result[0].status is PutStatus.PUT_OK
        assert master.visible_count == 1
        await until(lambda: slave.visible_count == 1)


async def test_readers_of_a_follower_see_what_is_confirmed(tmp_path: Path) -> None:
    async with (
        MemberNode(tmp_path, 0) as master,
        MemberNode(tmp_path, 1) as slave,
        MemberNode(tmp_path, 2) as late,
    ):
        await master.lead(1, [slave, late])
        await slave.follow_member(master, 1)
        await master.fill(10)
        await until(lambda: slave.end == master.end)
        await until(lambda: master.reports and master.reports[-1].ack.offset == master.end)
        assert slave.visible_count == master.visible_count == 0
        await late.follow_member(master, 1)
        await until(lambda: slave.visible_count == master.visible_count == 10)


async def test_a_confirm_offset_travels_with_the_next_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "CONFIRM_DELAY_MS", 3_600_000)  # never without records
    async with MemberNode(tmp_path, 0) as master, MemberNode(tmp_path, 1) as slave:
        await master.lead(1, [slave])
        await slave.follow_member(master, 1)
        await master.fill(10)
        await until(lambda: master.visible_count == 10)
        await master.fill(1)
        await until(lambda: slave.visible_count == 10)
        await until(lambda: master.visible_count == 11)
        assert slave.end == master.end
        assert slave.visible_count == 10


async def test_confirm_offsets_do_not_travel_with_every_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "CONFIRM_DELAY_MS", 1_000)
    async with MemberNode(tmp_path, 0) as master, MemberNode(tmp_path, 1) as slave:
        await master.lead(1, [slave])
        await slave.follow_member(master, 1)
        seen = set()
        for _ in range(30):
            await master.fill(10)
            await until(lambda: master.sender.confirmed == master.end)
            seen.add(slave.replica.confirmed)
        assert len(seen) < 15
        await until(lambda: slave.visible_count == master.visible_count)


async def test_few_confirmed_records_wait_for_others_but_many_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(master_stream, "SHOW_DELAY_MS", 3_600_000)  # never without more records
    async with MemberNode(tmp_path, 0) as master, MemberNode(tmp_path, 1) as slave:
        await master.lead(1, [slave])
        await slave.follow_member(master, 1)
        await master.fill(10)
        await until(lambda: slave.replica.confirmed == master.end)
        await asyncio.sleep(0.05)
        assert slave.visible_count == 0
        while master.end < master_stream.SHOW_BYTES:
            await master.fill(10)
        await until(lambda: slave.visible_count == master.visible_count)


async def test_a_deposed_master_cuts_its_tail_and_follows(tmp_path: Path) -> None:
    async with MemberNode(tmp_path, 0) as old, MemberNode(tmp_path, 1) as new:
        await old.lead(1, [new])
        await new.follow_member(old, 1)
        await old.fill(20)
        await until(lambda: is_equal(new, old))
        common = old.end
        await new.depose()
        lost = old.put(make_message(body=b"never confirmed"))
        await asyncio.sleep(0)
        tail = old.log_bytes()[common:]
        await new.lead(2)
        await new.fill(30, body=b"after the election")
        await old.follow_member(new, 2)
        await until(lambda: is_equal(old, new))
        assert old.log_bytes() == new.log_bytes()
        assert old.history == new.history == [(1, 0), (2, common)]
        assert [result.status for result in lost] == [PutStatus.SERVICE_NOT_AVAILABLE]
        (kept,) = (old.folder / "cut").iterdir()
        assert kept.name == f"{common:020d}-1.tail"
        assert kept.read_bytes() == tail
        assert old.log.named("tail.cut")
        assert old.visible_count == 50


async def test_every_epoch_is_saved_before_its_bytes_are_acknowledged(tmp_path: Path) -> None:
    async with MemberNode(tmp_path, 0) as master, MemberNode(tmp_path, 1) as slave:
        starts = []
        for epoch in range(1, 6):
            await master.lead(epoch)
            starts.append((epoch, master.end))
            await master.fill(20)
        saved: list[tuple[int, int]] = []  # number of entries, end of the log
        save = slave.epochs.save

        async def note(history: tuple) -> None:  # type: ignore[type-arg]
            saved.append((len(history), slave.end))
            await save(history)

        slave.epochs.save = note  # type: ignore[method-assign]
        await slave.follow_member(master, 5)
        await until(lambda: is_equal(slave, master))
        assert slave.history == starts
        assert saved == [(number, start) for number, (_, start) in enumerate(starts, 1)]
        for report in master.reports:
            for epoch, start in starts:
                assert report.ack.offset < start or saved[epoch - 1][1] <= report.ack.offset


async def test_records_larger_than_a_slice_and_files_arrive(tmp_path: Path) -> None:
    size = 8 << 20
    settings: dict[str, Any] = {"mapped_file_size_commit_log": size, "max_message_size": 6 << 20}
    async with (
        MemberNode(tmp_path, 0, **settings) as master,
        MemberNode(tmp_path, 1, **settings) as slave,
    ):
        await master.lead(1)
        for number in range(4):
            master.put(make_message(body=bytes([number]) * (5 << 20)))
            await asyncio.sleep(0)
        await master.fill(3)
        await slave.follow_member(master, 1)
        await until(lambda: is_equal(slave, master))
        assert slave.log_bytes() == master.log_bytes()
        assert slave.visible_count == 7


async def test_an_empty_follower_begins_where_the_masters_log_begins(tmp_path: Path) -> None:
    async with MemberNode(tmp_path, 0) as master, MemberNode(tmp_path, 1) as slave:
        await master.fill(120)
        master.store.commit_log.forget_first(1)
        await master.lead(4)
        await master.fill(3)
        await slave.follow_member(master, 4)
        await until(lambda: slave.end == master.end)
        assert slave.store.commit_log.min_offset == 4096
        assert slave.log_bytes() == master.log_bytes()
        await until(lambda: slave.history == master.history)


async def test_tables_arrive_whole_and_then_change_by_change(tmp_path: Path) -> None:
    async with MemberNode(tmp_path, 0) as master, MemberNode(tmp_path, 1) as slave:
        master.topics.create("before", queue_nums=2)
        slave.topics.create("stale", queue_nums=2)
        await master.lead(1)
        await slave.follow_member(master, 1)
        await until(lambda: slave.tables.position == master.tables.position)
        assert "before" in slave.topics.table
        assert "stale" not in slave.topics.table
        master.topics.create("after", queue_nums=3)
        master.offsets.commit("G", "after", 0, 17)
        master.journal.write()
        await until(lambda: slave.tables.position.changes == 1)
        assert slave.topics.table == master.topics.table
        assert slave.offsets.committed("G", "after", 0) == 17
        await until(lambda: master.reports[-1].ack.tables == 1)


async def test_a_new_connection_continues_with_the_changes_it_lacks(tmp_path: Path) -> None:
    async with MemberNode(tmp_path, 0) as master, MemberNode(tmp_path, 1) as slave:
        await master.lead(1)
        await slave.follow_member(master, 1)
        await until(lambda: slave.tables.position == master.tables.position)
        whole_count = []
        adopt = slave.tables.adopt
        slave.tables.adopt = lambda *facts: (whole_count.append(1), adopt(*facts))[1]  # type: ignore[method-assign]
        await slave.depose()
        master.offsets.commit("G", "T", 0, 1)
        master.journal.write()
        await slave.follow_member(master, 1)
        await until(lambda: slave.offsets.committed("G", "T", 0) == 1)
        assert not whole_count


async def test_reports_repeat_the_masters_time(tmp_path: Path) -> None:
    async with MemberNode(tmp_path, 0) as master, MemberNode(tmp_path, 1) as slave:
        master.clock.advance(1_000)
        await master.lead(1, [slave])
        await slave.follow_member(master, 1)
        await until(lambda: len(master.reports) > 1)
        times = {1_000}
        async with asyncio.timeout(DEADLINE_S):
            while master.reports[-1].sent_ms == 1_000:  # frames in flight are answered first
                master.clock.advance(500)
                times.add(master.clock.monotonic_ms())
                slave.clock.advance(500)
                master.server.tick()
                await asyncio.sleep(0.05)
        assert master.reports[-1].sent_ms in times


@pytest.mark.parametrize("steps_ms", [(99, 101), (101, 100, 99), (101,)])
async def test_no_heartbeat_is_left_out_because_a_tick_comes_early(
    tmp_path: Path, steps_ms: tuple[int, ...]
) -> None:
    """Otherwise copies leave the in-sync set and return to it, with the shortest interval."""
    within_ms = 300
    async with (
        MemberNode(tmp_path, 0, heard_within_mills=within_ms) as master,
        MemberNode(tmp_path, 1) as slave,
    ):
        await master.lead(1, [slave])
        await slave.follow_member(master, 1)
        await until(lambda: master.reports and master.sender.followers())
        stream: Any = slave.member_follower._stream
        (sent,) = master.sender._streams
        ages_ms = []
        for number in range(60):
            for one in (slave, master):
                one.clock.advance(steps_ms[number % len(steps_ms)])
            ages_ms.append(master.clock.monotonic_ms() - master.reports[-1].sent_ms)
            stream.tick()  # before the heartbeat of this tick arrives
            master.server.tick()
            await until(lambda: stream._confirm.sent_ms == sent.confirm_sent_ms)
            await until(lambda: master.reports[-1].sent_ms == stream._reported.heard_ms)
        assert max(ages_ms[10:]) < 1.1 * within_ms, ages_ms


async def test_silence_closes_connections(tmp_path: Path) -> None:
    async with MemberNode(tmp_path, 0) as master, MemberNode(tmp_path, 1) as slave:
        await master.lead(1)
        await slave.follow_member(master, 1)
        await until(master.sender.followers)

        def has_connected_again() -> bool:
            following = slave.state.following
            if following.state is FollowState.FOLLOWING and following.connect_count == 1:
                slave.clock.advance(6_000)  # repeated: a frame in flight counts as a sign of life
            return following.connect_count > 1

        await until(has_connected_again)

        def is_silent() -> object:
            master.clock.advance(6_000)
            master.server.tick()
            return master.log.named("follower.silent")

        await until(is_silent)


async def test_a_follower_that_stops_says_so(tmp_path: Path) -> None:
    async with MemberNode(tmp_path, 0) as master, MemberNode(tmp_path, 1) as slave:
        await master.lead(1, [slave])
        await master.fill(20)
        await slave.follow_member(master, 1)
        await until(lambda: slave.end == master.end)
        await slave.member_follower.leave()
        await until(lambda: master.copies_left == [slave.copy])
        assert not master.sender.followers()
        await slave.follow_member(master, 1)
        await until(lambda: len(master.sender.followers()) == 1)
        assert master.copies_left == [slave.copy]


async def test_stopping_ends_a_truncation_first(tmp_path: Path) -> None:
    async with MemberNode(tmp_path, 0) as old, MemberNode(tmp_path, 1) as new:
        await old.lead(1)
        await old.fill(20)
        await new.lead(2)
        began = asyncio.Event()
        truncate = old.driver.truncate

        async def slow(offset: int) -> None:
            began.set()
            await asyncio.sleep(0.05)
            await truncate(offset)

        old.driver.truncate = slow  # type: ignore[method-assign]
        await old.follow_member(new, 2)
        await began.wait()
        assert not old.replica.may_read()
        await old.member_follower.stop()
        assert old.end == 0
        assert old.history == [(2, 0)]


async def test_a_history_that_cannot_be_saved_is_reported(tmp_path: Path) -> None:
    async with MemberNode(tmp_path, 0) as master, MemberNode(tmp_path, 1) as slave:
        await master.lead(1)
        await master.fill(5)
        await master.lead(2)
        await master.fill(5)
        await slave.follow_member(master, 2)
        await until(lambda: is_equal(slave, master))
        await slave.depose()
        await master.lead(3)
        await master.fill(5)
        slave.files.error = OSError(28, "No space left on device")
        await slave.follow_member(master, 3)
        await until(lambda: slave.errors)
        end = slave.end
        assert slave.history == [(1, 0), (2, master.history[1][1])]
        slave.files.error = None
        await until(lambda: is_equal(slave, master))
        assert end < slave.end


async def test_old_tails_are_deleted(tmp_path: Path) -> None:
    async with MemberNode(tmp_path, 0) as m, MemberNode(tmp_path, 1) as x:
        for epoch in range(1, 24, 2):
            await m.lead(epoch)
            await m.fill(2)
            await x.lead(epoch + 1)
            await m.follow_member(x, epoch + 1)
            await until(lambda: is_equal(m, x))
            await x.depose()
            await m.depose()
        assert len(list((m.folder / "cut").iterdir())) == 8
