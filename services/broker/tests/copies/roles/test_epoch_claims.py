# SPDX-License-Identifier: Apache-2.0
"""Epochs that others name: the record alone decides, and strangers cannot make it busy."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from cometmq.broker.copies.roles import record_watch
from cometmq.broker.copies.roles.record_watch import EpochClaims
from cometmq.ha.role import Role
from cometmq.testing.broker.logs import RecordingLog
from cometmq.testing.broker.member_rig import Rig, X, record, running
from cometmq.testing.broker.replicas import until

HUGE = 1 << 62


@asynccontextmanager
async def checking(
    log: RecordingLog, pause_s: float
) -> AsyncIterator[tuple[EpochClaims, list[int]]]:
    """Run claims of a member whose record has epoch 1; the list collects what is checked."""
    checked: list[int] = []
    one = EpochClaims(
        check=checked.append,
        recorded=lambda: 1,
        log=log,
        sleep=lambda _: asyncio.sleep(pause_s),
    )
    task = asyncio.get_running_loop().create_task(one.run())
    try:
        yield one, checked
    finally:
        task.cancel()
        await asyncio.wait([task])


async def test_a_flood_of_claims_causes_one_read_in_each_interval() -> None:
    async with checking(RecordingLog(), 3600) as (one, checked):
        for number in range(1_000):
            one.note(2 + number)
        await until(lambda: checked)
        for number in range(1_000):
            one.note(HUGE - number)
        await asyncio.sleep(0)
        assert checked == [1_001]


async def test_the_claims_of_an_interval_are_checked_after_it() -> None:
    async with checking(RecordingLog(), 0.001) as (one, checked):
        one.note(2)
        await until(lambda: checked)
        one.note(3)
        await until(lambda: 3 in checked)


async def test_a_claim_that_is_never_recorded_is_reported_once_in_a_while() -> None:
    log = RecordingLog()
    async with checking(log, 0) as (one, checked):
        while len(checked) < 40:
            one.note(HUGE)
            await asyncio.sleep(0)
        (event,) = log.named("member.epoch_unrecorded")
        assert (event["claimed"], event["recorded"]) == (HUGE, 1)


@asynccontextmanager
async def leading(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    monkeypatch.setattr(record_watch, "PAUSE_MS", 1)
    async with running(folder) as rig:
        rig.write(record(1))
        await rig.until(lambda: rig.role is Role.MASTER)
        rig.duties.calls.clear()
        yield rig


async def test_a_claim_that_the_record_does_not_show_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with leading(tmp_path, monkeypatch) as rig:
        rig.member.epoch_seen(HUGE)
        await until(lambda: rig.log.named("member.epoch_unrecorded"))
        assert (rig.role, rig.duties.calls) == (Role.MASTER, [])
        assert (rig.member.status().promised, rig.saved.promised) == (1, 1)


async def test_a_claim_that_the_record_shows_deposes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with leading(tmp_path, monkeypatch) as rig:
        monkeypatch.setattr(rig.member.watch, "_look", lambda _: None)  # the watch is late
        rig.write(record(2, holder=X))
        rig.member.epoch_seen(2)
        await rig.until(lambda: rig.member.status().epoch == 2)
        assert rig.role is Role.SLAVE
        assert not rig.log.named("member.epoch_unrecorded")
