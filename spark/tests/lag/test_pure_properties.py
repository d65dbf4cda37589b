# SPDX-License-Identifier: Apache-2.0
"""Checks properties of the parts of the lag jobs that need no Spark, on data from Hypothesis.

DuckDB evaluates the SQL formulas, because its arithmetic is the same.
"""

import math
import random
import shutil
import tempfile
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from cometmq.spark.lag.analysis import series as regression
from cometmq.spark.lag.analysis.queues import STATUS
from cometmq.spark.lag.analysis.series import LAG, LOST
from cometmq.spark.lag.columns import STATUSES
from cometmq.spark.lag.history.aggregates import AGG10, AGG60, agg60
from cometmq.spark.lag.history.snapshots import HOUR, History
from cometmq.spark.lag.history.upkeep import compact, hash_of
from cometmq.spark.tables.arrow import table_of
from cometmq.spark.tables.columns import SCHEMA_VERSION, TABLES

from .drawn_histories import Drawn, histories, write
from .oracle import _status, fit
from .random_histories import moment
from .slopes import merged_slope

MANY = settings(deadline=None)
"""No deadline, because the machine may be loaded."""
DATABASE = duckdb.connect()
DATABASE.execute("CREATE MACRO try_divide(a, b) AS a / nullif(b, 0)")
DATABASE.execute("CREATE MACRO nvl2(a, b, c) AS CASE WHEN a IS NULL THEN c ELSE b END")

OFFSETS = st.one_of(st.integers(0, 50), st.integers(0, 2**53))
FLAGS = ("broadcast", "seen_broadcast", "present", "losing", "always_online", "fine_now",
         "online", "fine_once", "went_back", "drains")  # fmt: skip
NUMBERS = ("points_w", "time_to_loss_s", "c", "m", "n", "lag", "c_min", "c_max", "rest_s")
EARLY = ("broadcast", "seen_broadcast", "losing")
"""Facts that take precedence over all others."""
SELDOM = st.sampled_from([False] * 7 + [True])
POINTS_MIN, RISK_HOURS, WINDOW_S = 5, 1, 8


def _value(sql: str, **given_: Any) -> Any:
    columns = ", ".join(f"CAST(? AS {_kind(it)}) AS {name}" for name, it in given_.items())
    row = DATABASE.execute(f"SELECT {sql} FROM (SELECT {columns})", list(given_.values()))
    return row.fetchall()[0][0]


def _kind(value: Any) -> str:
    return "BOOLEAN" if isinstance(value, bool) else "HUGEINT"


@MANY
@given(n=OFFSETS, room=OFFSETS, c=st.none() | OFFSETS)
def test_lag_and_lost_are_parts_of_the_remaining_offsets(n: int, room: int, c: int | None) -> None:
    m = n + room
    lag, lost = (_value(sql, c=c, m=m, n=n) for sql in (LAG, LOST))
    assert lost >= 0
    if c is None:
        assert lag == (0 if not room else None)
        assert lost == 0
        return
    assert 0 <= lag <= room
    if c <= m:
        assert lag + lost <= m - c
        assert lag + lost == m - c or c == 0  # at offset 0 the group has consumed nothing yet


@MANY
@given(n=OFFSETS, room=OFFSETS, c=OFFSETS, by=st.integers(1, 2**53))
def test_lag_and_lost_do_not_depend_on_absolute_offsets(n: int, room: int, c: int, by: int) -> None:
    here = [_value(it, c=c + 1, m=n + room + 1, n=n + 1) for it in (LAG, LOST)]
    there = [_value(it, c=c + 1 + by, m=n + room + 1 + by, n=n + 1 + by) for it in (LAG, LOST)]
    assert here == there


@settings(MANY, max_examples=600)
@given(
    flags=st.tuples(*(SELDOM if it in EARLY else st.booleans() for it in FLAGS)),
    is_present=SELDOM.map(lambda it: not it),
    points=st.sampled_from([5, 5, 5, 9, 4]),
    loss=st.sampled_from([None, None, None, 3600, 3599]),
    numbers=st.tuples(*(st.sampled_from([None, 0, 4, 5]) for _ in NUMBERS)),
)
def test_status_is_that_of_the_first_matching_rule(
    flags: tuple[bool, ...],
    is_present: bool,
    points: int,
    loss: int | None,
    numbers: tuple[int | None, ...],
) -> None:
    state: dict[str, Any] = dict(zip((*FLAGS, *NUMBERS), (*flags, *numbers), strict=True))
    state |= {"present": is_present, "points_w": points, "time_to_loss_s": loss}
    state["m"], state["n"] = (state[it] or 0 for it in ("m", "n"))
    limits = {"points_min": POINTS_MIN, "risk_s": RISK_HOURS * 3600, "window_s": WINDOW_S}
    found = _value(STATUS, **state, **limits)
    plain = {
        "broadcast": state["broadcast"] or state["seen_broadcast"],
        "complete": state["present"] and state["points_w"] >= POINTS_MIN,
        "loss": state["time_to_loss_s"],
        "stands": state["c_min"] is not None and state["c_min"] == state["c_max"],
        "back": state["went_back"] and state["c_max"] is not None,
        "top": state["c_max"],
    }
    rules = SimpleNamespace(risk_hours=RISK_HOURS, window_s=WINDOW_S)
    c, n, m, lag = (state[it] for it in ("c", "n", "m", "lag"))
    assert found == _status(state | plain, c, n, m, lag, rules)


@settings(MANY, max_examples=600)
@given(st.tuples(*(st.sampled_from([None, False, True]) for _ in FLAGS)),
       st.tuples(*(st.sampled_from([None, 0, 9]) for _ in (*NUMBERS, 0, 0, 0))))  # fmt: skip
def test_status_exists_for_incomplete_facts(
    flags: tuple[bool | None, ...], numbers: tuple[int | None, ...]
) -> None:
    names = (*FLAGS, *NUMBERS, "points_min", "risk_s", "window_s")
    assert _value(STATUS, **dict(zip(names, (*flags, *numbers), strict=True))) in STATUSES


POINTS = st.lists(
    st.tuples(st.integers(-3600, 0), st.integers(-(10**6), 10**6)), min_size=0, max_size=30
)


def _line(points: list[tuple[int, int]]) -> tuple[float | None, float | None, float | None]:
    values = ", ".join(f"({x}::DOUBLE, {y}::DOUBLE)" for x, y in points) or "(NULL, NULL)"
    formulas = (regression.slope, regression.standard_error, regression.r_squared)
    columns = (formula("k") for formula in formulas)
    row = DATABASE.execute(
        f"SELECT {', '.join(columns)} FROM (SELECT {regression.sums('k', 'x', 'y', 'true')} "
        f"FROM (VALUES {values}) AS points(x, y))"
    )
    slope, error, share = row.fetchall()[0]
    return slope, error, share


@MANY
@given(POINTS)
@example([(-3, 1), (-2, 1), (-1, 1)])
@example([(-1, 5), (-1, 6), (-1, 7)])
def test_regression_from_sums_equals_least_squares(points: list[tuple[int, int]]) -> None:
    slope, error, share = _line(points)
    expected = fit([(float(x), float(y)) for x, y in points])
    if expected is None:
        assert slope is None
        assert error is None
        return
    close = {"rel_tol": 1e-6, "abs_tol": 1e-6 * max(1, *(abs(y) for _, y in points))}
    assert math.isclose(slope or 0, expected["slope"], **close)
    assert error is not None
    assert math.isclose(error, expected["error"], **close)
    if share is not None and not math.isnan(expected["r2"]):
        assert 0 <= share <= 1
        assert math.isclose(share, expected["r2"], rel_tol=1e-6, abs_tol=1e-6)


SERIES = st.lists(
    st.tuples(st.integers(0, 299), st.integers(0, 500), st.integers(0, 500)),
    min_size=1, max_size=40, unique_by=lambda it: it[0],
)  # fmt: skip
"""Points of (minute, the group's offset, distance from there to the queue's end)."""


@MANY
@given(SERIES, st.sampled_from([0, 10**12]), st.booleans())
def test_hours_merge_to_the_regression_over_all_points(
    points: list[tuple[int, int, int]], base: int, is_doubled: bool
) -> None:
    begin = moment("2028-02-28T22:00")
    points = sorted(points)
    hours = []
    for number in range(5):
        within = [it for it in points if it[0] // 60 == number]
        rows = [_progress(begin, *it, base) for it in within for _ in range(1 + is_doubled)]
        if rows:
            hour = begin + timedelta(hours=number)
            hours += agg60(table_of(TABLES["progress"], rows), hour).to_pylist()

    expected = fit([(60.0 * minute, float(room)) for minute, _, room in points])
    found = merged_slope(hours)

    assert sum(it["n"] for it in hours) == len(points)
    assert sum(it["resets"] for it in hours) == _set_backs(points)
    if expected is None:
        assert found is None
    else:
        assert found is not None
        assert math.isclose(found, expected["slope"], rel_tol=1e-6, abs_tol=1e-9)


def _set_backs(points: list[tuple[int, int, int]]) -> int:
    return sum(b[1] < a[1] for a, b in pairwise(points) if a[0] // 60 == b[0] // 60)


def _progress(begin: datetime, minute: int, c: int, room: int, base: int) -> tuple[Any, ...]:
    read = begin + timedelta(minutes=minute)
    micros = round(read.timestamp() * 1e6)
    values = {
        "snapshot_id": int(read.timestamp()) // 60, "cluster": "k", "group": "g",
        "broker_name": "b", "topic": "t", "queue_id": 0, "consumer_offset": base + c,
        "min_offset": base, "max_offset": base + c + room, "read_ts": micros,
        "max_read_ts": micros, "online": True, "filtered": False,
        "schema_version": SCHEMA_VERSION,
    }  # fmt: skip
    return tuple(values.get(column.name) for column in TABLES["progress"])


END = moment("2028-03-01T00:06")
"""End of fourteen minutes that span two hours and two days."""


# Shrinking takes minutes, and a smaller history would show nothing new.
@settings(max_examples=12, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(st.lists(histories(), min_size=1, max_size=3), st.randoms(use_true_random=False))
def test_compaction_is_deterministic_in_any_order(
    drawn: list[Drawn], random_: random.Random
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        plain, mixed = Path(folder, "plain"), Path(folder, "mixed")
        write(plain, drawn, END)
        shutil.copytree(plain, mixed)
        for path in mixed.glob("raw/*/*/*/*.parquet"):
            _mix(path, random_)
        hours = [END.replace(minute=0) - timedelta(hours=1), END.replace(minute=0)]

        assert compact(History(plain), hours[1] + timedelta(hours=3)) == hours
        assert compact(History(mixed), hours[1] + timedelta(minutes=2)) == hours[:1]
        assert compact(History(mixed), hours[1] + timedelta(hours=9)) == hours[1:]
        once = _bytes(mixed)
        for hour in hours:
            History(mixed).manifest(hour).unlink()
        assert compact(History(mixed), hours[1] + timedelta(hours=9)) == hours

        assert once == _bytes(mixed) == _bytes(plain)


def _mix(path: Path, random_: random.Random) -> None:
    table = pq.read_table(path, partitioning=None)
    order = list(range(table.num_rows))
    random_.shuffle(order)
    pq.write_table(table.take(pa.array(order, pa.int64())), path)


def _bytes(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): hash_of(path)
        for dataset in (HOUR, AGG10, AGG60, "_manifest")
        for path in (root / dataset).rglob("*")
        if path.is_file()
    }


def test_oracle_shares_no_code() -> None:
    assert "cometmq" not in Path(__file__).with_name("oracle.py").read_text()
