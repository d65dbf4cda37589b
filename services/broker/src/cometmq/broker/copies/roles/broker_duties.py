# SPDX-License-Identifier: Apache-2.0
"""Carries out a group member's role changes in its store, for its clients and at name servers.

When a broker becomes master, all records of its log are dispatched, even though the copies may not
have confirmed the last ones. The gate refuses reads until the copies have confirmed them (R6). From
then on, readers see only records below the confirm offset, and puts are answered only once they are
below it.

A demotion may cut the end of the log, so it drops all state that depends on that end: pending puts,
positions of delay levels, known ends of transactions, locks. A promotion rebuilds it.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Final

from cometmq.broker.broker import Broker
from cometmq.broker.copies.gate.gate import Gate
from cometmq.broker.copies.members import MemberAddress, Members
from cometmq.broker.copies.roles.dead_man import DeadMan
from cometmq.broker.copies.roles.duties import Position
from cometmq.broker.copies.roles.leadership import Leader, Reign
from cometmq.broker.copies.roles.leading_away import LeadingAway
from cometmq.broker.copies.roles.membership import Membership
from cometmq.broker.copies.state import FollowState
from cometmq.broker.copies.streams.epoch_log import EpochLog
from cometmq.broker.copies.streams.following import Follower
from cometmq.broker.copies.streams.reports import Heard
from cometmq.broker.copies.streams.sending import LogSender
from cometmq.broker.copies.tables.feed import TableFeed
from cometmq.broker.role import Role
from cometmq.ha import epochs, events, in_sync
from cometmq.ha import member as rules
from cometmq.ha.in_sync import Leadership
from cometmq.ha.port import Answer
from cometmq.ha.record import Copy, Versioned
from cometmq.remoting.errors import ServiceNotAvailable
from cometmq.remoting.transport.protocol import PeerProtocol
from cometmq.remoting.transport.tasks import describe
from cometmq.store.writing.write_state import Refusal

NewLeader = Callable[[Leadership, Reign, bool], Leader]

NO_ROOM: Final = (Refusal.DISK_FULL, Refusal.LOG_WRITE_FAILED, Refusal.QUEUE_WRITE_FAILED)
ROOM_PERCENT: Final = 5
"""A slave may relieve a master whose disk is full only if the usage of the slave's own disk is this
many percentage points below `diskSpaceWarningLevelRatio`.
"""


class BrokerDuties:
    """Executes the member's actions, and receives the events of the stream and the leadership."""

    member: Membership
    follower: Follower
    sender: LogSender

    def __init__(  # noqa: PLR0913  # the collaborators, each by name
        self,
        broker: Broker,
        *,
        members: Members,
        epoch_log: EpochLog,
        feed: TableFeed,
        gate: Gate,
        new_leader: NewLeader,
        boottime_ms: Callable[[], int],
        close_peers: Callable[[], None],
        clients: Callable[[], Collection[PeerProtocol]],
        promoted: Callable[[], None],
    ) -> None:
        """`member`, `follower` and `sender` are set before anything runs.

        `close_peers` closes all connections of clients and of RocketMQ's slaves; `clients` returns
        those of clients; `promoted` starts the background work of the handlers.
        """
        self._broker = broker
        self._members = members
        self._epochs = epoch_log
        self._feed = feed
        self._gate = gate
        self._new_leader = new_leader
        self._boottime_ms = boottime_ms
        self._close_peers = close_peers
        self._promoted = promoted
        self._leader: Leader | None = None
        self._led = asyncio.Event()
        self._confirmed_before = 0
        self._confirmed_led = 0
        self._has_failed = False
        self._is_cut_off = False
        self._hinted_ms = 0
        self._is_leaving = False
        self._dead_man = DeadMan(log=broker.log)
        self._leading_away = LeadingAway(clients, gate.is_diverting, boottime_ms)

    @property
    def leader(self) -> Leader | None:
        """The current leadership, or None while this broker is not the master."""
        return self._leader

    def copies(self) -> tuple[int, ...] | None:
        """Return the brokers whose copies are in sync; None while this broker is not the master."""
        return None if self._leader is None else self._leader.copies()

    def copy_count(self) -> int:
        """Return how many copies the group should have; 0 while this broker is not the master."""
        return 0 if self._leader is None else self._leader.copy_count()

    async def run(self) -> None:
        """Run one leadership after another; each renews the record until it ends."""
        async with asyncio.TaskGroup() as group:
            while True:
                await self._led.wait()
                self._led.clear()
                if self._leader is not None:
                    group.create_task(self._leader.run(), name="group-leader")

    def tick(self) -> None:
        """Check the lease, the copies and the disk; called every 100 ms."""
        has_failed = self._broker.store.write_state.has(Refusal.SYNC_FAILED)
        if has_failed and not self._has_failed:
            self._has_failed = True
            self.member.observe(events.StoreFailed())
        if self._leader is not None:
            self._leader.tick()
        if self._broker.settings.group_address:
            self._lead_clients_away()
        self._watch_for_standstill()

    def _lead_clients_away(self) -> None:
        """Break connections that hang at a lost master, or have stayed with a former one, where
        clients reach the next one at the same address.
        """
        self._leading_away.tick()
        leader, broker, heard_ms = self._leader, self._broker, self.follower.heard_ms
        is_cut_off = leader is not None and leader.is_cut_off()
        if is_cut_off and not self._is_cut_off:
            broker.log.warning("master.cut_off", epoch=broker.role.epoch)
        self._is_cut_off = is_cut_off
        if is_cut_off:
            self._close_peers()
        is_quiet = (
            broker.is_slave
            and 0 < heard_ms < self._boottime_ms() - broker.settings.heard_within_mills // 2
        )
        if is_quiet and heard_ms != self._hinted_ms:  # once for each silence
            self._hinted_ms = heard_ms
            broker.consumers.hint()

    def _watch_for_standstill(self) -> None:
        """Let the kernel end this process if it stands still while another copy can take over."""
        after_ms, leader = self._broker.settings.frozen_master_mills, self._leader
        if after_ms and leader is not None and not self._is_leaving and leader.has_successor():
            self._dead_man.arm(after_ms)
        else:
            self._dead_man.disarm()

    def leave(self) -> None:
        """Note that this broker is stopping, which may take longer than a standstill."""
        self._is_leaving = True
        self._dead_man.disarm()

    def before_write(self) -> None:
        """Close all connections if this master's lease has lapsed; runs before answers are sent."""
        leader = self._leader
        if leader is not None and leader.is_lapsed():
            self.lapsed()
            self._close_peers()

    @property
    def confirm_offset(self) -> int:
        """The last confirm offset known to this member, but at most the end of its log; 0 if none
        is known.

        A slave learns the offset from its master's stream; a fenced member keeps the offset of its
        last role.
        """
        if self._leader is not None:
            return self._leader.view.confirmed
        known = max(self._confirmed_before, self._confirmed_led)
        if self.member.member.role is rules.Role.SLAVE:
            known = self.follower.confirmed
        return min(known, self._broker.store.commit_log.end)

    # Duties: see `cometmq.broker.copies.roles.duties`

    def position(self) -> Position:
        tables, store = self._feed.position, self._broker.store
        is_full = not store.write_state.refusals.isdisjoint(NO_ROOM)
        used_percent_max = self._broker.settings.disk_space_warning_level_ratio - ROOM_PERCENT
        return Position(
            last_log_epoch=epochs.last_epoch(self._epochs.history),
            max_offset=store.commit_log.end,
            tables_epoch=tables.epoch,
            tables=tables.changes,
            has_lost_master=self._has_lost_master(),
            lag_bytes=self.follower.status.behind_bytes(store.commit_log.end),
            is_full=is_full,
            has_room=not is_full and store.disk_used_percent <= used_percent_max,
        )

    def _has_lost_master(self) -> bool:
        """Return whether this broker follows a master that is silent, or cannot be reached."""
        member = self.member.member
        if member.role is not rules.Role.SLAVE or not member.epoch:
            return False
        follower, within_ms = self.follower, self._broker.settings.heard_within_mills
        is_connected = follower.status.state is FollowState.FOLLOWING
        return not is_connected or self._boottime_ms() - follower.heard_ms > within_ms

    async def start_following(self, master: int, epoch: int) -> None:
        self._broker.take_role(Role.SLAVE, epoch)
        known = self._members.get(master)
        if known is None:
            self._broker.log.error(
                "member.master_unknown", broker=master, epoch=epoch,
                action="add this broker to groupMembers of every member",
            )  # fmt: skip
        self._forward_to(known, epoch)
        self.follower.follow(epoch, master, lambda: known.replication if known else "")

    async def stop_following(self) -> None:
        self._confirmed_before = self.follower.confirmed
        await self.follower.stop()

    async def begin_epoch(self, epoch: int) -> None:
        store = self._broker.store
        store.confirm(None)  # dispatches everything; the gate hides it until it is confirmed
        store.confirm(store.commit_log.end)
        end = store.commit_log.end
        await self._epochs.save(epochs.begun(self._epochs.history, epoch, end))
        self._feed.begin(epoch)

    async def repair_history(self) -> None:
        # A save that failed may have followed a truncation of the log.
        end = self._broker.store.commit_log.end
        await self._epochs.save(epochs.truncated(self._epochs.history, end))

    async def lead(self, found: Versioned) -> None:
        record, broker = found.record, self._broker
        leadership = in_sync.lead(
            self.member.member.me,
            found,
            start=broker.store.commit_log.end,
            confirmed=self._confirmed_before,
        )
        self._leader = self._gate.leader = leader = self._new_leader(
            leadership, self, record.deposed is None
        )
        self._leading_away.end()
        self.sender.lead(record.epoch, confirmed=leadership.confirmed)
        broker.transactions.restart()
        broker.delay.restart()
        broker.delay.expect_copies(broker.clock.now_ms())
        broker.locks.clear()
        broker.take_role(Role.MASTER, record.epoch)
        self._serve_here()
        leader.open()
        self._led.set()
        self._promoted()

    async def close_to_clients(self) -> None:
        self._end_leadership()
        self._close_peers()
        self._serve_here()

    async def park(self, target: int) -> None:
        self._broker.is_diverting = True
        self._gate.park()

    async def hand_over(self, target: int, *, leaves: bool) -> tuple[Answer, int] | None:
        leader = self._leader
        if leader is None:
            return None
        self._broker.driver.commit()
        deadline_ms = self._boottime_ms() + self._broker.settings.switchover_timeout_mills

        def is_ready() -> bool:
            """Return whether every put is answered and the target is connected."""
            is_connected = any(one.copy.ordinal == target for one in self.sender.followers())
            return is_connected and not self._broker.store.waiting_put_count

        return await leader.hand_over(
            target, leaves=leaves, deadline_ms=deadline_ms, is_ready=is_ready
        )

    async def unpark(self) -> None:
        self._serve_here()

    async def forward_parked(self, target: int) -> None:
        self._end_leadership()
        self._forward_to(self._members.get(target), self.member.member.epoch)
        self._broker.hold.wake_all()
        self._broker.driver.after_commit()

    def drop(self, ordinal: int) -> None:
        if self._leader is not None:
            self._leader.drop(ordinal)

    def resize(self, copies: int) -> None:
        if self._leader is not None:
            self._leader.resize(copies)

    def record_seen(self, found: Versioned | None) -> None:
        if self._leader is not None:
            self._leader.record_seen(found)

    def _forward_to(self, master: MemberAddress | None, epoch: int) -> None:
        if master is None:
            self._serve_here()
            return
        self._broker.is_diverting = True
        self._gate.forward(master.broker, epoch)

    def _serve_here(self) -> None:
        self._broker.is_diverting = False
        self._gate.unpark()

    def _end_leadership(self) -> None:
        """Refuse all requests from now on, and fail the requests that are still pending."""
        self._dead_man.disarm()
        self._leading_away.begin()
        broker, leader = self._broker, self._leader
        self._leader = self._gate.leader = None
        if leader is not None:
            self._confirmed_led = leader.view.confirmed
            leader.end()
        broker.take_role(Role.FENCED, broker.role.epoch)
        broker.store.write_state.set(Refusal.TOO_FEW_COPIES, holds=False)
        self.sender.stop()
        self._feed.stop()
        broker.driver.forget_unconfirmed()
        broker.transactions.restart()
        broker.delay.restart()
        broker.locks.clear()

    # The events while this broker leads: see `cometmq.broker.copies.roles.leadership.Reign`

    def log_grew(self) -> None:
        """Journal the table changes made before the new bytes of the log, then note the new end."""
        if self._broker.journal is not None:
            self._broker.journal.write()
        self._note_end()

    def changes(self) -> int:
        """Write pending table changes to the journal; return their number in this epoch.

        Raise ServiceNotAvailable if the changes cannot be written; the copies then lack them, too.
        """
        journal = self._broker.journal
        if journal is not None:
            journal.write()
            if journal.fault:
                raise ServiceNotAvailable(
                    f"the change cannot be journaled, so other copies lack it: {journal.fault}"
                )
        return self._feed.position.changes

    def tables_changed(self) -> None:
        """Note table changes that have been written to the journal."""
        self._note_end()

    def _note_end(self) -> None:
        if self._leader is not None:
            self._leader.appended(self._broker.store.commit_log.end, self._feed.position.changes)

    def confirmed(self, offset: int) -> None:
        self._broker.store.confirm(offset)
        self.sender.confirm(offset)
        self._broker.driver.after_commit()

    def acknowledged(self, offset: int) -> None:
        self._broker.driver.note_replicated(offset)

    def in_sync_changed(self, *, has_enough: bool) -> None:
        write_state = self._broker.store.write_state
        if write_state.set(Refusal.TOO_FEW_COPIES, holds=not has_enough):
            settings = self._broker.settings
            self._broker.log.warning(
                "in_sync.sufficient" if has_enough else "in_sync.insufficient",
                min_in_sync=settings.min_in_sync,
            )

    def lapsed(self) -> None:
        leader, self._leader = self._leader, None
        if leader is not None:
            self._confirmed_led = leader.view.confirmed
            leader.end()
            self.member.observe(events.LeaseLapsed())

    def deposed(self) -> None:
        self.member.want_read()

    # The reports of followers and of the master: `FollowerEvents` and `MasterEvents` of the stream

    def heard(self, reports: Sequence[Heard]) -> None:
        if self._leader is not None:
            self._leader.note_heard(reports)

    def left(self, copy: Copy) -> None:
        if self._leader is not None:
            self._leader.note_left(copy)

    def epoch_seen(self, epoch: int) -> None:
        self.member.observe(events.EpochSeen(epoch))

    def store_failed(self, error: Exception) -> None:
        if isinstance(error, epochs.HistoryUnsaved):
            self.member.history_unsaved(error)
            return
        self._broker.log.error("member.store_failed", error=describe(error))
        self.member.observe(events.StoreFailed())
