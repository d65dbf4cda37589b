# SPDX-License-Identifier: Apache-2.0
"""The elector's metric families, labelled by group."""

from collections.abc import Callable, Iterable
from typing import Final

from cometmq.elector.stats import ElectorStats
from cometmq.ha.actions import Blocked
from cometmq.runtime.metrics import Family, Row, labelled_counter, labelled_gauge

_LABELS: Final = ("group",)


def _one(value: Callable[[ElectorStats], float]) -> Callable[[ElectorStats], Iterable[Row]]:
    return lambda stats: (((stats.group,), value(stats)),)


def _blocked(stats: ElectorStats) -> Iterable[Row]:
    reason = stats.waiting.reason if stats.waiting is not None else None
    return [((stats.group, str(one)), float(one is reason)) for one in Blocked]


FAMILIES: Final[tuple[Family[ElectorStats], ...]] = (
    labelled_gauge(
        "cometmq_elector_record_reachable", "1 while the group's record can be read.", _LABELS,
        _one(lambda s: float(s.is_record_reachable)),
    ),
    labelled_gauge(
        "cometmq_elector_has_master", "1 while the master named in the record is open.", _LABELS,
        _one(lambda s: float(s.has_master)),
    ),
    labelled_gauge(
        "cometmq_elector_epoch", "Epoch of the record; 0 without a record.", _LABELS,
        _one(lambda s: s.record.epoch if s.record is not None else 0),
    ),
    labelled_gauge(
        "cometmq_elector_in_sync", "Members of the in-sync set.", _LABELS,
        _one(lambda s: len(s.record.in_sync) if s.record is not None else 0),
    ),
    labelled_gauge(
        "cometmq_elector_members", "Brokers that the group should have.", _LABELS,
        _one(lambda s: s.member_count),
    ),
    labelled_gauge(
        "cometmq_elector_members_answering", "Brokers that answered in the last round.", _LABELS,
        _one(lambda s: s.answering_count),
    ),
    labelled_gauge(
        "cometmq_elector_blocked", "1 while the elector cannot act for this reason.",
        (*_LABELS, "reason"), _blocked,
    ),
    labelled_gauge(
        "cometmq_elector_last_outage_seconds",
        "Time from the last loss of a master to the opening of the next.", _LABELS,
        _one(lambda s: s.last_outage_ms / 1000),
    ),
    labelled_counter(
        "cometmq_elector_elections_total", "Elections by this elector, by cause.",
        (*_LABELS, "cause"),
        lambda s: [((s.group, cause), count) for cause, count in s.elections.items()],
    ),
    labelled_counter(
        "cometmq_elector_orders_total", "Orders to members, by order and outcome.",
        (*_LABELS, "order", "outcome"),
        lambda s: [((s.group, *key), count) for key, count in s.orders.items()],
    ),
    labelled_counter(
        "cometmq_elector_record_writes_total", "Writes of the record, by outcome.",
        (*_LABELS, "outcome"),
        lambda s: [((s.group, outcome), count) for outcome, count in s.writes.items()],
    ),
    labelled_counter(
        "cometmq_elector_rounds_total",
        "Rounds of reading the record, querying the members and deciding.", _LABELS,
        _one(lambda s: s.round_count),
    ),
)  # fmt: skip
