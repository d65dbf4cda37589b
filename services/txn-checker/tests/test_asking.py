# SPDX-License-Identifier: Apache-2.0
"""Which open transactions a round asks about."""

from typing import Any

from cometmq.remoting.log import NO_LOG
from cometmq.remoting.message.flags import java_hash
from cometmq.testing.runtime.clock import FakeClock
from cometmq.testing.store.memory_disk import MemoryDisk
from cometmq.txn_checker.asking import ABSENT_ROUNDS, QUESTIONS_AT_ONCE, Asker
from cometmq.txn_checker.broker_link import Asked
from cometmq.txn_checker.ledger import Ledger
from cometmq.txn_checker.reading import FollowerStats
from cometmq.txn_checker.settings import TxnCheckerSettings
from cometmq.txn_checker.tables import Half

ALONE, CONNECTED = "orders-Aa", "orders-BB"  # one hash
NOW_S = 1_000_000
SETTINGS = TxnCheckerSettings(questions_per_second=1_000_000)


class Broker:
    """Knows a producer of one of the two groups."""

    def __init__(self, groups: list[str], clock: FakeClock) -> None:
        self.groups = groups
        self.asked: list[int] = []
        self._clock = clock

    async def ask(self, half: int, _physical_offset: int) -> Asked:
        self.asked.append(half)
        self._clock.advance(10)
        return Asked(True, "10.0.0.1:5000" if self.groups[half] == CONNECTED else None)


class Rig:
    def __init__(self, groups: list[str]) -> None:
        self.clock = FakeClock(NOW_S * 1_000)
        self.ledger = Ledger(MemoryDisk(), "/txn/a")
        self.ledger.begin(0, 0)
        stored_s = NOW_S - 100
        self.ledger.add_halves(
            [Half(number * 100, 99, stored_s, java_hash(it)) for number, it in enumerate(groups)]
        )
        self.broker = Broker(groups, self.clock)
        link: Any = self.broker
        self._asker = Asker(
            "a", link, SETTINGS, clock=self.clock, log=NO_LOG, stats=FollowerStats()
        )

    async def round(self) -> None:
        await self._asker.round(self.ledger)

    def asked_s(self, half: int) -> int:
        (halves,) = self.ledger.halves.open_chunks()
        return halves[half].check.asked_s


async def test_a_group_with_a_producer_is_asked_though_another_has_its_hash() -> None:
    assert java_hash(ALONE) == java_hash(CONNECTED)
    last = QUESTIONS_AT_ONCE + 3
    rig = Rig([ALONE] * last + [CONNECTED])
    for _ in range(ABSENT_ROUNDS):
        await rig.round()
    assert last in rig.broker.asked


async def test_most_transactions_of_a_group_without_a_producer_are_not_asked_about() -> None:
    rig = Rig([ALONE] * (9 * QUESTIONS_AT_ONCE))
    await rig.round()
    assert len(rig.broker.asked) == 2 * QUESTIONS_AT_ONCE


async def test_a_check_has_the_time_when_it_was_asked() -> None:
    """The interval to the next check begins there, however long the round has lasted before."""
    rig = Rig([CONNECTED] * (2 * QUESTIONS_AT_ONCE))
    rig.clock.advance(999)
    await rig.round()
    assert rig.asked_s(0) == NOW_S
    assert rig.asked_s(QUESTIONS_AT_ONCE) == NOW_S + 1
