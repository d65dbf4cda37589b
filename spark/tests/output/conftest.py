# SPDX-License-Identifier: Apache-2.0
"""A hand-written report: every status once, and at least one row in every table."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from cometmq.spark.lag.columns import REPORT_TABLES, STATUSES, Header, Report

NOON = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
ARROW: dict[str, Any] = {
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}
ZERO = {"string": "", "int": 0, "bigint": 0, "double": 0.0, "boolean": False, "timestamp": NOON}
FIGURES: dict[str, dict[str, Any]] = {
    "LOST": {"lost_sum": 12_400, "lag_sum": 3_800_000, "rate_in": 140.0, "time_to_loss_s": 0.0},
    "AT_RISK": {
        "lag_sum": 1_234_567,
        "rate_in": 120.0,
        "rate_out": 80.0,
        "online": True,
        "time_to_loss_s": 7_800.0,
        "ttl_model": "time",
    },
    "REWIND": {"lag_sum": 90_000, "rate_out": 300.0, "online": True},
    "STALLED": {
        "lag_sum": 51_000,
        "rate_in": 42.0,
        "online": True,
        "since_ts": NOON,
        "since_at_least": True,
    },
    "STOPPED": {"lag_sum": 740_000, "rate_in": 9.5, "since_ts": NOON - timedelta(hours=9)},
    "NEVER_COMMITTED": {"lag_sum": None, "lag_time_s": None, "online": True},
    "SLOW": {"lag_sum": 20_000, "rate_in": 100.0, "rate_out": 90.0, "online": True},
    "CATCHING_UP": {"lag_sum": 5_000, "rate_in": 10.0, "rate_out": 90.0, "eta_catchup_s": 62.5},
    "UNKNOWN": {"lag_sum": 17},
    "BROADCAST": {"lag_sum": 0, "online": True},
    "OK": {"lag_sum": 0, "lag_time_s": 0.0, "rate_in": 25.0, "rate_out": 25.0, "online": True},
}


def a_row(table: str, **values: Any) -> dict[str, Any]:
    """Return a row in which only these values are set."""
    columns = REPORT_TABLES[table]
    assert not values.keys() - {column.name for column in columns}
    empty = {c.name: ZERO[c.type] if c.required else None for c in columns}
    return empty | values


def an_arrow_table(table: str, rows: list[dict[str, Any]]) -> pa.Table:
    """Build a table with the types of a report."""
    fields = [pa.field(c.name, ARROW[c.type], not c.required) for c in REPORT_TABLES[table]]
    return pa.Table.from_pylist(rows, schema=pa.schema(fields))


def a_report(groups: list[dict[str, Any]], **others: list[dict[str, Any]]) -> Report:
    counts: dict[str, int] = {}
    for group in groups:
        counts[group["status"]] = counts.get(group["status"], 0) + 1
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in REPORT_TABLES} | others
    rows["group"] = groups
    header = Header(
        run_id="20260301T120000Z",
        snapshot_ts=NOON,
        snapshot_id=29_539_440,
        snapshot_count=60,
        window_s=600,
        long_window_s=3600,
        history_s=86_400,
        risk_hours=12.0,
        allowed_lag=0,
        allowed_age_s=30.0,
        timezone="Asia/Shanghai",
        coverage=0.9958,
        unreachable=(),
        severity=groups[0]["severity"] if groups else "ok",
        status_counts=counts,
    )
    return Report(header, {name: an_arrow_table(name, one) for name, one in rows.items()})


def a_group(name: str, status: str, **values: Any) -> dict[str, Any]:
    """Return a group with figures typical of its status."""
    usual = {
        "cluster": "DefaultCluster",
        "group": name,
        "status": status,
        "severity": STATUSES[status],
        "topics": 1,
        "queues": 4,
        "lag_time_s": 4_000.0,
        "ttl_model": "none",
        "worst_topic": "orders",
        "worst_broker_name": "broker-a",
        "worst_queue_id": 3,
        "coverage": 1.0,
    }
    return a_row("group", **usual | FIGURES[status] | values)


LAGS: dict[str, Callable[[int], int]] = {
    "g-lost": lambda minute: 3_800_000 - 8_000 * minute,
    "g-at_risk": lambda minute: 1_234_567 - 2_400 * minute,
    "g-rewind": lambda minute: 0 if minute > 20 else 90_000 - minute,
    "g-stalled": lambda minute: max(0, 51_000 - 2_520 * minute),
}
"""Lag of each group as a function of the minutes before noon."""


def queues() -> list[dict[str, Any]]:
    return [
        a_row(
            "queue",
            cluster="DefaultCluster",
            group="g-stalled",
            broker_name="broker-a",
            topic="orders",
            queue_id=queue_id,
            status=status,
            severity=STATUSES[status],
            lag=lag,
            lag_time_s=4_000.25,
            lag_time_method="exact",
            filtered=True,
        )
        for queue_id, status, lag in ((3, "STALLED", 51_000), (0, "OK", 0))
    ]


def brokers() -> list[dict[str, Any]]:
    """A broker that answers, and one that does not."""
    return [
        a_row(
            "broker",
            cluster="DefaultCluster",
            broker_name="broker-a",
            addr="10.0.0.1:10911",
            reachable=True,
            file_reserved_hours=72,
            delete_when="04",
            disk_ratio=0.61,
            earliest_ts=NOON - timedelta(hours=70),
            lag_sum=5_100_000,
        ),
        a_row(
            "broker",
            cluster="DefaultCluster",
            broker_name="broker-b",
            addr="10.0.0.2:10911",
            error="timed out after 3 s",
        ),
    ]


def findings() -> dict[str, list[dict[str, Any]]]:
    """A hot queue, a silent group and a growing dead-letter queue."""
    skew = a_row(
        "skew",
        cluster="DefaultCluster",
        topic="orders",
        queues=4,
        rate_in_max=400.0,
        rate_in_mean=110.0,
        rate_in_gini=0.66,
        hot_broker_name="broker-a",
        hot_queue_id=2,
        hot=True,
    )
    silent = a_row(
        "silent",
        cluster="DefaultCluster",
        kind="GROUP",
        name="old|group",
        since_ts=NOON - timedelta(days=30),
        lag_sum=12,
        command="mqadmin deleteSubGroup -c DefaultCluster -g 'old|group'",
    )
    backlog = a_row(
        "backlog",
        cluster="DefaultCluster",
        kind="DLQ",
        name="g-stalled",
        backlog=31,
        rate=0.02,
        flagged=True,
    )
    return {"skew": [skew], "silent": [silent], "backlog": [backlog]}


def history() -> list[dict[str, Any]]:
    return [
        a_row(
            "history",
            cluster="DefaultCluster",
            group=group,
            ts=NOON - timedelta(minutes=minute),
            lag=lag(minute),
        )
        for group, lag in LAGS.items()
        for minute in range(60)
    ]


@pytest.fixture
def report() -> Report:
    groups = [a_group(f"g-{status.lower()}", status) for status in STATUSES]
    return a_report(groups, queue=queues(), broker=brokers(), **findings(), history=history())


@pytest.fixture(name="a_group")
def group_maker() -> Any:
    return a_group


@pytest.fixture(name="a_report")
def report_maker() -> Any:
    return a_report
