# SPDX-License-Identifier: Apache-2.0
"""A status change is announced only once the status has settled."""

import pytest

from cometmq.spark.lag.stream.hysteresis import FORGET_AFTER, Change, Hysteresis

SERIES = ("c", "g", "b", "t", 0)
OTHER_QUEUE = ("c", "g", "b", "t", 1)
OTHER_BROKER = ("c", "g", "b2", "t", 0)


def _announced(statuses: list[str]) -> list[tuple[int, str | None, str]]:
    hysteresis = Hysteresis()
    return [
        (number, change.before, change.status)
        for number, status in enumerate(statuses)
        for change in hysteresis.update({SERIES: status})
    ]


@pytest.mark.parametrize(
    ("statuses", "announced"),
    [
        (["OK"] * 5, []),
        (["SLOW"] * 5, [(1, None, "SLOW")]),
        (["OK", "OK", "SLOW", "OK", "SLOW", "OK"], []),
        (["OK", "OK", "SLOW", "SLOW", "SLOW"], [(3, "OK", "SLOW")]),
        (["SLOW", "SLOW", "OK", "OK", "SLOW"], [(1, None, "SLOW")]),
        (["SLOW", "SLOW", "OK", "OK", "OK"], [(1, None, "SLOW"), (4, "SLOW", "OK")]),
        (["SLOW", "SLOW", "LOST", "LOST"], [(1, None, "SLOW"), (3, "SLOW", "LOST")]),
        (["LOST", "LOST", "SLOW", "SLOW", "SLOW"], [(1, None, "LOST"), (4, "LOST", "SLOW")]),
    ],
)
def test_worse_after_two_windows_better_after_three(
    statuses: list[str], announced: list[tuple[int, str | None, str]]
) -> None:
    assert _announced(statuses) == announced


def test_deleted_series_are_forgotten_when_their_broker_answers() -> None:
    hysteresis = Hysteresis()
    hysteresis.update({SERIES: "LOST", OTHER_QUEUE: "OK"})
    hysteresis.update({OTHER_QUEUE: "OK"})
    assert hysteresis.update({SERIES: "LOST"}) == []
    assert len(hysteresis.update({SERIES: "LOST"})) == 1


@pytest.mark.parametrize("missed", [1, 10])
def test_alert_outlasts_an_outage_of_its_broker(missed: int) -> None:
    hysteresis = Hysteresis()
    for _ in range(2):
        hysteresis.update({SERIES: "STALLED", OTHER_BROKER: "OK"})
    for _ in range(missed):
        assert hysteresis.update({OTHER_BROKER: "OK"}) == []
    for _ in range(3):
        assert hysteresis.update({SERIES: "STALLED", OTHER_BROKER: "OK"}) == []
    for _ in range(missed):
        assert hysteresis.update({OTHER_BROKER: "OK"}) == []
    told = [it for _ in range(3) for it in hysteresis.update({SERIES: "OK", OTHER_BROKER: "OK"})]
    assert told == [Change(SERIES, "STALLED", "OK")]


def test_missed_window_neither_confirms_nor_refutes_a_status() -> None:
    hysteresis = Hysteresis()
    hysteresis.update({SERIES: "SLOW"})
    hysteresis.update({OTHER_BROKER: "OK"})
    assert hysteresis.update({SERIES: "SLOW"}) == [Change(SERIES, None, "SLOW")]


@pytest.mark.parametrize(("missed", "before"), [(FORGET_AFTER - 1, "LOST"), (FORGET_AFTER, None)])
def test_series_of_a_broker_that_stays_away_are_forgotten(missed: int, before: str | None) -> None:
    hysteresis = Hysteresis()
    for _ in range(2):
        hysteresis.update({SERIES: "LOST"})
    for _ in range(missed):
        hysteresis.update({})
    told = [it for _ in range(3) for it in hysteresis.update({SERIES: "SLOW"})]
    assert told == [Change(SERIES, before, "SLOW")]
