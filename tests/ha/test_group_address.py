# SPDX-License-Identifier: Apache-2.0
"""A group with one address: Java clients, which ask for routes every 30 s, outlive the loss of
masters, and no deposed master acknowledges.

No client may wait for a timer of its own, of 20 or 30 s. The exact times without sends and messages
are printed only, because they depend on the machine.

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
from cometmq.peers.ha.load import until, until_settled
from cometmq.peers.ha.network import Network, both_ways
from cometmq.peers.processes import wait_until
from cometmq.peers.wire import call

ADDRESS = "10.99.0.1"
COPIES = 3
TIMEOUTS = {"poll_routes_ms": 30_000, "api_timeout_ms": 3_000}
"""RocketMQ's; other tests have timeouts that tolerate slow machines."""
GET_CONSUMER_LIST_BY_GROUP = 38
GROUPS = (java_load.CONSUMER_GROUP, "java-concurrent-readers")
GOAL_S = 5.0
PAUSE_S_MAX = 15.0
"""Shorter than any timer of the client, even on a busy machine."""


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


def is_registered(group):
    """Return whether each broker knows the consumers: a broker that has come back does not, and
    refuses their pulls until their next heartbeat. It may reset connections while it comes back.
    """
    addresses = (group.address(ordinal) for ordinal in range(COPIES))
    try:
        return all(
            call(address, GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": name}).code == 0
            for address in addresses
            for name in GROUPS
        )
    except ConnectionError:
        return False


async def strike(group, load, fault):
    """Inject a fault; return how long the producer and each consumer stood still."""
    master, ledger = (await group.until_complete())["master"], load.ledger
    await until(lambda: is_registered(group), "the consumers are registered")
    moment = monotonic()
    await until(lambda: ledger.has_caught_up(moment), "the consumers have caught up")
    await fault(group, load, master)
    await group.until_complete()
    settled = monotonic()
    await until_settled(ledger, settled)
    await until(lambda: ledger.is_again(settled), "a send is acknowledged")
    await until(lambda: ledger.has_caught_up(settled), "the consumers have caught up")
    end = monotonic()
    await until_settled(ledger, end)
    outage = ledger.outage(group.struck_at, end)
    assert outage is not None
    pauses = {name: ledger.standstill(name, group.struck_at, end) for name in ledger.deliveries}
    return {"sends": outage.pause_s, **pauses}


@pytest.mark.timeout(900)
async def test_java_clients_outlive_masters(tmp_path, capsys):
    network, found = Network(hosts(COPIES)), {}
    with network.running():
        group = BrokerGroup(tmp_path, network, copies=COPIES, min_in_sync=2, address=ADDRESS)
        folder = tmp_path / "java"
        load = JavaLoad(group.namesrv, folder, concurrent_group=GROUPS[1], **TIMEOUTS)
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
    lines = [f"\nJava clients with one address stood still, goal {GOAL_S:g} s:"] + [
        f"  {name}: " + ", ".join(f"{what} {seconds:.2f} s" for what, seconds in one.items())
        for name, one in found.items()
    ]
    with capsys.disabled():
        sys.stdout.write("\n".join(lines) + "\n")
    assert max(max(one.values()) for one in found.values()) < PAUSE_S_MAX
