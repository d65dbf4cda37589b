# SPDX-License-Identifier: Apache-2.0
"""A request takes a bounded number of Python calls through the broker (`bench/steps.py`)."""

from typing import Final

import pytest
from steps import Recorder, Steps, record_journeys

from cometmq.broker.native import IS_BUILT

LIMITS: Final = {
    "native send": Steps(35, 20),
    "native pull": Steps(34, 13),
    "send": Steps(85, 37),
    "pull": Steps(95, 38),
    "commit offset": Steps(70, 24),
    "create topic": Steps(254, 56),
}
"""These numbers only go down."""

SLOW_CALLS: Final = 2
"""On a busy machine, each journey may take so long that its time is counted."""


@pytest.fixture(scope="module")
def journeys() -> dict[str, Recorder]:
    return record_journeys()


def test_all_journeys_have_limits(journeys: dict[str, Recorder]) -> None:
    assert set(LIMITS) - set(journeys) == (set() if IS_BUILT else {"native send", "native pull"})


@pytest.mark.parametrize("name", LIMITS)
def test_a_journey_has_no_further_steps(journeys: dict[str, Recorder], name: str) -> None:
    if name in journeys:
        steps, limit = journeys[name].steps, LIMITS[name]
        assert steps.calls <= limit.calls + SLOW_CALLS, f"{name}: see bench/steps.py --show"
        assert steps.modules <= limit.modules, f"{name}: see bench/steps.py --show"
