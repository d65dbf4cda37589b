# SPDX-License-Identifier: Apache-2.0
"""Builds the tables that follow the groups in a report, from queues to silent topics.

The cells are texts.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from cometmq.insight.judge import BAD
from cometmq.insight.words import NOTHING, count, lasting, moment, percent, rate, short
from cometmq.spark.lag.columns import Report, Row

ROWS_MAX: Final = 100
_METHODS: Final = {"extrap_min": "at least ", "interp": "about "}


class Section(msgspec.Struct, frozen=True):
    """A table of texts with its title."""

    title: str
    meaning: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    left_out: int = 0
    """Number of rows beyond the limit; only report.json has them."""


def all_sections(report: Report) -> Iterator[Section]:
    """Yield the sections that are not empty."""
    for section in (
        _queues(report),
        _holders(report),
        _filtered(report),
        _brokers(report),
        _backlogs(report),
        _skew(report),
        _silent(report),
    ):
        if section.rows:
            yield section


def _section(
    title: str, meaning: str, head: Sequence[str], rows: Iterable[Sequence[str]]
) -> Section:
    whole = list(rows)
    return Section(title, meaning, head, whole[:ROWS_MAX], max(0, len(whole) - ROWS_MAX))


def _queues(report: Report) -> Section:
    rows = [row for row in report.rows("queue") if row["severity"] in BAD]
    return _section(
        "Queues in trouble",
        "One queue may be stuck while its group looks busy. "
        "Rates are messages per second over the window.",
        ("group", "topic", "broker", "queue", "status", "unread", "oldest", "in", "out", "ETA"),
        (_queue_cells(row) for row in rows),
    )


def _queue_cells(row: Row) -> Sequence[str]:
    at_most = "≤ " if row["filtered"] else ""
    return (
        *_queue_name(row),
        row["status"],
        at_most + count(row["lag"]),
        _age(row),
        rate(row["rate_in"]),
        rate(row["rate_out"]),
        "never" if row["lag"] and row["eta_catchup_s"] is None else lasting(row["eta_catchup_s"]),
    )


def _queue_name(row: Row) -> Sequence[str]:
    return row["group"], row["topic"], row["broker_name"], str(row["queue_id"])


def _age(row: Row) -> str:
    if row["lag_time_s"] is None:
        return NOTHING
    return _METHODS.get(row["lag_time_method"], "") + lasting(row["lag_time_s"])


def _holders(report: Report) -> Section:
    rows = sorted(
        report.rows("holder"),
        key=lambda row: (row["client_id"] is not None, -(row["lag"] or 0)),
    )
    return _section(
        "Who reads these queues",
        "Reported by the members of the worst groups; `nobody`: no member reads the queue.",
        ("group", "topic", "broker", "queue", "member", "unread", "held", "last consumed"),
        (
            (
                *_queue_name(row),
                row["client_id"] or "nobody",
                count(row["lag"]),
                count(row["cached_count"]),
                moment(row["last_consume_ts"]),
            )
            for row in rows
        ),
    )


def _filtered(report: Report) -> Section:
    return _section(
        "Groups with a filter",
        "Brokers count messages before the filter; the matching share is estimated from samples.",
        ("group", "topic", "filter", "unread", "tested", "matching (estimate)"),
        (
            (
                row["group"],
                row["topic"],
                row["expression"] or NOTHING,
                "≤ " + count(row["lag"]),
                count(row["tried"]),
                _wanted(row),
            )
            for row in report.rows("filtered")
        ),
    )


def _wanted(row: Row) -> str:
    if row["lag_matching"] is None:
        return NOTHING
    bounds = f"{short(row['lag_low'])} to {short(row['lag_high'])}"
    return f"about {short(row['lag_matching'])} ({bounds})"


def _brokers(report: Report) -> Section:
    return _section(
        "Brokers",
        "Messages are deleted by age at the given hours, or when the disk is full.",
        ("broker", "address", "keeps", "deletes at", "disk", "full in", "oldest message", "unread"),
        (_broker_cells(row) for row in report.rows("broker")),
    )


def _broker_cells(row: Row) -> Sequence[str]:
    if not row["reachable"]:
        place = f"{row['addr']}, not reached: {row['error']}"
        return (row["broker_name"], place, *[NOTHING] * 6)
    kept = row["file_reserved_hours"]
    hours = (row["delete_when"] or NOTHING).replace(";", ", ")
    return (
        row["broker_name"],
        row["addr"],
        NOTHING if kept is None else lasting(3600 * kept),
        hours,
        percent(row["disk_ratio"]),
        "is full" if row["disk_full_s"] == 0 else lasting(row["disk_full_s"]),
        moment(row["earliest_ts"]),
        short(row["lag_sum"]),
    )


def _backlogs(report: Report) -> Section:
    return _section(
        "Retries, dead letters, delayed and half messages",
        "Dead letters remain until they expire; new ones are the sign of trouble.",
        ("kind", "of", "messages", "change", ""),
        (
            (
                row["kind"],
                row["name"],
                count(row["backlog"]),
                rate(row["rate"]),
                "grows" if row["flagged"] else "",
            )
            for row in report.rows("backlog")
            if row["backlog"] or row["flagged"]
        ),
    )


def _skew(report: Report) -> Section:
    return _section(
        "Hot queues",
        "One queue gets more than three times the mean: more consumers do not help there.",
        ("topic", "hottest queue", "its rate", "mean", "Gini"),
        (
            (
                row["topic"],
                f"{row['hot_broker_name']} · {row['hot_queue_id']}",
                rate(row["rate_in_max"]),
                rate(row["rate_in_mean"]),
                NOTHING if row["rate_in_gini"] is None else f"{row['rate_in_gini']:.2f}",
            )
            for row in report.rows("skew")
            if row["hot"]
        ),
    )


def _silent(report: Report) -> Section:
    return _section(
        "Silent groups and topics",
        "Nothing has moved for days. If they have retired, these commands delete them.",
        ("kind", "name", "since", "unread", "command"),
        (
            (
                row["kind"].lower(),
                row["name"],
                moment(row["since_ts"]),
                count(row["lag_sum"]),
                row["command"],
            )
            for row in report.rows("silent")
        ),
    )
