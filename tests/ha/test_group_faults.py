# SPDX-License-Identifier: Apache-2.0
"""Groups under load lose processes and change masters without losing acknowledged messages."""

import asyncio
from itertools import chain
from random import Random
from time import monotonic

import pytest

from cometmq.peers.ha.copies import judge_copies
from cometmq.peers.ha.faults import FAULTS, SWITCHOVER, draw
from cometmq.peers.ha.group import BrokerGroup
from cometmq.peers.ha.load import Load
from cometmq.peers.ha.report import percentile

GROUPS = {"two copies": (2, 1), "three copies": (3, 2)}
"""Number of copies, and minInSync."""
QUIET_S_MAX = 1.5
"""Time under load between two faults."""
AGAIN_P95_S_MAX = 15.0
"""Generous, so that the test tolerates a loaded machine; the report has the measured times."""


async def strike(group, load, kind, random, outages):
    """Inject one fault under load, wait until the group is complete, and measure the outage."""
    before = await group.until_complete()
    since = monotonic()
    await FAULTS[kind](group, before["master"], random)
    await group.until_complete()
    await load.until_settled(monotonic())
    await asyncio.sleep(random.uniform(0.5, QUIET_S_MAX))
    outage = load.ledger.outage(since, monotonic())
    assert outage is not None, f"no send was acknowledged after {kind}"
    outages.setdefault(kind, []).append(outage)


@pytest.mark.parametrize("name", GROUPS)
async def test_a_group_under_faults_loses_no_acknowledged_message(tmp_path, name, outages, request):
    copies, min_in_sync = GROUPS[name]
    random = Random(f"{request.config.getoption('--fault-seed')}:{name}")
    kinds = draw(request.config.getoption("--faults") // len(GROUPS), random)
    group = BrokerGroup(tmp_path, copies=copies, min_in_sync=min_in_sync)
    try:
        await group.start()
        load = Load(group.namesrv)
        async with load.running() as ledger:
            await asyncio.sleep(QUIET_S_MAX)
            for kind in kinds:
                await strike(group, load, kind, random, outages)
        assert ledger.faults() == []
        confirmed = await group.until_equal()
        await group.stop_all()
    finally:
        group.kill_all()
    stores = [group.store(ordinal) for ordinal in range(copies)]
    assert judge_copies(stores, confirmed, ledger) == []
    again = [outage.again_s for outage in chain.from_iterable(outages.values())]
    assert percentile(again, 0.95) <= AGAIN_P95_S_MAX
    assert sum(outage.failed_count for outage in outages.get(SWITCHOVER, [])) == 0
