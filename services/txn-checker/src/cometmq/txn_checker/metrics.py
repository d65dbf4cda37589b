# SPDX-License-Identifier: Apache-2.0
"""The txn-checker's metric families, labelled by broker."""

from collections.abc import Callable, Iterable
from typing import Final

from cometmq.runtime.metrics import Family, Row, labelled_counter, labelled_gauge
from cometmq.txn_checker.follower import Follower
from cometmq.txn_checker.ledger import Ledger

_LABELS: Final = ("broker",)
Followers = Iterable[Follower]


def _of_follower(value: Callable[[Follower], float]) -> Callable[[Followers], Iterable[Row]]:
    return lambda followers: [((one.name,), value(one)) for one in followers]


def _of_ledger(value: Callable[[Ledger], float]) -> Callable[[Followers], Iterable[Row]]:
    return lambda followers: [
        ((one.name,), value(one.ledger)) for one in followers if one.ledger is not None
    ]


def _oldest(ledger: Ledger) -> float:
    oldest = ledger.halves.oldest
    return 0 if oldest is None else oldest.entry.stored_s


FAMILIES: Final[tuple[Family[Followers], ...]] = (
    labelled_gauge(
        "cometmq_txn_followed", "1 while the broker's queues are being followed.", _LABELS,
        _of_follower(lambda f: float(f.stats.is_following)),
    ),
    labelled_gauge(
        "cometmq_txn_open", "Open transactions.", _LABELS,
        _of_ledger(lambda ledger: ledger.halves.open_count),
    ),
    labelled_gauge(
        "cometmq_txn_oldest_timestamp_seconds",
        "Store time of the oldest open transaction; 0 if none is open.", _LABELS,
        _of_ledger(_oldest),
    ),
    labelled_gauge(
        "cometmq_txn_table_bytes", "Size of the files of the state table.", _LABELS,
        _of_ledger(lambda ledger: ledger.size_bytes),
    ),
    labelled_gauge(
        "cometmq_txn_half_behind", "Half messages not yet read.", _LABELS,
        _of_follower(lambda f: f.stats.half_behind),
    ),
    labelled_gauge(
        "cometmq_txn_op_behind", "Op messages not yet read.", _LABELS,
        _of_follower(lambda f: f.stats.op_behind),
    ),
    labelled_counter(
        "cometmq_txn_ended_total", "Transactions ended by producers.", _LABELS,
        _of_ledger(lambda ledger: ledger.ended_count),
    ),
    labelled_counter(
        "cometmq_txn_checks_total", "Checks sent to producers.", _LABELS,
        _of_follower(lambda f: f.stats.asked_count),
    ),
    labelled_counter(
        "cometmq_txn_checks_unsent_total", "Checks not sent because no producer was connected.",
        _LABELS,
        _of_follower(lambda f: f.stats.unasked_count),
    ),
    labelled_counter(
        "cometmq_txn_set_aside_total", "Transactions set aside after the last check.", _LABELS,
        _of_follower(lambda f: f.stats.aside_count),
    ),
    labelled_counter(
        "cometmq_txn_expired_total", "Half messages deleted before their transaction ended.",
        _LABELS, _of_follower(lambda f: f.stats.gone_count),
    ),
    labelled_counter(
        "cometmq_txn_refused_total", "Checks and set-aside requests refused by the broker.",
        _LABELS, _of_follower(lambda f: f.stats.refused_count),
    ),
    labelled_counter(
        "cometmq_txn_rounds_total", "Rounds of checks.", _LABELS,
        _of_follower(lambda f: f.stats.round_count),
    ),
    labelled_counter(
        "cometmq_txn_failures_total", "Failures to follow a broker.", _LABELS,
        _of_follower(lambda f: f.stats.failed_count),
    ),
)  # fmt: skip
