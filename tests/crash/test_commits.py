# SPDX-License-Identifier: Apache-2.0
"""Under load and kill -9, no committed message is redelivered to consumers."""

import asyncio
import sys
from pathlib import Path
from random import Random

import pytest
from tests.crash.committing import GROUPS, QUEUE_COUNT, Committing

from cometmq.peers.broker.child import BrokerChild


@pytest.mark.timeout(1800)
async def test_no_committed_message_is_redelivered(
    tmp_path: Path, random: Random, kills: int
) -> None:
    """Offsets are saved at the default interval, so most kills happen long after the last save."""
    broker = BrokerChild(tmp_path, mappedFileSizeCommitLog=str(64 << 20))
    load = Committing(random)
    count = max(3, kills // 4)

    async def die() -> None:
        await asyncio.sleep(random.uniform(0.05, 1.5))
        broker.kill()

    with broker:
        await broker.start()
        await load.create(broker.address)
        for kill in range(1, count + 1):
            await load.until_death(broker.address, die)
            await broker.start()
            wrong = await load.look(broker.address)
            assert not wrong, f"after kill {kill}: {wrong}"
        assert await broker.stop() == 0
    sys.stdout.write(
        f"{count} kills, {load.delivered_count} messages delivered: {load.again_count} again after"
        f" their commit, {load.in_flight_count} whose commit was in flight\n"
    )
    assert load.again_count == 0
    assert load.delivered_count > count * len(GROUPS) * QUEUE_COUNT
