# SPDX-License-Identifier: Apache-2.0
"""Groups under load lose processes, hosts, networks and disks, but no acknowledged message."""

import asyncio
from contextlib import AsyncExitStack
from functools import partial
from random import Random
from time import monotonic

import pytest

from cometmq.peers.ha import java_load
from cometmq.peers.ha.copies import judge_copies
from cometmq.peers.ha.faults import FAULTS, SWITCHOVER, draw
from cometmq.peers.ha.group import BrokerGroup, hosts
from cometmq.peers.ha.java_load import JavaLoad
from cometmq.peers.ha.load import TOPIC, Load, until, until_settled
from cometmq.peers.ha.network import Network
from cometmq.peers.ha.report import percentile

GROUPS = {"two copies": (2, 1), "three copies": (3, 2)}
"""Number of copies, and minInSync."""
CLIENTS = PYTHON, JAVA = ("Python", "Java")
QUIET_S_MAX = 1.5
"""Time under load between two faults."""
AGAIN_P95_S_MAX = 60.0
"""Generous, so that the test tolerates a loaded machine; the report has the measured times."""


class Trial:
    """A group under the load of both clients."""

    def __init__(self, group, loads, random, outages):
        self._group, self._loads = group, loads
        self._random, self._outages = random, outages
        self._master = -1

    async def until_complete(self):
        """Wait until all copies are in sync, and note which is the master's."""
        self._master = (await self._group.until_complete())["master"]

    async def strike(self, kind):
        """Inject one fault, wait until the group is complete, and measure the outages."""
        await FAULTS[kind](self._group, self._master, self._random)
        await self.until_complete()
        settled = monotonic()
        for client, load in self._loads.items():
            await until_settled(load.ledger, settled)
            is_again = partial(load.ledger.is_again, settled)
            await until(is_again, f"a send of the {client} client is acknowledged")
        await asyncio.sleep(self._random.uniform(0.5, QUIET_S_MAX))
        end = monotonic()
        for client, load in self._loads.items():
            await until_settled(load.ledger, end)
            outage = load.ledger.outage(self._group.struck_at, end)
            assert outage is not None
            self._outages.add(client, kind, outage)


async def run_trial(group, folder, kinds, random, outages):
    """Return the ledgers by topic."""
    python, java = Load(group.namesrv), JavaLoad(group.namesrv, folder)
    loads = {PYTHON: python, JAVA: java}
    trial = Trial(group, loads, random, outages)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(python.running())
        await stack.enter_async_context(java.running())
        await trial.until_complete()
        await asyncio.sleep(QUIET_S_MAX)
        for kind in kinds:
            await trial.strike(kind)
    return {TOPIC: python.ledger, java_load.TOPIC: java.ledger}


def kinds_of(name, config):
    """Deal the drawn faults out to the groups in turn, so that together they get every kind."""
    random = Random(config.getoption("--fault-seed"))
    drawn = draw(config.getoption("--faults"), random, config.getoption("--fault-deck"))
    return drawn[list(GROUPS).index(name) :: len(GROUPS)]


@pytest.mark.parametrize("name", GROUPS)
async def test_a_group_under_faults_loses_no_acknowledged_message(tmp_path, name, outages, request):
    copies, min_in_sync = GROUPS[name]
    random = Random(f"{request.config.getoption('--fault-seed')}:{name}")
    network = Network(hosts(copies))
    with network.running():
        group = BrokerGroup(tmp_path, network, copies=copies, min_in_sync=min_in_sync)
        try:
            await group.start()
            kinds = kinds_of(name, request.config)
            ledgers = await run_trial(group, tmp_path / "java", kinds, random, outages)
            for topic, ledger in ledgers.items():
                assert ledger.faults() == [], topic
            confirmed = await group.until_equal()
            await group.stop_all()
            stores = [group.store(ordinal) for ordinal in range(copies)]
            assert judge_copies(stores, confirmed, ledgers) == []
        finally:
            group.clear()
    for client in CLIENTS:
        assert percentile(outages.again(client), 0.95) <= AGAIN_P95_S_MAX, client
    assert outages.failed_count(PYTHON, SWITCHOVER) == 0
