# SPDX-License-Identifier: Apache-2.0
"""Groups whose members have a full disk, or a damaged journal."""

from pathlib import Path

import pytest

from cometmq.ha.role import Role
from cometmq.ha.state import Standing
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.errors import CommandError
from cometmq.store.writing.write_state import Refusal
from cometmq.testing.broker.broker_groups import running_group

FULL_PERCENT = 99


async def test_a_master_with_a_full_disk_hands_over_and_loses_nothing(tmp_path: Path) -> None:
    async with running_group(tmp_path, 2, minInSync="1") as group:
        old = group.open_master
        await group.until(lambda: group.status(1 - old).has_room)
        async with group.client(old) as client:
            assert (await client.send(b"before")).code == ResponseCode.SUCCESS
            group.apps[old].broker.store.write_state.set(Refusal.LOG_WRITE_FAILED, holds=True)
            with pytest.raises(CommandError):
                await client.send(b"refused")
            assert group.status(old).is_full
            await group.elect()
            await group.until(lambda: group.master == 1 - old)
            assert (await client.send(b"forwarded")).code == ResponseCode.SUCCESS
        async with group.client(1 - old) as client:
            bodies = [record.body for record in await client.all_messages("T")]
        assert bodies == [b"before", b"forwarded"]


async def test_a_master_with_a_full_disk_stays_if_the_slaves_disk_is_almost_full(
    tmp_path: Path,
) -> None:
    async with running_group(tmp_path, 2, minInSync="1") as group:
        master = group.open_master
        for app in group.apps.values():
            app.broker.store.upkeep.cleaner.used_percent = FULL_PERCENT
        group.apps[master].broker.store.write_state.set(Refusal.DISK_FULL, holds=True)
        assert group.status(master).is_full
        assert not group.status(1 - master).has_room
        await group.elect()
        assert group.master == master


async def test_a_store_with_a_damaged_journal_is_another_copy(tmp_path: Path) -> None:
    """The store may lack table changes that it has confirmed, so no election may choose it (R2)."""
    async with running_group(tmp_path, 2, minInSync="1") as group:
        master = group.open_master
        slave = 1 - master
        async with group.client(master) as client:
            for number in range(20):
                await client.send(b"%d" % number, topic=f"T{number}")
        await group.until_in_sync(0, 1)
        before = group.status(slave).copy
        await group.kill(slave)
        journal = max((tmp_path / str(slave) / "config" / "journal").iterdir())
        data = bytearray(journal.read_bytes())
        middle = len(data.rstrip(b"\0")) // 2
        data[middle : middle + 8] = b"\xff" * 8
        journal.write_bytes(data)
        await group.start(slave)
        assert group.logs[slave].named("journal.damaged")
        assert group.status(slave).standing is not Standing.PROVEN
        assert group.status(slave).copy != before
        await group.until_in_sync(0, 1)
        assert group.record.member(slave) == group.status(slave).copy
        assert group.status(slave).role is Role.SLAVE
