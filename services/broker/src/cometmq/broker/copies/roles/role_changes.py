# SPDX-License-Identifier: Apache-2.0
"""Carries out a member's role changes in its store, for its clients and at name servers.

A member has one of seven roles (`cometmq.ha.role.Role`). Its clients see one of three roles
(`ServedRole`), and one of three objects does the work (`Acting`):

    ========================  =============  ==============
    member                    clients        acts as
    ========================  =============  ==============
    recovering, failed        fenced         `InactiveRole`
    slave                     slave          `SlaveRole`
    promoting                 as before      `InactiveRole`
    master, handing over      master         `MasterRole`
    fenced                    as before (a)  `InactiveRole`
    ========================  =============  ==============

(a) A slave remains a slave for its clients: it refuses sends in either role, and the gate decides
about its reads. A master becomes fenced.

When a broker becomes master, all records of its log are dispatched to the consume queues, even
though the copies may not have confirmed the last ones. The gate delays reads until they have (R6).
From then on, readers see only records below the confirm offset, and a put is answered only once it
is below it.

After a demotion, the end of the log may be cut off. So a demotion drops all state that depends on
the end: pending puts, positions of delay levels, known ends of transactions, locks. A promotion
rebuilds it.
"""

import asyncio
from typing import Final, assert_never

from cometmq.broker.copies.members import MemberAddress
from cometmq.broker.copies.roles.master_role import MasterRole
from cometmq.broker.copies.roles.member_driver import Acting, InactiveRole, Position
from cometmq.broker.copies.roles.parts import Parts
from cometmq.broker.copies.roles.watchdog import Watchdog
from cometmq.broker.copies.state import FollowState
from cometmq.broker.lost_messages import lower_offsets
from cometmq.broker.role import ServedRole
from cometmq.ha import epochs, in_sync
from cometmq.ha import member as rules
from cometmq.ha.in_sync import Leadership
from cometmq.ha.member import Duty
from cometmq.ha.missing_record import EPOCHS_LEFT_OUT
from cometmq.ha.record import Versioned
from cometmq.store.writing.write_state import Refusal

NO_ROOM: Final = (Refusal.DISK_FULL, Refusal.LOG_WRITE_FAILED, Refusal.QUEUE_WRITE_FAILED)
ROOM_PERCENT: Final = 5
"""A slave replaces a master whose disk is full only so many points below
`diskSpaceWarningLevelRatio`.
"""


class SlaveRole(Acting):
    def __init__(self, parts: Parts) -> None:
        self._broker = parts.broker
        self._replica = parts.follower.replica
        self._boottime_ms = parts.host.boottime_ms
        self._hinted_ms = 0

    def confirm_offset(self) -> int:
        return self._replica.confirmed

    def has_lost_master(self) -> bool:
        replica, within_ms = self._replica, self._broker.settings.heard_within_mills
        is_connected = replica.status.state is FollowState.FOLLOWING
        return not is_connected or self._boottime_ms() - replica.heard_ms > within_ms

    def look_after_clients(self) -> None:
        """Have consumers rebalance once when the master falls silent: one that hangs reconnects."""
        heard_ms = self._replica.heard_ms
        quiet_ms = self._broker.settings.heard_within_mills // 2
        is_quiet = 0 < heard_ms < self._boottime_ms() - quiet_ms
        if is_quiet and heard_ms != self._hinted_ms:
            self._hinted_ms = heard_ms
            self._broker.pending.later.start(self._broker.clients.consumers.hint())


class RoleChanges:
    """Performs the actions of a member in its broker (`Duties`)."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._broker = broker = parts.broker
        self._epochs = parts.epochs
        self._feed = parts.feed
        self._follower = parts.follower
        self._sender = parts.sender
        self._gate = parts.gate
        self.acting: Acting = InactiveRole()
        self.watchdog = Watchdog(parts, self)
        self._confirmed_led = 0  # by this broker, in its last leadership
        self._led = asyncio.Event()
        broker.driver.turn.grew.connect(self._log_grew)
        broker.driver.turn.counted.connect(self._tables_changed)

    @property
    def leading(self) -> MasterRole | None:
        """The current role if it is the master's and has not ended; otherwise None."""
        acting = self.acting
        if isinstance(acting, MasterRole) and not acting.has_ended():
            return acting
        return None

    @property
    def confirm_offset(self) -> int:
        """The last known confirm offset, but at most the end of the log; 0 if none is known."""
        return min(self.acting.confirm_offset(), self._broker.store.commit_log.end)

    async def run(self) -> None:
        """Run the record writer of each leadership, one after another, until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                await self._led.wait()
                self._led.clear()
                if (leading := self.leading) is not None:
                    group.create_task(leading.keep_record(), name="member-leader")

    def before_write(self) -> None:
        self.acting.before_write()

    def _log_grew(self) -> None:
        """Journal the table changes made before the new bytes of the log, then note the new end."""
        if self._broker.tables.journal is not None:
            self._broker.tables.journal.write()
        self.acting.note_end()

    def _tables_changed(self) -> None:
        self.acting.note_end()
        self._sender.wake_later()

    # See `Duties`

    def position(self) -> Position:
        tables, store = self._feed.position, self._broker.store
        is_full = not store.write_state.refusals.isdisjoint(NO_ROOM)
        used_percent_max = self._broker.settings.disk_space_warning_level_ratio - ROOM_PERCENT
        return Position(
            last_log_epoch=epochs.last_epoch(self._epochs.history),
            max_offset=store.commit_log.end,
            tables_epoch=tables.epoch,
            tables=tables.changes,
            has_lost_master=self.acting.has_lost_master(),
            lag_bytes=self._follower.replica.status.behind_bytes(store.commit_log.end),
            is_full=is_full,
            has_room=not is_full and store.upkeep.cleaner.used_percent <= used_percent_max,
        )

    async def perform(self, action: Duty) -> None:
        match action:
            case rules.StartFollowing(master=master, epoch=epoch):
                self._start_following(master, epoch)
            case rules.StopFollowing():
                await self._stop_following()
            case rules.BeginEpoch(epoch=epoch):
                await self._begin_epoch(epoch)
            case rules.Lead(found=found):
                self._lead(found)
            case rules.CloseToClients():
                self._close_to_clients()
            case rules.HoldRequests():
                self._hold_requests()
            case rules.ServeHeld():
                self._serve_here()
            case rules.ForwardHeld(target=target):
                self._forward_held(target)
            case _:
                assert_never(action)

    def _start_following(self, master: int, epoch: int) -> None:
        self._broker.role.take(ServedRole.SLAVE, epoch)
        known = self._parts.members.get(master)
        if known is None:
            self._broker.log.error(
                "member.master_unknown", broker=master, epoch=epoch,
                action="add this broker to groupMembers of every member",
            )  # fmt: skip
        self._forward_to(known, epoch)
        self._follower.follow(epoch, master, lambda: known.replication if known else "")
        self.acting = SlaveRole(self._parts)

    async def _stop_following(self) -> None:
        # What clients send is still forwarded: it waits for the next master, which may be this one.
        self._deactivate()
        await self._follower.stop()

    async def _begin_epoch(self, epoch: int) -> None:
        store = self._broker.store
        store.publisher.confirm(None)  # dispatches everything; the gate hides it meanwhile
        store.publisher.confirm(store.commit_log.end)
        end, history = store.commit_log.end, self._epochs.history
        await self._epochs.save(epochs.begun(history, epoch, end))
        self._feed.begin(epoch)
        if history and epoch - epochs.last_epoch(history) >= EPOCHS_LEFT_OUT:
            lower_offsets(self._broker)  # the record was restored with an accepted loss

    async def repair_history(self) -> None:
        # A save that failed may have followed a truncation of the log.
        end = self._broker.store.commit_log.end
        await self._epochs.save(epochs.truncated(self._epochs.history, end))

    def new_leading(self, view: Leadership) -> MasterRole:
        return MasterRole(self._parts, view)

    def _lead(self, found: Versioned) -> None:
        epoch, broker = found.record.epoch, self._broker
        view = in_sync.lead(
            self._parts.member.state.me,
            found,
            start=broker.store.commit_log.end,
            confirmed=self._follower.replica.confirmed,
        )
        self.acting = leading = self.new_leading(view)
        self._led.set()
        self._gate.permission.confirmation = leading
        self.watchdog.leadership_began()
        self._sender.lead(epoch, confirmed=view.confirmed, reports=leading)
        broker.deferred.transactions.restart()
        broker.deferred.delays.positions.restart()
        broker.deferred.delays.fit()
        broker.deferred.delays.expect_copies(broker.clock.now_ms())
        broker.clients.locks.clear()
        broker.role.take(ServedRole.MASTER, epoch)
        broker.replication.in_sync = leading
        self._serve_here()
        leading.open()
        self._parts.around.promoted()

    def _close_to_clients(self) -> None:
        self._end_leadership()
        self._parts.around.close_peers()
        self._serve_here()  # requests that waited for a successor are refused

    def _hold_requests(self) -> None:
        self._broker.role.is_diverting = True
        self._gate.diversion.hold()

    def _forward_held(self, target: int) -> None:
        self._end_leadership()
        self._forward_to(self._parts.members.get(target), self._parts.member.state.epoch)
        self._broker.pending.hold.wake_all()
        self._broker.driver.turn.wake()

    def _forward_to(self, master: MemberAddress | None, epoch: int) -> None:
        if master is None:
            self._serve_here()
            return
        self._broker.role.is_diverting = True
        self._gate.diversion.forward(master.broker, epoch)

    def _serve_here(self) -> None:
        self._broker.role.is_diverting = False
        self._gate.diversion.serve_here()

    def _end_leadership(self) -> None:
        """Refuse all requests from now on, and fail the requests that are still pending."""
        broker = self._broker
        self.watchdog.leadership_ended()
        self._gate.permission.confirmation = None
        broker.replication.in_sync = None
        self._deactivate()
        broker.role.take(ServedRole.FENCED, broker.role.state.epoch)
        broker.store.write_state.set(Refusal.TOO_FEW_COPIES, holds=False)
        self._sender.stop()
        self._feed.stop()
        broker.driver.forget_unconfirmed()
        broker.deferred.transactions.restart()
        broker.deferred.delays.positions.restart()
        broker.clients.locks.clear()

    def _deactivate(self) -> None:
        if isinstance(self.acting, MasterRole):
            self._confirmed_led = self.acting.confirm_offset()
            self.acting.end()
        self.acting = InactiveRole(max(self._confirmed_led, self._follower.replica.confirmed))
