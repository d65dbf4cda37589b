# SPDX-License-Identifier: Apache-2.0
"""An elector's figures, and the metric families of one elector or of all those of the operator."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from cometmq.ha.actions import Blocked, Wait
from cometmq.ha.losses import Loss
from cometmq.ha.record import Record
from cometmq.runtime.metrics import Family, Row, labelled_counter, labelled_gauge

RESTORED: Final = "NoRecord"
"""The cause of an election that creates the record."""
RENEWED: Final = "EpochRenewed"
"""The cause of an election that gives the acting master a new epoch."""


def _no_elections() -> Counter[str]:
    """Return 0 for every cause: the first 1 of a new counter is no increase in Prometheus."""
    return Counter(dict.fromkeys((*map(str, Loss), RESTORED, RENEWED), 0))


class ElectorStats(msgspec.Struct):
    group: str
    member_count: int
    round_count: int = 0
    record: Record | None = None
    """The record when it was last read successfully; None if there was none."""
    is_record_reachable: bool = False
    answering_count: int = 0
    has_master: bool = False
    """Whether the recorded member leads; without a record, whether any member leads in its last
    known epoch or a later one.
    """
    waiting: Wait | None = None
    elections: Counter[str] = msgspec.field(default_factory=_no_elections)
    orders: Counter[tuple[str, str]] = msgspec.field(default_factory=Counter)
    writes: Counter[str] = msgspec.field(default_factory=Counter)
    last_outage_ms: int = 0
    """Time from the last loss of a master to the next opening, both as seen by this elector."""


Electors = Sequence[tuple[tuple[str, ...], ElectorStats]]
"""For each elector, the values of the labels that distinguish its group, and its stats."""

Own = Callable[[ElectorStats], Iterable[Row]]


def _each(rows: Own) -> Callable[[Electors], Iterable[Row]]:
    """Return the rows of all electors; copied one by one, as a round may change them."""
    return lambda electors: (
        ((*labels, stats.group, *own), value)
        for labels, stats in electors
        for own, value in tuple(rows(stats))
    )


def _one(value: Callable[[ElectorStats], float]) -> Callable[[Electors], Iterable[Row]]:
    return _each(lambda stats: [((), value(stats))])


def _blocked(stats: ElectorStats) -> Iterable[Row]:
    reason = stats.waiting.reason if stats.waiting is not None else None
    return [((str(one),), float(one is reason)) for one in Blocked]


_TABLE: Final = (
    (labelled_gauge, "cometmq_elector_record_reachable", "1 while the group's record can be read.",
     (), _one(lambda s: float(s.is_record_reachable))),
    (labelled_gauge, "cometmq_elector_has_master",
     "1 while the master named in the record is open; without the record, while any is.",
     (), _one(lambda s: float(s.has_master))),
    (labelled_gauge, "cometmq_elector_epoch", "Epoch of the record; 0 without a record.",
     (), _one(lambda s: s.record.epoch if s.record is not None else 0)),
    (labelled_gauge, "cometmq_elector_in_sync", "Members of the in-sync set.",
     (), _one(lambda s: len(s.record.in_sync) if s.record is not None else 0)),
    (labelled_gauge, "cometmq_elector_members", "Brokers that the group should have.",
     (), _one(lambda s: s.member_count)),
    (labelled_gauge, "cometmq_elector_members_answering",
     "Brokers that answered in the last round.", (), _one(lambda s: s.answering_count)),
    (labelled_gauge, "cometmq_elector_blocked", "1 while the elector cannot act for this reason.",
     ("reason",), _each(_blocked)),
    (labelled_gauge, "cometmq_elector_last_outage_seconds",
     "Time from the last loss of a master to the opening of the next.",
     (), _one(lambda s: s.last_outage_ms / 1000)),
    (labelled_counter, "cometmq_elector_elections_total", "Elections by this elector, by cause.",
     ("cause",), _each(lambda s: [((cause,), count) for cause, count in s.elections.items()])),
    (labelled_counter, "cometmq_elector_orders_total", "Orders to members, by order and outcome.",
     ("order", "outcome"), _each(lambda s: s.orders.items())),
    (labelled_counter, "cometmq_elector_record_writes_total", "Writes of the record, by outcome.",
     ("outcome",), _each(lambda s: [((outcome,), count) for outcome, count in s.writes.items()])),
    (labelled_counter, "cometmq_elector_rounds_total",
     "Rounds of reading the record, querying the members and deciding.",
     (), _one(lambda s: s.round_count)),
)  # fmt: skip


def families(*labels: str) -> tuple[Family[Electors], ...]:
    """Return the families; their first labels are these, then `group`."""
    return tuple(
        make(name, text, (*labels, "group", *own), rows) for make, name, text, own, rows in _TABLE
    )


FAMILIES: Final = families()
