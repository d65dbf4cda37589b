# SPDX-License-Identifier: Apache-2.0
"""The driver sorts rows, computes changes and adds sums on Arrow tables, without Spark."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from cometmq.spark.lag.analysis import groups as of_groups
from cometmq.spark.lag.analysis.brokers import by_broker
from cometmq.spark.lag.analysis.groups import worst_first
from cometmq.spark.lag.columns import STATUSES
from cometmq.spark.lag.rules import Rules

FLOATS = ("time_to_loss_s", "lag_time_s", "rate_in", "fine_lag")


def table(*rows: dict[str, Any]) -> pa.Table:
    """Build a table; a column that contains only nulls keeps its type."""
    names = list(rows[0])
    kinds = {name: pa.float64() for name in FLOATS} | {"lag": pa.int64(), "lag_sum": pa.int64()}
    return pa.table(
        {name: pa.array([it[name] for it in rows], type=kinds.get(name)) for name in names}
    )


def named(group: str, **values: Any) -> dict[str, Any]:
    return {"cluster": "c", "group": group, **values}


def minute(number: int) -> datetime:
    return datetime(2026, 3, 1, 10, number, tzinfo=UTC)


def test_worst_rows_first_and_unknown_values_last() -> None:
    def row(group: str, status: str, *figures: float | None) -> dict[str, Any]:
        found = dict(zip(("time_to_loss_s", "lag"), figures, strict=True))
        return named(group, status=status, severity=STATUSES[status], **found)

    found = worst_first(
        table(
            row("fine", "OK", None, 0),
            row("soon", "STOPPED", 5.0, None),
            row("later", "REWIND", 6.0, 90),
            row("more", "STALLED", None, 8),
            row("b", "STALLED", None, 3),
            row("a", "STALLED", None, 3),
            row("same", "REWIND", None, 3),
            row("unknown", "STALLED", None, None),
            row("slow", "SLOW", 1.0, 1000),
            row("lost", "LOST", 0.0, 1),
        ),
        "lag",
        "group",
    )
    wanted = ["lost", "soon", "later", "more", "same", "a", "b", "unknown", "slow", "fine"]
    assert found["group"].to_pylist() == wanted


def test_queues_behind_and_their_acceptable_lag() -> None:
    def queue(group: str, status: str, queue_id: int, rate: float | None) -> dict[str, Any]:
        place = {"broker_name": "a", "topic": "T", "queue_id": queue_id}
        return named(group, status=status, rate_in=rate, **place)

    groups = table(named("g", status="SLOW"), named("h", status="LOST"), named("i", status="OK"))
    queues = table(
        queue("g", "OK", 0, 2.0),
        queue("g", "SLOW", 1, 1.0),
        queue("g", "BROADCAST", 2, 1.0),
        queue("h", "LOST", 0, None),
        queue("i", "OK", 0, 1.0),
    )
    found = of_groups.behind(groups, queues, Rules(allowed_lag=10, allowed_age_s=30.0))
    rows = sorted((it["group"], it["queue_id"], it["fine_lag"]) for it in found.to_pylist())
    assert rows == [("g", 0, 70.0), ("g", 1, 40.0), ("h", 0, 10.0)]


@pytest.mark.parametrize(
    ("lags", "since"),
    [((5, 5, 5), 0), ((5, 0, 5), 2), ((0, 5, 5), 1), ((5, 5, 0), None)],
)
def test_behind_since_the_last_fine_point(lags: list[int], since: int | None) -> None:
    curves = table(
        *(named("g", ts=minute(it), fine=lag == 0, grew=False) for it, lag in enumerate(lags))
    )
    groups = table(named("g", status="SLOW"), named("other", status="OK"))
    rows = of_groups.with_since(groups, curves, timedelta(minutes=2)).to_pylist()
    found = {row["group"]: (row["since_ts"], row["since_at_least"]) for row in rows}
    is_bound = None if since is None else since == 0  # no earlier snapshot shows a fine point
    assert found["g"] == (None if since is None else minute(since), is_bound)
    assert found["other"] == (None, None)


@pytest.mark.parametrize(
    ("before", "grew", "is_bound"), [(8, False, False), (7, False, True), (9, True, True)]
)
def test_a_group_may_have_been_behind_while_snapshots_or_queues_are_missing(
    before: int, grew: bool, is_bound: bool
) -> None:
    curves = table(
        named("g", ts=minute(before), fine=True, grew=True),
        named("g", ts=minute(10), fine=False, grew=grew),
        named("g", ts=minute(11), fine=False, grew=True),
    )
    (row,) = of_groups.with_since(table(named("g")), curves, timedelta(minutes=2)).to_pylist()
    assert (row["since_ts"], row["since_at_least"]) == (minute(10), is_bound)


def test_changes_only_for_groups_of_the_earlier_report() -> None:
    groups = table(named("g", lag_sum=7), named("new", lag_sum=1), named("h", lag_sum=None))
    before = {("c", "g"): 9, ("c", "h"): 3, ("d", "new"): 1}
    found = of_groups.with_change(groups, "change", before)
    assert found["change"].to_pylist() == [-2, None, None]


def test_sums_per_broker() -> None:
    def row(group: str, broker: str, severity: str, lag: int | None) -> dict[str, Any]:
        status = "BROADCAST" if severity == "info" else "OK"
        return named(group, broker_name=broker, severity=severity, status=status, lag=lag)

    rows = table(
        row("g", "a", "error", 1),
        row("g", "a", "critical", 2),
        row("h", "a", "critical", None),
        row("i", "a", "info", 50),
        row("i", "b", "info", 50),
    )
    assert by_broker(rows) == {
        ("c", "a"): {"groups_bad": 2, "lag_sum": 3},
        ("c", "b"): {"groups_bad": 0, "lag_sum": None},
    }
