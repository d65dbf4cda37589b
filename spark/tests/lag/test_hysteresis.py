# SPDX-License-Identifier: Apache-2.0
"""A status change is announced only once the status has settled."""

import pytest

from cometmq.spark.lag.stream.hysteresis import Hysteresis

SERIES = ("c", "g", "b", "t", 0)


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


def test_vanished_series_are_forgotten() -> None:
    hysteresis = Hysteresis()
    hysteresis.update({SERIES: "LOST"})
    hysteresis.update({})
    assert hysteresis.update({SERIES: "LOST"}) == []
    assert len(hysteresis.update({SERIES: "LOST"})) == 1
