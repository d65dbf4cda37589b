# SPDX-License-Identifier: Apache-2.0
"""The role of the master of a broker group: it carries out in the broker what
`Confirmation` decides, and hands over.
"""

from cometmq.broker.copies.members import timing_of
from cometmq.broker.copies.roles.acting import Acting
from cometmq.broker.copies.roles.attendance import Attendance
from cometmq.broker.copies.roles.confirmation import Confirmation
from cometmq.broker.copies.roles.parts import Parts
from cometmq.broker.copies.roles.record_writer import RecordWriter
from cometmq.ha import member as rules
from cometmq.ha.in_sync import Leadership
from cometmq.ha.orders import Drop, HandOver, Order, Resize
from cometmq.ha.port import Answer
from cometmq.ha.record import Versioned
from cometmq.store.writing.write_state import Refusal


class MasterRole(Acting):
    """The role of the master in one epoch; implements `Reign`."""

    def __init__(self, parts: Parts, view: Leadership) -> None:
        """Begin to lead; the record of `view` must just have been read or written."""
        self._broker = broker = parts.broker
        self._inbox = parts.inbox
        self._sender = parts.sender
        self._feed = parts.feed
        self._close_peers = parts.around.close_peers
        self._is_cut_off = False
        attendance = Attendance(
            timing_of(broker.settings),
            parts.host.boottime_ms,
            is_predecessor_gone=view.base.record.deposed is None,
        )
        self.confirmation = Confirmation(
            view, self, attendance, min_in_sync=broker.settings.min_in_sync
        )
        self.writer = RecordWriter(
            self.confirmation, parts.record, deposed=parts.inbox.is_read_wanted.set, log=broker.log
        )

    def confirm_offset(self) -> int:
        return self.confirmation.view.confirmed

    def look_after_clients(self) -> None:
        """While this broker is cut off, close all connections, so that clients find
        the next master.
        """
        was_cut_off, self._is_cut_off = self._is_cut_off, self.confirmation.is_cut_off()
        if self._is_cut_off:
            if not was_cut_off:
                self._broker.log.warning("master.cut_off", epoch=self._broker.role.state.epoch)
            self._close_peers()

    def before_write(self) -> None:
        """Close all connections if the lease has lapsed."""
        if not self.confirmation.has_ended() and self.confirmation.is_lapsed():
            self.lapsed()
            self._close_peers()

    def obey(self, order: Order) -> None:
        if self.confirmation.has_ended():
            return
        match order:
            case Drop(ordinal=ordinal):
                self.confirmation.drop(ordinal)
            case Resize(copies=copies):
                self.writer.resize(copies)
            case _:
                super().obey(order)

    async def hand_over(self, order: HandOver) -> tuple[Answer, int] | None:
        if self.confirmation.has_ended():
            return None
        self._broker.driver.commit()
        wait_ms = self._broker.settings.switchover_timeout_mills
        return await self.writer.hand_over(
            order.successor,
            leaves=order.leaves,
            deadline_ms=self.confirmation.attendance.now_ms() + wait_ms,
            is_ready=lambda: self._is_ready(order.successor),
        )

    def _is_ready(self, successor: int) -> bool:
        """Return whether every put is answered and the successor is connected."""
        is_connected = any(one.copy.ordinal == successor for one in self._sender.followers())
        return is_connected and not len(self._broker.store.upkeep.pending)

    def record_seen(self, found: Versioned | None) -> None:
        if not self.confirmation.has_ended():
            self.writer.record_seen(found)

    def note_end(self) -> None:
        self.confirmation.appended(self._broker.store.commit_log.end, self._feed.position.changes)

    # What the copies have confirmed: see `Reign`

    def confirmed(self, offset: int) -> None:
        self._broker.store.publisher.confirm(offset)
        self._sender.confirm(offset)
        self._broker.driver.turn.wake()

    def acknowledged(self, offset: int) -> None:
        self._broker.driver.sends.note_replicated(offset)

    def in_sync_changed(self, *, has_enough: bool) -> None:
        write_state = self._broker.store.write_state
        if write_state.set(Refusal.TOO_FEW_COPIES, holds=not has_enough):
            self._broker.log.warning(
                "in_sync.sufficient" if has_enough else "in_sync.insufficient",
                min_in_sync=self._broker.settings.min_in_sync,
            )

    def lapsed(self) -> None:
        self.confirmation.end()
        self._inbox.observe(rules.LeaseLapsed())
