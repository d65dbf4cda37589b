# SPDX-License-Identifier: Apache-2.0
"""Results of listeners and the rates that consumers report."""

import pytest

from cometmq.client.consume.delivery.rates import ConsumeRates
from cometmq.client.listener import ConsumeResult


def test_results_say_how_many_and_when() -> None:
    assert ConsumeResult() == ConsumeResult.SUCCESS
    assert ConsumeResult.later(5) == ConsumeResult(0, 5)
    assert ConsumeResult.consumed(3, delay_level=2) == ConsumeResult(3, 2)
    assert ConsumeResult.DEAD_LETTER.delay_level == -1


def test_rates_cover_the_last_minute() -> None:
    now_ms = 0
    rates = ConsumeRates(lambda: now_ms)
    rates.note("T", ok=100, failed=0, ms=50)
    for _ in range(7):
        now_ms += 10_000
        rates.sample()
    rates.note("T", ok=30, failed=3, ms=40)
    status = rates.statuses()["T"]
    assert status.consume_ok_tps == pytest.approx(30 / 50)
    assert status.consume_failed_tps == pytest.approx(3 / 50)
    assert status.consume_rt == 40
    assert rates.counts() == (130, 3)


def test_pulls_have_rates_too() -> None:
    now_ms = 0
    rates = ConsumeRates(lambda: now_ms)
    rates.note_pull("T", count=32, ms=4)
    rates.note_pull("T", count=8, ms=2)
    now_ms = 2_000
    status = rates.statuses()["T"]
    assert (status.pull_tps, status.pull_rt) == (20, 3)
