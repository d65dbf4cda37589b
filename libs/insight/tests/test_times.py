# SPDX-License-Identifier: Apache-2.0
import time

import pytest

from cometmq.client.errors import InvalidArgument
from cometmq.insight import times, words


@pytest.mark.parametrize("at_ms", [2**63 - 1, 2**62, 253_402_300_800_000, 0, -5, -(2**63)])
def test_a_time_that_a_sender_invented_is_unknown(at_ms: int) -> None:
    assert times.shown(at_ms) is None
    assert words.moment(at_ms) == f"{at_ms} ms since 1970"


def test_the_last_time_of_the_calendar_is_shown() -> None:
    assert times.shown(times.CALENDAR_MS_MAX - 1) == "9999-12-30T23:59:59.999Z"


@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo", "America/New_York"])
@pytest.mark.parametrize(
    "text",
    [
        *("0001-01-01", "0001-01-01T00:00+14:00", "9999-12-31T23:59", "9999-12-31T23:59-12:00"),
        *("9" * 18, "9" * 18 + "d", "1" * 5000, "1" * 5000 + "d"),
    ],
)
def test_times_beyond_the_calendar_are_refused(
    text: str, zone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", zone)
        time.tzset()
        with pytest.raises(InvalidArgument, match=r"is out of range: |is not a time: "):
            times.parsed(text, now_ms=1_800_000_000_000)
    time.tzset()
