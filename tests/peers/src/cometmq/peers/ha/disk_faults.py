# SPDX-License-Identifier: Apache-2.0
"""Faults of one member's disk; each ends before it returns."""

import asyncio
from random import Random
from time import monotonic
from typing import Final

from cometmq.peers.ha.group import BrokerGroup

FULL_S_MIN: Final = 4.0
FULL_S_MAX: Final = 8.0
SLOW_S: Final = 6.0
STALL_S_MAX: Final = 0.5
"""Shorter than the time after which a master that cannot write counts as lost."""
MOVING_S: Final = 0.1


async def fill_master(group: BrokerGroup, master: int, random: Random) -> None:
    await _fill(group, master, random)


async def fill_slave(group: BrokerGroup, master: int, random: Random) -> None:
    await _fill(group, random.choice(group.slaves(master)), random)


async def stall_master(group: BrokerGroup, master: int, random: Random) -> None:
    await _stall(group, master, random)


async def stall_slave(group: BrokerGroup, master: int, random: Random) -> None:
    await _stall(group, random.choice(group.slaves(master)), random)


async def _fill(group: BrokerGroup, ordinal: int, random: Random) -> None:
    disk = group.disks[ordinal]
    try:
        await asyncio.to_thread(disk.fill)
        group.strike()
        await asyncio.sleep(random.uniform(FULL_S_MIN, FULL_S_MAX))
    finally:
        disk.free()


async def _stall(group: BrokerGroup, ordinal: int, random: Random) -> None:
    """Stall all writes repeatedly, as an overloaded disk would."""
    disk = group.disks[ordinal]
    group.strike()
    end = monotonic() + SLOW_S
    while monotonic() < end:
        await asyncio.to_thread(disk.freeze)
        try:
            await asyncio.sleep(random.uniform(0, STALL_S_MAX))
        finally:
            await asyncio.to_thread(disk.thaw)
        await asyncio.sleep(MOVING_S)
