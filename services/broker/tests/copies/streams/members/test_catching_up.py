# SPDX-License-Identifier: Apache-2.0
"""Followers that are far behind their master."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from cometmq.broker.copies.streams import master_stream
from cometmq.ha.epochs import History
from cometmq.store.upkeep import checkpointer
from cometmq.testing.broker.member_nodes import MemberNode, is_equal
from cometmq.testing.broker.replicas import until


@pytest.mark.parametrize(("interval_ms", "least", "most"), [(10, 1, 1), (0, 6, 4000)])
async def test_a_follower_far_behind_rarely_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interval_ms: int, least: int, most: int
) -> None:
    monkeypatch.setattr(checkpointer, "FAR_BEHIND_BYTES", 100_000)
    monkeypatch.setattr(master_stream, "REPORT_BEHIND_MS", interval_ms)
    async with MemberNode(tmp_path, 0) as master, MemberNode(tmp_path, 1) as slave:
        await master.lead(1)
        for _ in range(40):
            await master.fill(100, b"x" * 1000)
        await slave.follow_member(master, 1)  # its clock stands still
        await until(lambda: is_equal(slave, master))
        await until(lambda: master.reports[-1].ack.offset == master.end)
        reports = [one for one in master.reports if one.ack.offset < master.end - 100_000]
        assert least <= len(reports) <= most  # the first one names the start of the log


async def test_a_follower_far_behind_reads_no_faster_than_checkpoints_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpointer, "UNSAVED_COUNT_MAX", 100)
    monkeypatch.setattr(checkpointer, "FAR_BEHIND_BYTES", 100_000)
    async with MemberNode(tmp_path, 0) as master, MemberNode(tmp_path, 1) as slave:
        await master.lead(1)
        for _ in range(40):
            await master.fill(100, b"x" * 1000)
        await slave.follow_member(master, 1)
        await until(
            lambda: (
                slave.store.upkeep.catch_up.is_crowded and slave.member_follower.is_waiting_for_disk
            )
        )
        end = slave.end
        assert end < master.end - 100_000
        slave.clock.advance(60_000)  # longer than any silence timeout: the slave is not listening
        for _ in range(100):
            await asyncio.sleep(0)
        assert slave.end == end

        stream: Any = slave.member_follower._stream
        resume = stream.resume

        def resume_late() -> None:
            """Let time pass before the stream is read again, and look at once who is silent."""
            if stream.is_waiting_for_disk:
                slave.clock.advance(60_000)
                resume()
                if not stream.is_waiting_for_disk:
                    stream.tick()

        monkeypatch.setattr(stream, "resume", resume_late)

        def saves_and_is_equal() -> bool:
            slave.driver.tick()
            return is_equal(slave, master)

        await until(saves_and_is_equal)
        assert slave.log_bytes() == master.log_bytes()
        assert slave.state.following.connect_count == 1


async def test_a_follower_in_sync_never_waits_for_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpointer, "UNSAVED_COUNT_MAX", 100)
    async with MemberNode(tmp_path, 0) as master, MemberNode(tmp_path, 1) as slave:
        await master.lead(1, [slave])
        await slave.follow_member(master, 1)
        for _ in range(10):
            await master.fill(50)
            await until(lambda: is_equal(slave, master))
        assert not slave.store.upkeep.catch_up.is_crowded


async def test_a_follower_that_is_long_saving_epochs_is_not_silent(tmp_path: Path) -> None:
    async with MemberNode(tmp_path, 0) as master, MemberNode(tmp_path, 1) as slave:
        for epoch in range(1, 4):
            await master.lead(epoch)
            await master.fill(5)
        saved: list[History] = []
        save, disk = slave.epochs.save, asyncio.Event()

        async def save_late(history: History) -> None:
            saved.append(history)
            if len(saved) > 2:  # in the middle of the stream
                await disk.wait()
            await save(history)

        slave.epochs.save = save_late  # type: ignore[method-assign]
        await slave.follow_member(master, 3)
        await until(lambda: len(saved) == 3)
        try:
            for _ in range(4):
                heard = len(master.reports)
                master.clock.advance(2_000)
                slave.clock.advance(2_000)
                await until(lambda: len(master.reports) > heard)  # noqa: B023  # awaited here
                master.server.tick()
            assert all(one.ack.offset < saved[2][-1].start for one in master.reports)
        finally:
            disk.set()
        await until(lambda: is_equal(slave, master))
        assert slave.state.following.connect_count == 1
        assert not master.log.named("follower.silent")
