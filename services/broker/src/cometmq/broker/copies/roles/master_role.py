# SPDX-License-Identifier: Apache-2.0
"""The role of the master of a broker group: it carries out in the broker what the copies have
confirmed, and hands over.
"""

from cometmq.broker.copies.members import timing_of
from cometmq.broker.copies.roles.confirmation import Reign
from cometmq.broker.copies.roles.member_driver import Acting
from cometmq.broker.copies.roles.parts import Parts
from cometmq.ha import member as rules
from cometmq.ha.in_sync import Leadership
from cometmq.ha.orders import Drop, HandOver, Order, Resize
from cometmq.ha.port import Answer
from cometmq.store.writing.write_state import Refusal


class MasterRole(Reign, Acting):
    def __init__(self, parts: Parts, view: Leadership) -> None:
        self._parts = parts
        self._broker = broker = parts.broker
        self._is_cut_off = False
        super().__init__(
            view,
            timing=timing_of(broker.settings),
            now_ms=parts.host.boottime_ms,
            min_in_sync=broker.settings.min_in_sync,
            record=parts.member.record,
            log=broker.log,
        )

    def confirm_offset(self) -> int:
        return self.view.confirmed

    def look_after_clients(self) -> None:
        """While this broker is cut off, close all connections: clients find the next master."""
        was_cut_off, self._is_cut_off = self._is_cut_off, self.is_cut_off()
        if self._is_cut_off:
            if not was_cut_off:
                self._broker.log.warning("master.cut_off", epoch=self._broker.role.state.epoch)
            self._parts.around.close_peers()

    def before_write(self) -> None:
        if not self.has_ended() and self.is_lapsed():
            self.lapsed()
            self._parts.around.close_peers()

    def obey(self, order: Order) -> None:
        if self.has_ended():
            return
        match order:
            case Drop(ordinal=ordinal):
                self.drop(ordinal)
            case Resize(copies=copies):
                self.resize(copies)
            case _:
                super().obey(order)

    async def hand_over(self, order: HandOver) -> tuple[Answer, int] | None:
        if self.has_ended():
            return None
        self._broker.driver.commit()
        wait_ms = self._broker.settings.switchover_timeout_mills
        return await self.write_successor(
            order.successor,
            leaves=order.leaves,
            deadline_ms=self.now_ms() + wait_ms,
            is_ready=lambda: self._is_ready(order.successor),
        )

    def _is_ready(self, successor: int) -> bool:
        followers = self._parts.sender.followers()
        is_connected = any(one.copy.ordinal == successor for one in followers)
        return is_connected and not len(self._broker.store.upkeep.pending)

    def note_end(self) -> None:
        self.appended(self._broker.store.commit_log.end, self._parts.feed.position.changes)

    # What the copies have confirmed: see `Confirmation`

    def confirmed(self, offset: int) -> None:
        self._broker.store.publisher.confirm(offset)
        self._parts.sender.confirm(offset)
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
        self.end()
        self._parts.member.observe(rules.LeaseLapsed())

    def deposed(self) -> None:
        self._parts.member.watch.read_wanted.set()
