# SPDX-License-Identifier: Apache-2.0
"""Groups whose members have a full disk."""

from pathlib import Path

import pytest

from cometmq.broker.testing.groups import running_group
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.errors import CommandError
from cometmq.store.writing.write_state import Refusal

FULL_PERCENT = 99


async def test_a_master_with_a_full_disk_hands_over_and_loses_nothing(tmp_path: Path) -> None:
    async with running_group(tmp_path, 2, minInSync="1") as group:
        old = group.master
        assert old is not None
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
        master = group.master
        assert master is not None
        for app in group.apps.values():
            app.broker.store._housekeeping.cleaner.used_percent = FULL_PERCENT
        group.apps[master].broker.store.write_state.set(Refusal.DISK_FULL, holds=True)
        assert group.status(master).is_full
        assert not group.status(1 - master).has_room
        await group.elect()
        assert group.master == master
