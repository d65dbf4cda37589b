# SPDX-License-Identifier: Apache-2.0
"""Remembered figures: the rate of a group, the totals at midnight."""

import pytest

from cometmq.broker.history import History, Totals
from cometmq.broker.stats import BrokerStats

NOON_MS = 1_700_000_000_000
DAY_MS = 86_400_000


def test_the_rate_is_that_of_the_last_interval() -> None:
    stats = BrokerStats()
    history = History(stats, now_ms=NOON_MS)
    stats.group("T", "G").get_count = 50

    history.sample(NOON_MS + 10_000)
    assert history.group_rate("T", "G") == pytest.approx(5.0)

    stats.group("T", "G").get_count = 60
    history.sample(NOON_MS + 20_000)
    assert history.group_rate("T", "G") == pytest.approx(1.0)
    assert history.group_rate("T", "other") == 0.0


def test_a_group_without_counters_is_forgotten() -> None:
    stats = BrokerStats()
    history = History(stats, now_ms=NOON_MS)
    stats.group("T", "G").get_count = 50
    history.sample(NOON_MS + 10_000)

    stats.forget_group("G")
    history.sample(NOON_MS + 20_000)

    assert history.group_rate("T", "G") == 0.0


def test_a_clock_that_jumps_back_gives_no_rate() -> None:
    stats = BrokerStats()
    history = History(stats, now_ms=NOON_MS)
    stats.group("T", "G").get_count = 50

    history.sample(NOON_MS - 10_000)

    assert history.group_rate("T", "G") == 0.0


def test_a_new_day_remembers_the_totals_of_the_last_ones() -> None:
    stats = BrokerStats()
    history = History(stats, now_ms=NOON_MS)
    stats.count_put("T", 10, 1000)
    stats.get_count = 4
    history.sample(NOON_MS + 10_000)
    assert history.this_morning == Totals()

    history.sample(NOON_MS + DAY_MS)
    assert history.this_morning == Totals(10, 4)
    stats.forget_topic("T")  # the totals stay
    stats.count_put("T", 20, 1000)
    history.sample(NOON_MS + 2 * DAY_MS)

    assert history.yesterday_morning == Totals(10, 4)
    assert history.this_morning == Totals(30, 4)
