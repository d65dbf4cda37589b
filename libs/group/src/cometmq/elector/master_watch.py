# SPDX-License-Identifier: Apache-2.0
"""Tells whether the master that the record names is open (it leads in the record's epoch) or lost,
and logs and measures the changes.
"""

from collections.abc import Callable

from cometmq.elector.asked_member import AskedMember, AskedMembers
from cometmq.elector.metrics import RENEWED, ElectorStats
from cometmq.ha import losses
from cometmq.ha.actions import Statuses, leads
from cometmq.ha.fencing import Timing
from cometmq.ha.losses import Loss, Watched
from cometmq.ha.record import Versioned
from cometmq.remoting.log import Log


class MasterWatch:
    def __init__(
        self,
        stats: ElectorStats,
        *,
        timing: Timing,
        now_ms: Callable[[], int],
        opened: Callable[[], None],
        log: Log,
    ) -> None:
        self._stats = stats
        self._timing = timing
        self._now_ms = now_ms
        self._opened = opened
        self._log = log
        self._watched: Watched | None = None
        self._is_open = False
        """Whether the master was open when the record was last read."""
        self._open: tuple[int, int] | None = None
        self._loss: tuple[int, Loss] | None = None
        self._lost_at_ms: int | None = None

    @property
    def cause(self) -> str:
        """The cause of an election in this round: a loss, or RENEWED if the master is not lost."""
        return str(self._loss[1]) if self._loss else RENEWED

    def note_missing(self) -> None:
        """Note that the group has no record, and so no master."""
        self._watched, self._is_open, self._stats.has_master = None, False, False

    def note_without_record(self, statuses: Statuses) -> None:
        """Note, without a record, whether a member leads in its last known epoch or a later one."""
        record = self._stats.record
        known = 0 if record is None else record.epoch
        self._stats.has_master = any(one.role.is_leading and one.epoch >= known for one in statuses)

    def is_settled(self, found: Versioned, read_ms: int, members: AskedMembers) -> bool:
        self._watched = losses.watched(self._watched, found, read_ms)
        record, statuses = found.record, members.statuses
        return (
            any(leads(one, record) for one in statuses)
            and self.loss(found, statuses, members.by_ordinal.get(record.holder.ordinal)) is None
        )

    def look(self, found: Versioned, read_ms: int, members: AskedMembers) -> Loss | None:
        """Return why the master is lost, None if it is not; log losses and openings."""
        self._watched = losses.watched(self._watched, found, read_ms)
        record, statuses = found.record, members.statuses
        loss = self.loss(found, statuses, members.by_ordinal.get(record.holder.ordinal))
        has_master = any(leads(one, record) for one in statuses)
        facts = {"group": record.group, "ordinal": record.holder.ordinal, "epoch": record.epoch}
        if has_master and not self._is_open:
            outage_ms = 0
            if self._lost_at_ms is not None:
                outage_ms = self._stats.last_outage_ms = self._now_ms() - self._lost_at_ms
            self._log.info("master.open", **facts, outage_ms=outage_ms)
            self._lost_at_ms = None
        self._is_open = self._stats.has_master = has_master
        opened = (record.epoch, record.holder.ordinal)
        if has_master and opened != self._open:
            self._open = opened
            self._opened()
        if loss is None:
            self._loss = None
            if has_master:  # it was considered lost, but has renewed the record in time
                self._lost_at_ms = None
        elif self._loss != (record.epoch, loss):
            self._loss = (record.epoch, loss)
            if self._lost_at_ms is None:
                self._lost_at_ms = self._now_ms()
            self._log.warning("master.lost", **facts, cause=str(loss))
        return loss

    def loss(self, found: Versioned, statuses: Statuses, holder: AskedMember | None) -> Loss | None:
        assert self._watched is not None
        now_ms = self._now_ms()
        return losses.loss(
            found,
            statuses,
            self._watched,
            now_ms,
            timing=self._timing,
            is_gone=holder is not None and holder.is_gone,
            unheard_ms=holder.unheard_ms(now_ms) if holder is not None else 0,
        )
