# SPDX-License-Identifier: Apache-2.0
"""A group with one address: a Java client, which asks for routes every 30 s, outlives the loss of
masters, and no deposed master acknowledges.

The times without sends and deliveries are printed only, because they depend on the machine.

Here a program that brokers run after each change of their role moves a virtual address. While the
master is cut off, clients still reach it at that address; a lost host is silent instead.
"""

import asyncio
import sys
from functools import partial
from time import monotonic

import pytest

from cometmq.peers.ha import java_load
from cometmq.peers.ha.copies import judge_copies
from cometmq.peers.ha.group import BrokerGroup, broker, hosts
from cometmq.peers.ha.java_load import JavaLoad
from cometmq.peers.ha.load import until
from cometmq.peers.ha.network import Network, both_ways
from cometmq.peers.processes import wait_until

ADDRESS = "10.99.0.1"
COPIES = 3
BEHIND_MAX = 100
"""The consumer is about to receive the newest messages."""
TIMEOUTS = {"poll_routes_ms": 30_000, "api_timeout_ms": 3_000}
"""RocketMQ's; other tests have timeouts that tolerate slow machines."""
PROPERTIES = {"rocketmq.client.rebalance.lockInterval": "1000"}
"""Orderly consumers lock their queues every second, because the default of 20 s makes the test
last long."""
GOAL_S = 5.0


async def kill(group, load, master):
    group.kill(broker(master))
    await group.until_master_is_not(master)
    await group.start_again(broker(master))


async def freeze(group, load, master):
    """Stop the master; the kernel ends it, because nothing else could break its connections."""
    group.freeze(broker(master))
    await group.until_master_is_not(master)
    ended = asyncio.to_thread(
        wait_until, lambda: group.has_ended(broker(master)), 60, "the master ends"
    )
    await ended
    await group.start_again(broker(master))


async def part(group, load, master, *, is_lost):
    network, name = group.network, broker(master)
    network.cut(both_ways(name, network.others(name)))
    if is_lost:
        network.lose(ADDRESS)
    group.strike()
    await group.until_master_is_not(master)
    replaced = monotonic()
    await until(lambda: load.ledger.is_again(replaced), "the next master acknowledges")
    network.heal()


FAULTS = {
    "master killed": kill,
    "master stopped": freeze,
    "master cut off": partial(part, is_lost=False),
    "host of the master lost": partial(part, is_lost=True),
}


async def strike(group, load, fault):
    """Inject a fault; return how long the producer and the consumer stood still."""
    master = (await group.until_complete())["master"]
    await until(lambda: len(load.ledger.lost()) < BEHIND_MAX, "the consumer has caught up")
    await fault(group, load, master)
    await group.until_complete()
    settled = monotonic()
    await load.until_settled(settled)
    await until(lambda: load.ledger.is_again(settled), "a send is acknowledged")
    end = monotonic()
    await load.until_settled(end)
    outage = load.ledger.outage(group.struck_at, end)
    assert outage is not None
    return outage.pause_s, load.ledger.standstill(group.struck_at, end)


@pytest.mark.timeout(900)
async def test_java_clients_outlive_masters(tmp_path, capsys):
    network, found = Network(hosts(COPIES)), {}
    with network.running():
        group = BrokerGroup(tmp_path, network, copies=COPIES, min_in_sync=2, address=ADDRESS)
        load = JavaLoad(group.namesrv, tmp_path / "java", properties=PROPERTIES, **TIMEOUTS)
        try:
            await group.start()
            async with load.running():
                await until(lambda: bool(load.ledger.acknowledged), "a send is acknowledged")
                for name, fault in FAULTS.items():
                    found[name] = await strike(group, load, fault)
            assert load.ledger.faults() == []
            confirmed = await group.until_equal()
            await group.stop_all()
            stores = [group.store(ordinal) for ordinal in range(COPIES)]
            assert judge_copies(stores, confirmed, {java_load.TOPIC: load.ledger}) == []
        finally:
            group.clear()
    lines = [f"\nJava client with one address, goal {GOAL_S:g} s:"] + [
        f"  {name}: without sends {sends:.2f} s, without deliveries {receives:.2f} s"
        for name, (sends, receives) in found.items()
    ]
    with capsys.disabled():
        sys.stdout.write("\n".join(lines) + "\n")
