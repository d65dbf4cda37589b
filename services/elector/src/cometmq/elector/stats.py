# SPDX-License-Identifier: Apache-2.0
"""An elector's figures, for metrics and tests."""

from collections import Counter
from typing import Final

import msgspec

from cometmq.ha.actions import Wait
from cometmq.ha.losses import Loss
from cometmq.ha.record import Record

RESTORED: Final = "NoRecord"
"""The cause of an election that creates the record."""
RENEWED: Final = "EpochRenewed"
"""The cause of an election that gives the acting master a new epoch."""


def _no_elections() -> Counter[str]:
    """Return a counter with 0 for every cause: a counter that first appears with 1 does not count
    as an increase in Prometheus.
    """
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
    """Whether the member that the record names leads in the record's epoch. While the record cannot
    be read: whether any member leads in the last known epoch or in a later one.
    """
    waiting: Wait | None = None
    elections: Counter[str] = msgspec.field(default_factory=_no_elections)
    """Elections by cause."""
    orders: Counter[tuple[str, str]] = msgspec.field(default_factory=Counter)
    """Orders by kind and outcome."""
    writes: Counter[str] = msgspec.field(default_factory=Counter)
    """Writes to the record, by outcome."""
    last_outage_ms: int = 0
    """Time from the last loss of a master to the next opening, both as seen by this elector."""
