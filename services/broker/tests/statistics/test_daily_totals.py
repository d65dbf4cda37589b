# SPDX-License-Identifier: Apache-2.0

from cometmq.broker.statistics.rates import History, Totals

NOON_MS = 1_700_000_000_000
DAY_MS = 86_400_000


def test_midnight_copies_the_totals() -> None:
    totals = Totals(10, 4)
    history = History(lambda: totals, now_ms=NOON_MS)

    history.sample(NOON_MS + 10_000)
    assert history.this_morning == Totals()

    history.sample(NOON_MS + DAY_MS)
    assert (history.yesterday_morning, history.this_morning) == (Totals(), Totals(10, 4))

    totals = Totals(30, 5)
    history.sample(NOON_MS + 2 * DAY_MS)
    assert (history.yesterday_morning, history.this_morning) == (Totals(10, 4), Totals(30, 5))
