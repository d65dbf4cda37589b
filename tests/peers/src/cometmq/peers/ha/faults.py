# SPDX-License-Identifier: Apache-2.0
"""The kinds of faults of processes, hosts and disks, drawn from decks shuffled by a seed."""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Final, TypeAlias

from cometmq.peers.ha.disk_faults import fill_master, fill_slave, stall_master, stall_slave
from cometmq.peers.ha.group import ELECTOR_COUNT, BrokerGroup, broker, elector
from cometmq.peers.ha.partitions import PARTITION_FAULTS

FROZEN_S_MIN: Final = 9.0
"""Longer than the renew deadline (6 s) and the elector's wait (8 s)."""
FROZEN_S_MAX: Final = 12.0
ABSENCE_S_MAX: Final = 3.0

Fault: TypeAlias = Callable[[BrokerGroup, int, Random], Awaitable[None]]
"""A fault takes the ordinal of the master, and returns once all processes run again."""


async def kill_master(group: BrokerGroup, master: int, random: Random) -> None:
    group.kill(broker(master))
    await group.until_master_is_not(master)
    await asyncio.sleep(random.uniform(0, ABSENCE_S_MAX))
    await group.start_again(broker(master))


async def kill_and_restart_master(group: BrokerGroup, master: int, _: Random) -> None:
    """Restart the master at once, so that it comes back while its successor is elected."""
    group.kill(broker(master))
    await group.start_again(broker(master))


async def freeze_master(group: BrokerGroup, master: int, random: Random) -> None:
    group.freeze(broker(master))
    await asyncio.sleep(random.uniform(FROZEN_S_MIN, FROZEN_S_MAX))
    await group.until_master_is_not(master)
    group.thaw(broker(master))


async def restart_master(group: BrokerGroup, master: int, _: Random) -> None:
    await group.stop(broker(master))
    await group.start_again(broker(master))


async def kill_slave(group: BrokerGroup, master: int, random: Random) -> None:
    slave = random.choice(group.slaves(master))
    group.kill(broker(slave))
    await asyncio.sleep(random.uniform(0, ABSENCE_S_MAX))
    await group.start_again(broker(slave))


async def kill_elector(group: BrokerGroup, _: int, random: Random) -> None:
    name = elector(random.randrange(ELECTOR_COUNT))
    group.kill(name)
    await asyncio.sleep(random.uniform(0, ABSENCE_S_MAX))
    await group.start_again(name)


async def switch_over(group: BrokerGroup, _: int, __: Random) -> None:
    await group.switch_over()


KILLS: Final = ("kill -9 of the master", "kill -9 of the master, restarted at once")
STOP: Final = "SIGSTOP of the master"
SWITCHOVER: Final = "planned switchover"
PARTITIONS: Final = (
    "partition: the master from all",
    "partition: nothing leaves the master",
    "partition: nothing reaches the master",
    "partition: the master from a slave",
    "partition: the master from the record",
)
DEPOSING: Final = PARTITIONS[:3]
"""Partitions that a master does not survive as master."""

FAULTS: Final[dict[str, Fault]] = {
    **dict(zip(KILLS, (kill_master, kill_and_restart_master), strict=True)),
    STOP: freeze_master,
    "restart of the master": restart_master,
    "kill -9 of a slave": kill_slave,
    "kill -9 of an elector": kill_elector,
    SWITCHOVER: switch_over,
    **dict(zip(PARTITIONS, PARTITION_FAULTS, strict=True)),
    "full disk of the master": fill_master,
    "full disk of a slave": fill_slave,
    "slow disk of the master": stall_master,
    "slow disk of a slave": stall_slave,
}
DECKS: Final[dict[str, tuple[str, ...]]] = {
    "all": (*FAULTS, KILLS[0], SWITCHOVER),
    "failovers": (KILLS[0], KILLS[0], KILLS[0], KILLS[1], KILLS[1], STOP, *DEPOSING),
    "switchovers": (SWITCHOVER,),
}
"""The kinds of one round of a run. `all` has each kind once, except the two most important ones,
which come twice; `failovers` has only faults after which another copy must be elected.
"""


def draw(count: int, random: Random, deck: str = "all") -> list[str]:
    """Return `count` kinds, from one shuffled deck after another, so that no kind is left out."""
    cards = DECKS[deck]
    drawn: list[str] = []
    while len(drawn) < count:
        drawn += random.sample(cards, len(cards))
    return drawn[:count]
