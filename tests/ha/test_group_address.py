# SPDX-License-Identifier: Apache-2.0
"""A group with one address: an unmodified Java producer, which asks for routes every 30 s, hardly
notices the loss of a master, and no deposed master acknowledges.

The times without deliveries are printed only: an orderly consumer may have to wait for its next
attempt to lock its queues, which it makes every 20 s.

Here a program that brokers run after each change of their role moves a virtual address. While the
master is cut off, clients still reach it at that address; a lost host is silent instead.
"""

import asyncio
import sys
from time import monotonic

import pytest

from cometmq.peers.ha import java_load
from cometmq.peers.ha.copies import judge_copies
from cometmq.peers.ha.group import BrokerGroup, broker, hosts
from cometmq.peers.ha.java_load import DEFAULTS, JavaLoad
from cometmq.peers.ha.load import until
from cometmq.peers.ha.network import Network, both_ways
from cometmq.peers.processes import wait_until

ADDRESS = "10.99.0.1"
COPIES = 3
BEHIND_MAX = 100
"""The consumer is about to receive the newest messages."""
QUIET_S = 2.0
PARTED_S = 10.0
"""Longer than the renew deadline (6 s) and the elector's wait (8 s)."""
GOAL_S = 5.0
STANDSTILL_S_MAX = 15.0
"""Generous, so that the test tolerates a loaded machine; without the address, clients stand still
until they ask for the route, for up to 30 s."""


async def kill(group, master):
    group.kill(broker(master))
    await group.until_master_is_not(master)
    await group.start_again(broker(master))


async def freeze(group, master):
    """Stop the master; the kernel ends it, because nothing else could break its connections."""
    group.freeze(broker(master))
    await group.until_master_is_not(master)
    ended = asyncio.to_thread(
        wait_until, lambda: group.has_ended(broker(master)), 60, "the master ends"
    )
    await ended
    await group.start_again(broker(master))


async def part(group, master, *, is_lost):
    network, name = group.network, broker(master)
    network.cut(both_ways(name, network.others(name)))
    if is_lost:
        network.lose(ADDRESS)
    group.strike()
    await group.until_master_is_not(master)
    await asyncio.sleep(PARTED_S)
    network.heal()


FAULTS = {
    "master killed": kill,
    "master stopped": freeze,
    "master cut off": lambda group, master: part(group, master, is_lost=False),
    "host of the master lost": lambda group, master: part(group, master, is_lost=True),
}


async def strike(group, load, fault):
    """Inject a fault; return how long the producer and the consumer stood still."""
    master = (await group.until_complete())["master"]
    # An orderly consumer that has just started waits up to 20 s for its locks.
    await until(lambda: len(load.ledger.lost()) < BEHIND_MAX, "the consumer has caught up")
    await fault(group, master)
    await group.until_complete()
    settled = monotonic()
    await load.until_settled(settled)
    await until(lambda: load.ledger.is_again(settled), "a send is acknowledged")
    await asyncio.sleep(QUIET_S)
    end = monotonic()
    await load.until_settled(end)
    outage = load.ledger.outage(group.struck_at, end)
    assert outage is not None
    return outage.pause_s, load.ledger.standstill(group.struck_at, end)


@pytest.mark.timeout(900)
async def test_java_producers_hardly_notice_that_a_master_is_lost(tmp_path, capsys):
    network, found = Network(hosts(COPIES)), {}
    with network.running():
        group = BrokerGroup(tmp_path, network, copies=COPIES, min_in_sync=2, address=ADDRESS)
        load = JavaLoad(group.namesrv, tmp_path / "java", **DEFAULTS)
        try:
            await group.start()
            async with load.running():
                await asyncio.sleep(QUIET_S)
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
    assert max(sends for sends, _ in found.values()) <= STANDSTILL_S_MAX, found
