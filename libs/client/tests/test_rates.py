# SPDX-License-Identifier: Apache-2.0
"""Results of listeners and the rates that consumers report."""

import pytest

from cometmq.client.consume.queues.rates import ConsumeRates


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


def test_failed_messages_are_those_of_the_last_hour() -> None:
    now_ms = 0
    rates = ConsumeRates(lambda: now_ms)
    rates.note("T", ok=0, failed=5, ms=10)
    for _ in range(360):
        now_ms += 10_000
        rates.sample()
    rates.note("T", ok=0, failed=2, ms=10)
    assert rates.statuses()["T"].consume_failed_msgs == 2
    assert rates.counts() == (0, 7)


def test_an_idle_listener_shows_its_response_time_of_the_last_hour() -> None:
    now_ms = 0
    rates = ConsumeRates(lambda: now_ms)
    rates.note("T", ok=1, failed=0, ms=30)
    for _ in range(12):
        now_ms += 10_000
        rates.sample()
    status = rates.statuses()["T"]
    assert (status.consume_ok_tps, status.consume_rt) == (0, 30)
