# SPDX-License-Identifier: Apache-2.0
import pytest

from cometmq.insight import times, words


@pytest.mark.parametrize("at_ms", [2**63 - 1, 2**62, 253_402_300_800_000, 0, -5, -(2**63)])
def test_a_time_that_a_sender_invented_is_unknown(at_ms: int) -> None:
    assert times.shown(at_ms) is None
    assert words.moment(at_ms) == f"{at_ms} ms since 1970"


def test_the_last_time_of_the_calendar_is_shown() -> None:
    assert times.shown(times.CALENDAR_MS_MAX - 1) == "9999-12-30T23:59:59.999Z"
