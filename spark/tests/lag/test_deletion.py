# SPDX-License-Identifier: Apache-2.0
"""Deletion hours are computed in the local time of the brokers."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cometmq.spark.lag.analysis.brokers import broker_facts
from cometmq.spark.lag.analysis.deletion import deletion_spans, hours_of
from cometmq.spark.lag.rules import Rules

from .random_histories import moment

ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe"]


@pytest.mark.parametrize(
    ("text", "hours"),
    [("04", {4}), ("04;16", {4, 16}), (None, {4}), ("", {4}), ("4", {4}), ("24;x; 3", {3})],
)
def test_hours_are_parsed_as_brokers_do(text: str | None, hours: set[int]) -> None:
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
