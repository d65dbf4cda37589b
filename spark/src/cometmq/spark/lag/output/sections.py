# SPDX-License-Identifier: Apache-2.0
"""Builds the tables that follow the groups in a report, from queues to silent topics.

The cells are texts.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter
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


class _Kind(msgspec.Struct, frozen=True):
    """A section, its table of the report, and the cell of each column."""

    title: str
    meaning: str
    table: str
    cells: Mapping[str, Callable[[Row], str]]
    shows: Callable[[Row], bool] = lambda _: True
    order: Callable[[Row], tuple[bool, int]] = lambda _: (False, 0)


def all_sections(report: Report) -> Iterator[Section]:
    """Yield the sections that are not empty."""
    for kind in _SECTIONS:
        found = sorted(filter(kind.shows, report.rows(kind.table)), key=kind.order)
        rows = [[cell(row) for cell in kind.cells.values()] for row in found[:ROWS_MAX]]
        if rows:
            left_out = len(found) - len(rows)
            yield Section(kind.title, kind.meaning, [*kind.cells], rows, left_out)


def _unread(row: Row) -> str:
    return ("≤ " if row["filtered"] else "") + count(row["lag"])


def _age(row: Row) -> str:
    if row["lag_time_s"] is None:
        return NOTHING
    return _METHODS.get(row["lag_time_method"], "") + lasting(row["lag_time_s"])


def _eta(row: Row) -> str:
    return "never" if row["lag"] and row["eta_catchup_s"] is None else lasting(row["eta_catchup_s"])


def _matching(row: Row) -> str:
    if row["lag_matching"] is None:
        return NOTHING
    bounds = f"{short(row['lag_low'])} to {short(row['lag_high'])}"
    return f"about {short(row['lag_matching'])} ({bounds})"


def _address(row: Row) -> str:
    return str(row["addr"]) + ("" if row["reachable"] else f", not reached: {row['error']}")


def _reached(cell: Callable[[Row], str]) -> Callable[[Row], str]:
    return lambda row: cell(row) if row["reachable"] else NOTHING


def _kept(row: Row) -> str:
    hours = row["file_reserved_hours"]
    return NOTHING if hours is None else lasting(3600 * hours)


def _full_in(row: Row) -> str:
    return "is full" if row["disk_full_s"] == 0 else lasting(row["disk_full_s"])


def _gini(row: Row) -> str:
    return NOTHING if row["rate_in_gini"] is None else f"{row['rate_in_gini']:.2f}"


_QUEUE: Final[Mapping[str, Callable[[Row], str]]] = {
    "group": itemgetter("group"),
    "topic": itemgetter("topic"),
    "broker": itemgetter("broker_name"),
    "queue": lambda row: str(row["queue_id"]),
}

_SECTIONS: Final = (
    _Kind(
        "Queues in trouble",
        "One queue may be stuck while its group looks busy. "
        "Rates are messages per second over the window.",
        "queue",
        {
            **_QUEUE,
            "status": itemgetter("status"),
            "unread": _unread,
            "oldest": _age,
            "in": lambda row: rate(row["rate_in"]),
            "out": lambda row: rate(row["rate_out"]),
            "ETA": _eta,
        },
        shows=lambda row: row["severity"] in BAD,
    ),
    _Kind(
        "Who reads these queues",
        "Reported by the members of the worst groups; `nobody`: no member reads the queue.",
        "holder",
        {
            **_QUEUE,
            "member": lambda row: row["client_id"] or "nobody",
            "unread": lambda row: count(row["lag"]),
            "held": lambda row: count(row["cached_count"]),
            "last consumed": lambda row: moment(row["last_consume_ts"]),
        },
        order=lambda row: (row["client_id"] is not None, -(row["lag"] or 0)),
    ),
    _Kind(
        "Groups with a filter",
        "Brokers count messages before the filter; the matching share is estimated from samples.",
        "filtered",
        {
            "group": itemgetter("group"),
            "topic": itemgetter("topic"),
            "filter": lambda row: row["expression"] or NOTHING,
            "unread": lambda row: "≤ " + count(row["lag"]),
            "tested": lambda row: count(row["tried"]),
            "matching (estimate)": _matching,
        },
    ),
    _Kind(
        "Brokers",
        "Messages are deleted by age at the given hours, or when the disk is full.",
        "broker",
        {
            "broker": itemgetter("broker_name"),
            "address": _address,
            "keeps": _reached(_kept),
            "deletes at": _reached(lambda row: (row["delete_when"] or NOTHING).replace(";", ", ")),
            "disk": _reached(lambda row: percent(row["disk_ratio"])),
            "full in": _reached(_full_in),
            "oldest message": _reached(lambda row: moment(row["earliest_ts"])),
            "unread": _reached(lambda row: short(row["lag_sum"])),
        },
    ),
    _Kind(
        "Retries, dead letters, delayed and half messages",
        "Dead letters remain until they expire; new ones are the sign of trouble.",
        "backlog",
        {
            "kind": itemgetter("kind"),
            "of": itemgetter("name"),
            "messages": lambda row: count(row["backlog"]),
            "change": lambda row: rate(row["rate"]),
            "": lambda row: "grows" if row["flagged"] else "",
        },
        shows=lambda row: bool(row["backlog"] or row["flagged"]),
    ),
    _Kind(
        "Hot queues",
        "One queue gets more than three times the mean: more consumers do not help there.",
        "skew",
        {
            "topic": itemgetter("topic"),
            "hottest queue": lambda row: f"{row['hot_broker_name']} · {row['hot_queue_id']}",
            "its rate": lambda row: rate(row["rate_in_max"]),
            "mean": lambda row: rate(row["rate_in_mean"]),
            "Gini": _gini,
        },
        shows=itemgetter("hot"),
    ),
    _Kind(
        "Silent groups and topics",
        "Nothing has moved for days. If they have retired, these commands delete them.",
        "silent",
        {
            "kind": lambda row: row["kind"].lower(),
            "name": itemgetter("name"),
            "since": lambda row: moment(row["since_ts"]),
            "unread": lambda row: count(row["lag_sum"]),
            "command": itemgetter("command"),
        },
    ),
)
