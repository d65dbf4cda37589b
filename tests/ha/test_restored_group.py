# SPDX-License-Identifier: Apache-2.0
"""A group that has lost all stores and its record starts again from a backup."""

import asyncio

from cometmq.ha.epochs import EPOCH_FILE
from cometmq.ha.state import STATE_FILE
from cometmq.peers.backups import copy_in_order
from cometmq.peers.ha.copies import judge_copies
from cometmq.peers.ha.group import BrokerGroup, hosts
from cometmq.peers.ha.load import TOPIC, Load
from cometmq.peers.ha.network import Network

MESSAGE_COUNT = 200
WAIT_S = 240


async def until_sent(ledger):
    async with asyncio.timeout(WAIT_S):
        while len(ledger.acknowledged) < MESSAGE_COUNT:  # noqa: ASYNC110  # senders decide
            await asyncio.sleep(0.05)


def new_group(folder, network):
    folder.mkdir()
    return BrokerGroup(folder, network, copies=2, min_in_sync=1)


async def send_and_back_up(group, backup):
    """Send messages, and copy the store of one member; return the ledger."""
    try:
        await group.start()
        async with Load(group.namesrv).running() as ledger:
            await until_sent(ledger)
        await group.until_equal()
        copy_in_order(group.store(0), backup)
        assert (group.store(0) / STATE_FILE).exists()
        assert not {STATE_FILE, EPOCH_FILE} & {path.name for path in backup.iterdir()}
    finally:
        group.clear()
    return ledger


async def test_a_group_is_restored_from_a_copy_of_one_member(tmp_path):
    backup = tmp_path / "backup"
    network = Network(hosts(2))
    with network.running():
        ledger = await send_and_back_up(new_group(tmp_path / "lost", network), backup)
        group = new_group(tmp_path / "restored", network)
        try:
            await group.start(backup=backup)
            assert (await group.status())["master"] == 0, "the only store with messages"
            confirmed = await group.until_equal()
            await group.stop_all()
            stores = [group.store(0), group.store(1)]
            assert judge_copies(stores, confirmed, {TOPIC: ledger}) == []
        finally:
            group.clear()
