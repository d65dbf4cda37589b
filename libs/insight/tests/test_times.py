# SPDX-License-Identifier: Apache-2.0
import time
from collections.abc import Iterator

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


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Europe/Berlin")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("berlin")
@pytest.mark.parametrize(
    ("text", "choices"),
    [
        ("2026-10-25T02:30", "2026-10-25T00:30:00Z or 2026-10-25T01:30:00Z"),  # twice
        ("2026-03-29T02:30", "2026-03-29T00:30:00Z or 2026-03-29T01:30:00Z"),  # never
    ],
)
def test_a_local_time_that_clocks_show_twice_or_never_is_refused(text: str, choices: str) -> None:
    with pytest.raises(InvalidArgument, match=f"{text} is no one moment here, .*: give {choices}"):
        times.parsed(text, now_ms=1_800_000_000_000)


@pytest.mark.usefixtures("berlin")
@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("2026-10-25T01:59", "2026-10-24T23:59:00.000Z"),
        ("2026-10-25T03:00", "2026-10-25T02:00:00.000Z"),
        ("2026-10-25T02:30+02:00", "2026-10-25T00:30:00.000Z"),
        ("2026-10-25T02:30Z", "2026-10-25T02:30:00.000Z"),
        ("2026-10-25#02:30:00:000", "2026-10-25T00:30:00.000Z"),
    ],
)
def test_other_times_on_such_a_day_are_exact(text: str, wanted: str) -> None:
    assert times.shown(times.parsed(text, now_ms=1_800_000_000_000)) == wanted
