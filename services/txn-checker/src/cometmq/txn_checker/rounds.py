# SPDX-License-Identifier: Apache-2.0
"""Decides the next step for an open transaction (pure)."""

from enum import Enum
from typing import Final

from cometmq.txn_checker.entry import NO_IMMUNITY
from cometmq.txn_checker.settings import TxnCheckerSettings
from cometmq.txn_checker.tables import OpenHalf

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
