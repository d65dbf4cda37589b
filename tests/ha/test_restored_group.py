# SPDX-License-Identifier: Apache-2.0
"""A group that has lost all stores and its record starts again from a backup."""

import asyncio
import shutil

from cometmq.ha.epochs import EPOCH_FILE
from cometmq.ha.state import STATE_FILE
from cometmq.peers.backups import copy_in_order
from cometmq.peers.ha.copies import judge_copies
from cometmq.peers.ha.group import BrokerGroup
from cometmq.peers.ha.load import Load

MESSAGE_COUNT = 200
WAIT_S = 240


async def until_sent(ledger):
    async with asyncio.timeout(WAIT_S):
        while len(ledger.acknowledged) < MESSAGE_COUNT:  # noqa: ASYNC110  # senders decide
            await asyncio.sleep(0.05)


async def test_a_group_is_restored_from_a_copy_of_one_member(tmp_path):
    group = BrokerGroup(tmp_path, copies=2, min_in_sync=1)
    backup = tmp_path / "backup"
    try:
        await group.start()
        async with Load(group.namesrv).running() as ledger:
            await until_sent(ledger)
        await group.until_equal()
        copy_in_order(group.store(0), backup)
        assert (group.store(0) / STATE_FILE).exists()
        assert not {STATE_FILE, EPOCH_FILE} & {path.name for path in backup.iterdir()}
        await group.stop_all()

        for lost in (group.store(0), group.store(1), tmp_path / "record"):
            shutil.rmtree(lost)
        (tmp_path / "record").mkdir()
        shutil.copytree(backup, group.store(0))
        await group.start()
        assert (await group.status())["master"] == 0, "the only store with messages"
        confirmed = await group.until_equal()
        await group.stop_all()
    finally:
        group.kill_all()
    assert judge_copies([group.store(0), group.store(1)], confirmed, ledger) == []
