# SPDX-License-Identifier: Apache-2.0
"""Network faults; each function heals its fault before it returns."""

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Final

from cometmq.peers.ha.group import RECORD, BrokerGroup, broker
from cometmq.peers.ha.network import Direction, both_ways

PARTED_S_MIN: Final = 9.0
"""Longer than the renew deadline (6 s) and the elector's wait (8 s)."""
PARTED_S_MAX: Final = 12.0
SLAVE_PARTED_S: Final = (5.0, 7.0)
"""Longer than the time after which the master removes a silent slave (3 s)."""


async def isolate_master(group: BrokerGroup, master: int, random: Random) -> None:
    """Cut the master off from all hosts, clients included."""
    name = broker(master)
    await _until_replaced(group, master, both_ways(name, group.network.others(name)), random)


async def silence_master(group: BrokerGroup, master: int, random: Random) -> None:
    """Drop the packets that the master sends; it still receives."""
    name = broker(master)
    cut = [(name, other) for other in group.network.others(name)]
    await _until_replaced(group, master, cut, random)


async def starve_master(group: BrokerGroup, master: int, random: Random) -> None:
    """Drop the packets sent to the master; its own still arrive."""
    name = broker(master)
    cut = [(other, name) for other in group.network.others(name)]
    await _until_replaced(group, master, cut, random)


async def part_master_from_slave(group: BrokerGroup, master: int, random: Random) -> None:
    slave = random.choice(group.slaves(master))
    with _parted(group, both_ways(broker(master), [broker(slave)])):
        await asyncio.sleep(random.uniform(*SLAVE_PARTED_S))


async def part_master_from_record(group: BrokerGroup, master: int, random: Random) -> None:
    """Cut the master off from etcd only: clients, slaves and electors reach it."""
    with _parted(group, both_ways(broker(master), [RECORD])):
        await _wait(random)


async def _until_replaced(
    group: BrokerGroup, master: int, cut: Iterable[Direction], random: Random
) -> None:
    with _parted(group, cut):
        await _wait(random)
        await group.until_master_is_not(master)


@contextmanager
def _parted(group: BrokerGroup, cut: Iterable[Direction]) -> Iterator[None]:
    group.network.cut(cut)
    group.strike()
    try:
        yield
    finally:
        group.network.heal()


async def _wait(random: Random) -> None:
    await asyncio.sleep(random.uniform(PARTED_S_MIN, PARTED_S_MAX))


PARTITION_FAULTS: Final = (
    isolate_master,
    silence_master,
    starve_master,
    part_master_from_slave,
    part_master_from_record,
)
