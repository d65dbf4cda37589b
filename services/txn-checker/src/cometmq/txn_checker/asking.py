# SPDX-License-Identifier: Apache-2.0
"""One round: visit every open transaction, and check it or set it aside if either is due.

A check makes the broker ask a producer how the transaction ended. Setting a transaction aside makes
the broker end it without an answer (`due` decides). If the broker refuses either for one
transaction, the round continues with the next.

A check is counted after the broker has answered; a crash before that repeats the check.
"""

import asyncio
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Final

from cometmq.remoting.log import Log
from cometmq.runtime.clock import Clock
from cometmq.txn_checker.broker_link import BrokerLink
from cometmq.txn_checker.ledger import Ledger
from cometmq.txn_checker.reading import FollowerStats
from cometmq.txn_checker.settings import TxnCheckerSettings
from cometmq.txn_checker.tables import NO_IMMUNITY, OpenHalf

QUESTIONS_AT_ONCE: Final = 64

ABSENT_ROUNDS: Final = 8
"""A transaction whose producer group has no connected producer is checked only once in this number
of rounds. It is not skipped always, because groups are known by a hash, which another group may
share.
"""


CLOCK_STEP_S: Final = 60
"""How far the broker's clock may be ahead of the checker's."""


class Due(Enum):
    WAIT = "wait"
    ASK = "ask"
    SET_ASIDE = "set aside"


def due(half: OpenHalf, now_s: int, settings: TxnCheckerSettings) -> Due:
    """Return whether to check a transaction, to set it aside, or to wait.

    A transaction is set aside when it is too old, or after `transactionCheckMax` checks.

    Compatibility: RocketMQ also counts a check when no producer of the group was connected. Here,
    only checks that reached a producer count, so a transaction without a producer is set aside
    because of its age.
    """
    age_s = now_s - half.entry.stored_s
    if age_s < -CLOCK_STEP_S and not half.check.asked_s:
        return Due.ASK  # the clock was set back: the age is unknown
    if age_s > settings.age_max_s:
        return Due.SET_ASIDE
    check = half.check
    rested_s = now_s - check.asked_s
    is_rested = not 0 <= rested_s < settings.transaction_check_interval // 1_000
    if check.asked_count >= settings.transaction_check_max:
        return Due.SET_ASIDE if is_rested else Due.WAIT
    if check.asked_s:
        return Due.ASK if is_rested else Due.WAIT
    own = check.immunity_s
    immunity_ms = settings.transaction_time_out if own == NO_IMMUNITY else own * 1_000
    least_age_ms = max(0, age_s * 1_000 - 999)  # the table stores whole seconds
    return Due.ASK if least_age_ms >= immunity_ms else Due.WAIT


class Asker:
    """Runs the transaction checks for one broker."""

    def __init__(
        self,
        name: str,
        link: BrokerLink,
        settings: TxnCheckerSettings,
        *,
        clock: Clock,
        log: Log,
        stats: FollowerStats,
    ) -> None:
        self._name = name
        self._link = link
        self._settings = settings
        self._clock = clock
        self._log = log
        self._stats = stats

    async def round(self, ledger: Ledger) -> None:
        absent: set[int] = set()
        for halves in ledger.halves.open_chunks():
            now_s = self._clock.now_ms() // 1_000
            wanted: dict[Due, list[OpenHalf]] = {one: [] for one in Due}
            for half in halves:
                wanted[due(half, now_s, self._settings)].append(half)
            for some in _batches(wanted[Due.SET_ASIDE], QUESTIONS_AT_ONCE):
                await self._set_aside(ledger, some)
            for some in _batches(wanted[Due.ASK], QUESTIONS_AT_ONCE):
                await self._ask(ledger, some, absent)
            await asyncio.sleep(0)
        self._stats.round_count += 1

    async def _set_aside(self, ledger: Ledger, halves: Sequence[OpenHalf]) -> None:
        link = self._link
        async with asyncio.TaskGroup() as group:
            answers = [
                group.create_task(link.set_aside(half.offset, half.entry.physical_offset))
                for half in halves
            ]
        done: list[OpenHalf] = []
        for half, task in zip(halves, answers, strict=True):
            refusal = task.result()
            if refusal is not None:
                self._note_refused(half, refusal)
                continue
            done.append(half)
            self._log.warning(
                "transaction.set_aside",
                broker=self._name,
                half=half.offset,
                asked=half.check.asked_count,
            )
        ledger.close(half.offset for half in done)
        self._stats.aside_count += len(done)

    async def _ask(self, ledger: Ledger, halves: Sequence[OpenHalf], absent: set[int]) -> None:
        """Check these transactions, at most `questions_per_second`; skip those of absent groups as
        ABSENT_ROUNDS says.

        `absent` has the hashes of producer groups without a connected producer; it is updated.
        """
        stats, link = self._stats, self._link
        wanted = [half for half in halves if not self._is_skipped(half, absent)]
        stats.unasked_count += len(halves) - len(wanted)
        begin = self._clock.monotonic_ms()
        now_s = self._clock.now_ms() // 1_000
        async with asyncio.TaskGroup() as group:
            answers = [
                group.create_task(link.ask(half.offset, half.entry.physical_offset))
                for half in wanted
            ]
        asked: list[OpenHalf] = []
        gone: list[int] = []
        for half, task in zip(wanted, answers, strict=True):
            answer = task.result()
            if not answer.is_open:
                gone.append(half.offset)
            elif answer.refusal is not None:
                self._note_refused(half, answer.refusal)
            elif answer.producer is None:
                absent.add(half.entry.group_hash)
                stats.unasked_count += 1
            elif answer.producer:
                absent.discard(half.entry.group_hash)
                asked.append(half)
        ledger.note_asked(asked, now_s)
        ledger.close(gone)
        stats.asked_count += len(asked)
        stats.gone_count += len(gone)
        least_ms = len(wanted) * 1_000 / self._settings.questions_per_second
        await asyncio.sleep(max(0.0, begin + least_ms - self._clock.monotonic_ms()) / 1_000)

    def _is_skipped(self, half: OpenHalf, absent: set[int]) -> bool:
        is_turn = (half.offset + self._stats.round_count) % ABSENT_ROUNDS == 0
        return half.entry.group_hash in absent and not is_turn

    def _note_refused(self, half: OpenHalf, reason: str) -> None:
        """Count and log the refusal; the next round tries the transaction again."""
        self._stats.refused_count += 1
        self._log.warning("transaction.refused", broker=self._name, half=half.offset, reason=reason)


def _batches(halves: Sequence[OpenHalf], size: int) -> Iterable[Sequence[OpenHalf]]:
    return (halves[start : start + size] for start in range(0, len(halves), size))
