# SPDX-License-Identifier: Apache-2.0
"""Deletion hours are computed in the local time of the brokers."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cometmq.spark.lag.analysis.brokers import broker_facts, deletion_spans, hours_of
from cometmq.spark.lag.rules import Rules

from .random_histories import moment

ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe"]


@pytest.mark.parametrize(
    ("text", "hours"),
    [
        ("04", {4}),
        ("04;16", {4, 16}),
        (None, {4}),
        ("", {4}),
        ("4", {4}),
        ("24;x; 3", {3}),
        ("99", set()),
    ],
)
def test_entries_at_which_no_broker_deletes_are_left_out(text: str | None, hours: set[int]) -> None:
    assert hours_of(text) == hours


def _in_berlin(begin: str, end: str) -> list[tuple[datetime, datetime]]:
    return deletion_spans("02", ZoneInfo("Europe/Berlin"), begin=moment(begin), end=moment(end))


def test_hour_skipped_by_dst_does_not_occur() -> None:
    spans = _in_berlin("2026-03-28T12:00", "2026-03-30T12:00")
    assert spans == [(moment("2026-03-30T00:00"), moment("2026-03-30T01:00"))]


def test_hour_repeated_by_dst_counts_twice() -> None:
    spans = _in_berlin("2026-10-24T12:00", "2026-10-25T12:00")
    assert spans == [(moment("2026-10-25T00:00"), moment("2026-10-25T02:00"))]


def test_broker_facts_use_the_time_zone_of_the_rules() -> None:
    now = moment("2026-03-28T12:00")
    row = {
        "cluster": "c", "broker_name": "b", "snapshot_id": 7, "read_ts": now,
        "file_reserved_hours": 48, "delete_when": "02", "disk_max_used_ratio": 75,
        "commitlog_disk_ratio": None,
    }  # fmt: skip
    (facts,) = broker_facts([row], 7, Rules(timezone="Europe/Berlin"))
    begins = [datetime.fromtimestamp(begin / 1e6, UTC) for begin, _ in facts.deletions]
    assert begins[:2] == [moment("2026-03-30T00:00"), moment("2026-03-31T00:00")]


@settings(deadline=None)
@given(
    begin=st.integers(0, 6 * 365 * 24 * 60).map(lambda it: moment("2024-01-01T00:00", it)),
    zone=st.sampled_from(ZONES),
    hours=st.sets(st.integers(0, 23), min_size=1),
    minutes=st.integers(0, 6 * 24 * 60),
)
def test_spans_cover_exactly_the_given_hours(
    begin: datetime, zone: str, hours: set[int], minutes: int
) -> None:
    place = ZoneInfo(zone)
    end = begin + timedelta(days=6)
    spans = deletion_spans(";".join(map(str, hours)), place, begin=begin, end=end)
    at = begin + timedelta(minutes=minutes)
    if at < end:
        assert any(a <= at < b for a, b in spans) == (at.astimezone(place).hour in hours)
    assert all(a < b for a, b in spans)
    assert all(b < c for (_, b), (c, _) in pairwise(spans))


def _full_s(ratios: list[float], missing: range = range(0)) -> float | None:
    """Return the time until the disk of a broker with these snapshots, a minute apart, is full."""
    rows = [
        {
            "cluster": "c", "broker_name": "b", "snapshot_id": number, "delete_when": "04",
            "read_ts": moment("2026-03-28T12:00", number), "file_reserved_hours": 48,
            "disk_max_used_ratio": 75, "commitlog_disk_ratio": ratio,
        }
        for number, ratio in enumerate(ratios)
        if number not in missing
    ]  # fmt: skip
    (facts,) = broker_facts(rows, len(ratios) - 1, Rules())
    return facts.disk_full_s


@pytest.mark.parametrize("rise", [1, 2, 3, 10, 50])
@pytest.mark.parametrize("quiet", [2, 9, 50])
def test_growth_counts_from_its_first_snapshot(quiet: int, rise: int) -> None:
    ratios = [0.25] * quiet + [0.25 + 0.005 * number for number in range(rise + 1)]
    expected = (0.75 - ratios[-1]) / 0.005 * 60
    assert _full_s(ratios) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("rise", [1, 2, 20])
def test_growth_that_begins_while_snapshots_are_missing(rise: int) -> None:
    ratios = [0.25] * 15 + [0.25 + 0.005 * number for number in range(rise + 4)]
    left_s = _full_s(ratios, missing=range(10, 17))
    assert left_s == pytest.approx((0.75 - ratios[-1]) / 0.005 * 60, rel=1e-6)


def test_growth_counts_after_a_decline() -> None:
    decline = [0.6 - 0.002 * number for number in range(40)]
    rise = [decline[-1] + 0.01 * number for number in range(1, 5)]
    assert _full_s(decline + rise) == pytest.approx((0.75 - rise[-1]) / 0.01 * 60, rel=1e-6)


@pytest.mark.parametrize("rise", [1, 2, 3, 10])
@pytest.mark.parametrize("left", [[0.5], [0.6, 0.5]])
def test_growth_counts_from_its_first_snapshot_after_files_were_deleted(
    left: list[float], rise: int
) -> None:
    grown = [0.3 + 0.01 * number for number in range(40)]
    ratios = grown + left + [0.5 + 0.02 * number for number in range(1, rise + 1)]
    assert _full_s(ratios) == pytest.approx(max(0, 0.75 - ratios[-1]) / 0.02 * 60, rel=1e-6)


@pytest.mark.parametrize("size", [0.005, 0.02, 0.1])
def test_a_file_that_comes_and_goes_is_no_growth(size: float) -> None:
    left_s = _full_s([0.5, 0.5 + size] * 20)
    assert left_s is None or left_s > 2 * 3600


@given(st.lists(st.sampled_from([0.0, 0.001, 0.002]), min_size=30, max_size=59))
@settings(deadline=None)
def test_files_that_come_and_go_are_no_growth(noise: list[float]) -> None:
    """Steps up and down by 0.2 % of the disk do not predict a full disk within hours."""
    steady = [0.5, 0.502, 0.5]
    left_s = _full_s([*steady, *(0.5 + it for it in noise)])
    assert left_s is None or left_s > 12 * 3600


def test_messages_may_be_kept_beyond_the_year_9999() -> None:
    row = {
        "cluster": "c", "broker_name": "b", "snapshot_id": 7, "read_ts": moment("2026-03-28T12:00"),
        "file_reserved_hours": (1 << 31) - 1, "delete_when": "04", "disk_max_used_ratio": 75,
        "commitlog_disk_ratio": None,
    }  # fmt: skip
    (facts,) = broker_facts([row], 7, Rules())
    assert facts.file_reserved_hours == row["file_reserved_hours"]
    assert 3650 < len(facts.deletions) < 3670  # as long as anybody reads such a report
