# SPDX-License-Identifier: Apache-2.0
"""A member whose state, record of the in-sync set or history cannot be saved."""

import errno
import os
from pathlib import Path

import pytest

from cometmq.broker.copies.roles import member_driver
from cometmq.ha import member as rules
from cometmq.ha.epochs import HistoryUnsaved
from cometmq.ha.member import OrderRefusal, OrderRefused
from cometmq.ha.orders import Fence
from cometmq.ha.role import Role
from cometmq.ha.state import State
from cometmq.testing.broker.member_rig import ME, Rig, X, record, running


class FullDisk:
    """Makes saves of the state file fail."""

    def __init__(self, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
        self.number = errno.ENOSPC
        self.tries = 0
        self._save = rig.file.save
        monkeypatch.setattr(member_driver, "FULL_RETRY_MS", 1)
        monkeypatch.setattr(rig.file, "save", self.save)

    def save(self, state: State) -> None:
        self.tries += 1
        if self.number:
            raise OSError(self.number, os.strerror(self.number))
        self._save(state)


async def test_a_standing_that_cannot_be_saved_ends_the_membership(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async with running(tmp_path) as rig:
        rig.write(record(4, holder=X, in_sync=(X,)))
        await rig.until(lambda: rig.member.status().epoch == 4)
        disk = FullDisk(rig, monkeypatch)
        disk.number = errno.EIO
        rig.write(record(4, holder=X))
        await rig.until(lambda: rig.role is Role.FAILED)
        assert rig.log.named("member.failed")[0]["step"] == "SaveInSync"
        disk.number = 0
        rig.write(record(5, holder=X))
        rig.member.watch.read_wanted.set()
        with pytest.raises(OrderRefused) as caught:
            await rig.member.obey(Fence(9))
        assert caught.value.reason is OrderRefusal.STORE_FAILED
        assert rig.role is Role.FAILED


async def test_a_member_whose_state_did_not_fit_on_the_disk_takes_part_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async with running(tmp_path) as rig:
        rig.write(record(4, holder=X, in_sync=(X,)))
        await rig.until(lambda: rig.member.status().epoch == 4)
        disk = FullDisk(rig, monkeypatch)
        rig.write(record(4, holder=X))
        await rig.until(lambda: rig.role is Role.FAILED)
        await rig.until(lambda: disk.tries >= 3)
        assert rig.role is Role.FAILED
        disk.number = 0
        await rig.until(lambda: rig.role is Role.SLAVE and rig.member.status().epoch == 4)
        assert rig.duties.calls[-1] == ("start", 1, 4)
        rig.member.watch.read_wanted.set()
        await rig.until(lambda: rig.saved.last_in_sync == (ME, X))


async def test_a_promise_that_did_not_fit_on_the_disk_is_never_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async with running(tmp_path) as rig:
        rig.write(record(4, holder=X))
        await rig.until(lambda: rig.member.status().epoch == 4 and rig.saved.last_in_sync)
        disk = FullDisk(rig, monkeypatch)
        with pytest.raises(OrderRefused) as caught:
            await rig.member.obey(Fence(9))
        assert caught.value.reason is OrderRefusal.STORE_FAILED
        assert (rig.role, rig.saved.promised) == (Role.FAILED, 4)
        with pytest.raises(OrderRefused):
            await rig.member.obey(Fence(9))
        disk.number = 0
        await rig.until(lambda: rig.role is Role.SLAVE)
        assert rig.saved.promised == rig.member.status().promised == 9
        assert rig.member.status().epoch == 0  # it has promised a later epoch than the record's


FULL = HistoryUnsaved(errno.ENOSPC, "No space left on device: epoch file")


async def test_a_winner_whose_history_did_not_fit_on_the_disk_takes_part_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(member_driver, "FULL_RETRY_MS", 1)
    async with running(tmp_path) as rig:
        perform = rig.duties.perform

        async def begin_with_full_disk(action: rules.Duty) -> None:
            await perform(action)
            if isinstance(action, rules.BeginEpoch):
                raise FULL

        monkeypatch.setattr(rig.duties, "perform", begin_with_full_disk)
        rig.write(record(1))
        await rig.until(lambda: rig.role is Role.FAILED)
        rig.duties.error = FULL
        await rig.until(lambda: rig.duties.calls.count(("repair",)) >= 2)
        assert rig.role is Role.FAILED
        monkeypatch.setattr(rig.duties, "perform", perform)
        rig.duties.error = None
        await rig.until(lambda: rig.role is Role.MASTER)
        assert rig.member.status().epoch == 2  # its promise of epoch 1 is used up (R4)
        assert rig.duties.calls[-2:] == [("begin", 2), ("lead",)]


async def test_a_slave_whose_history_did_not_fit_on_the_disk_follows_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(member_driver, "FULL_RETRY_MS", 1)
    async with running(tmp_path) as rig:
        rig.write(record(4, holder=X))
        await rig.until(lambda: rig.member.status().epoch == 4)
        rig.duties.calls.clear()
        rig.member.store_failed(FULL)
        await rig.until(lambda: rig.duties.calls[-1:] == [("start", 1, 4)])
        assert rig.duties.calls[:3] == [("close",), ("stop",), ("repair",)]
        assert rig.log.named("member.failed")[0]["step"] == "SaveHistory"


async def test_a_store_that_fails_besides_a_full_disk_does_not_recover(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async with running(tmp_path) as rig:
        rig.write(record(4, holder=X))
        await rig.until(lambda: rig.member.status().epoch == 4 and rig.saved.last_in_sync)
        disk = FullDisk(rig, monkeypatch)
        rig.write(record(4, holder=X, in_sync=(X,)))
        await rig.until(lambda: rig.role is Role.FAILED)
        rig.member.observe(rules.StoreFailed())
        disk.number = 0
        with pytest.raises(OrderRefused):
            await rig.member.obey(Fence(9))
        assert rig.role is Role.FAILED
        assert rig.log.named("member.recovered") == []
