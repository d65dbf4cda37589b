# SPDX-License-Identifier: Apache-2.0
import pytest

from cometmq.txn_checker.asking import Due, due
from cometmq.txn_checker.settings import TxnCheckerSettings
from cometmq.txn_checker.tables import NO_IMMUNITY, Check, Entry, OpenHalf, State

STORED_S = 1_000
SETTINGS = TxnCheckerSettings(
    transaction_time_out=2_000,
    transaction_check_interval=10_000,
    transaction_check_max=3,
    file_reserved_time=1,
)


def half(*, asked_s: int = 0, asked: int = 0, immunity_s: int = NO_IMMUNITY) -> OpenHalf:
    entry = Entry(0, 100, STORED_S, 0, State.PREPARED)
    return OpenHalf(7, entry, Check(asked_s, asked, immunity_s))


@pytest.mark.parametrize(
    ("age_s", "immunity_s", "expected"),
    [
        (2, NO_IMMUNITY, Due.WAIT),  # stored at 1000.999 s, so not yet 2 s old at 1002.0 s
        (3, NO_IMMUNITY, Due.ASK),
        (5, 5, Due.WAIT),
        (6, 5, Due.ASK),
        (0, 0, Due.ASK),
    ],
)
def test_no_check_before_the_immunity_is_over(age_s: int, immunity_s: int, expected: Due) -> None:
    assert due(half(immunity_s=immunity_s), STORED_S + age_s, SETTINGS) is expected


def test_checks_have_an_interval_and_a_limit() -> None:
    asked_s = STORED_S + 100
    for asked, later in ((1, Due.ASK), (2, Due.ASK), (3, Due.SET_ASIDE)):
        one = half(asked_s=asked_s, asked=asked)
        assert due(one, asked_s + 9, SETTINGS) is Due.WAIT
        assert due(one, asked_s + 10, SETTINGS) is later


def test_expired_transactions_are_set_aside_without_a_check() -> None:
    assert due(half(), STORED_S + 3_600, SETTINGS) is Due.ASK
    assert due(half(), STORED_S + 3_601, SETTINGS) is Due.SET_ASIDE
