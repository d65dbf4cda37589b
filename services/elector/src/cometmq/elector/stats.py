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
    """Return a count of 0 for every cause: Prometheus does not see the first step of a counter that
    appears with it.
    """
    return Counter(dict.fromkeys((*map(str, Loss), RESTORED, RENEWED), 0))


class ElectorStats(msgspec.Struct):
    group: str
    member_count: int
    round_count: int = 0
    record: Record | None = None
    """The record as of the last read; None if it was missing."""
    is_record_reachable: bool = False
    answering_count: int = 0
    has_master: bool = False
    """The holder of the record is master in its epoch; while the record cannot be read, any member
    is master in the epoch that was last read, or in a later one.
    """
    waiting: Wait | None = None
    elections: Counter[str] = msgspec.field(default_factory=_no_elections)
    """Elections by cause."""
    orders: Counter[tuple[str, str]] = msgspec.field(default_factory=Counter)
    """Orders by kind and outcome."""
    writes: Counter[str] = msgspec.field(default_factory=Counter)
    """Writes to the record, by outcome."""
    last_outage_ms: int = 0
    """Time from the loss of a master to the opening of the next, as this elector saw it."""
