# SPDX-License-Identifier: Apache-2.0
"""Carries out a member's role changes in its store, for its clients and at name servers.

When a broker becomes master, all records of its log are dispatched, even though the copies may not
have confirmed the last ones. The gate refuses reads until the copies have confirmed them (R6). From
then on, readers see only records below the confirm offset, and puts are answered only once they are
below it.

A demotion may cut the end of the log, so it drops all state that depends on that end: pending puts,
positions of delay levels, known ends of transactions, locks. A promotion rebuilds it.
"""

import asyncio
from collections.abc import Callable, Collection
from typing import Final

from cometmq.broker.broker import Broker
from cometmq.broker.copies.gate.gate import Gate
from cometmq.broker.copies.members import MemberAddress, Members
from cometmq.broker.copies.roles.acting import Acting, Fenced, Following
from cometmq.broker.copies.roles.dead_man import DeadMan
from cometmq.broker.copies.roles.duties import Position
from cometmq.broker.copies.roles.inbox import Inbox
from cometmq.broker.copies.roles.leadership import Leader
from cometmq.broker.copies.roles.leading import Leading, NewLeader
from cometmq.broker.copies.roles.leading_away import LeadingAway
from cometmq.broker.copies.streams.epoch_log import EpochLog
from cometmq.broker.copies.streams.following import Follower
from cometmq.broker.copies.streams.sending import LogSender
from cometmq.broker.copies.tables.feed import TableFeed
from cometmq.broker.role import Role
from cometmq.ha import epochs, events, in_sync
from cometmq.ha.port import Answer
from cometmq.ha.record import Versioned
from cometmq.remoting.transport.protocol import PeerProtocol
from cometmq.store.writing.write_state import Refusal

NO_ROOM: Final = (Refusal.DISK_FULL, Refusal.LOG_WRITE_FAILED, Refusal.QUEUE_WRITE_FAILED)
ROOM_PERCENT: Final = 5
"""A slave may relieve a master whose disk is full only if the usage of the slave's own disk is this
many percentage points below `diskSpaceWarningLevelRatio`.
"""


class RoleChanges:
    """The duties of a member (`Duties`): each replaces what the broker does in its role."""

    def __init__(  # noqa: PLR0913  # the collaborators, each by name
        self,
        broker: Broker,
        *,
        inbox: Inbox,
        members: Members,
        epoch_log: EpochLog,
        feed: TableFeed,
        follower: Follower,
        sender: LogSender,
        gate: Gate,
        new_leader: NewLeader,
        boottime_ms: Callable[[], int],
        close_peers: Callable[[], None],
        clients: Callable[[], Collection[PeerProtocol]],
        promoted: Callable[[], None],
    ) -> None:
        """`close_peers` closes all connections of clients and of RocketMQ's slaves; `clients`
        returns those of clients; `promoted` starts the background work of the handlers.
        """
        self._broker = broker
        self._inbox = inbox
        self._members = members
        self._epochs = epoch_log
        self._feed = feed
        self._follower = follower
        self._sender = sender
        self._gate = gate
        self.new_leader = new_leader
        self._boottime_ms = boottime_ms
        self._close_peers = close_peers
        self._promoted = promoted
        self._acting: Acting = Fenced()
        self._confirmed_led = 0  # by this broker, in its last leadership
        self._led = asyncio.Event()
        self._has_failed = False
        self._is_leaving = False
        self._dead_man = DeadMan(log=broker.log)
        self._leading_away = LeadingAway(clients, gate.is_diverting, boottime_ms)
        broker.driver.turn.grew.connect(self._log_grew)
        broker.driver.turn.counted.connect(self._tables_changed)

    @property
    def leader(self) -> Leader | None:
        """The current leadership, or None while this broker is not the master."""
        leader = self._acting.leader
        return None if leader is None or leader.has_ended() else leader

    async def run(self) -> None:
        """Run one leadership after another; each renews the record until it ends."""
        async with asyncio.TaskGroup() as group:
            while True:
                await self._led.wait()
                self._led.clear()
                if (leader := self.leader) is not None:
                    group.create_task(leader.run(), name="member-leader")

    def tick(self) -> None:
        """Check the lease, the copies and the disk; called every 100 ms."""
        has_failed = self._broker.store.write_state.has(Refusal.SYNC_FAILED)
        if has_failed and not self._has_failed:
            self._has_failed = True
            self._inbox.observe(events.StoreFailed())
        self._acting.tick()
        if self._broker.settings.group_address:
            self._leading_away.tick()
            self._acting.look_after_clients()
        self._watch_for_standstill()

    def _watch_for_standstill(self) -> None:
        """Let the kernel end this process if it stands still while another copy can take over."""
        after_ms = self._broker.settings.frozen_master_mills
        if after_ms and not self._is_leaving and self._acting.has_successor():
            self._dead_man.arm(after_ms)
        else:
            self._dead_man.disarm()

    def leave(self) -> None:
        """Note that this broker is stopping, which may take longer than a standstill."""
        self._is_leaving = True
        self._dead_man.disarm()

    def before_write(self) -> None:
        """Close all connections if this master's lease has lapsed; runs before answers are sent."""
        self._acting.before_write()

    def _log_grew(self) -> None:
        """Journal the table changes made before the new bytes of the log, then note the new end."""
        if self._broker.journal is not None:
            self._broker.journal.write()
        self._acting.note_end()

    @property
    def confirm_offset(self) -> int:
        """The last confirm offset known to this member, but at most the end of its log; 0 if none
        is known.
        """
        return min(self._acting.confirm_offset(), self._broker.store.commit_log.end)

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
            has_lost_master=self._acting.has_lost_master(),
            lag_bytes=self._follower.status.behind_bytes(store.commit_log.end),
            is_full=is_full,
            has_room=not is_full and store.upkeep.cleaner.used_percent <= used_percent_max,
        )

    async def start_following(self, master: int, epoch: int) -> None:
        self._broker.take_role(Role.SLAVE, epoch)
        known = self._members.get(master)
        if known is None:
            self._broker.log.error(
                "member.master_unknown", broker=master, epoch=epoch,
                action="add this broker to groupMembers of every member",
            )  # fmt: skip
        self._forward_to(known, epoch)
        self._follower.follow(epoch, master, lambda: known.replication if known else "")
        self._acting = Following(self._broker, self._follower, self._boottime_ms)

    async def stop_following(self) -> None:
        self._acting = Fenced(max(self._confirmed_led, self._follower.confirmed))
        await self._follower.stop()

    async def begin_epoch(self, epoch: int) -> None:
        store = self._broker.store
        store.confirm(None)  # dispatches everything; the gate hides it until it is confirmed
        store.confirm(store.commit_log.end)
        end = store.commit_log.end
        await self._epochs.save(epochs.begun(self._epochs.history, epoch, end))
        self._feed.begin(epoch)

    def _tables_changed(self) -> None:
        self._acting.note_end()
        self._sender.wake_later()

    async def repair_history(self) -> None:
        # A save that failed may have followed a truncation of the log.
        end = self._broker.store.commit_log.end
        await self._epochs.save(epochs.truncated(self._epochs.history, end))

    async def lead(self, found: Versioned) -> None:
        record, broker = found.record, self._broker
        leadership = in_sync.lead(
            self._inbox.member.me,
            found,
            start=broker.store.commit_log.end,
            confirmed=self._follower.confirmed,
        )
        self._acting = leading = Leading(
            broker, self._inbox, self._sender, self._feed, close_peers=self._close_peers,
            new_leader=lambda reign: self.new_leader(leadership, reign, record.deposed is None),
        )  # fmt: skip
        self._gate.leader = leading.leader
        self._leading_away.end()
        self._sender.lead(record.epoch, confirmed=leadership.confirmed, reports=leading)
        broker.transactions.restart()
        broker.delay.restart()
        broker.delay.expect_copies(broker.clock.now_ms())
        broker.locks.clear()
        broker.take_role(Role.MASTER, record.epoch)
        broker.replication.leadership = leading.leader
        self._serve_here()
        leading.leader.open()
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
        leader = self.leader
        if leader is None:
            return None
        self._broker.driver.commit()
        deadline_ms = self._boottime_ms() + self._broker.settings.switchover_timeout_mills

        def is_ready() -> bool:
            """Return whether every put is answered and the target is connected."""
            is_connected = any(one.copy.ordinal == target for one in self._sender.followers())
            return is_connected and not self._broker.store.waiting_put_count

        return await leader.hand_over(
            target, leaves=leaves, deadline_ms=deadline_ms, is_ready=is_ready
        )

    async def unpark(self) -> None:
        self._serve_here()

    async def forward_parked(self, target: int) -> None:
        self._end_leadership()
        self._forward_to(self._members.get(target), self._inbox.member.epoch)
        self._broker.hold.wake_all()
        self._broker.driver.turn.wake()

    def drop(self, ordinal: int) -> None:
        self._acting.drop(ordinal)

    def resize(self, copies: int) -> None:
        self._acting.resize(copies)

    def record_seen(self, found: Versioned | None) -> None:
        self._acting.record_seen(found)

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
        broker, ended = self._broker, self._acting
        if ended.leader is not None:
            self._confirmed_led = ended.confirm_offset()
        self._acting = Fenced(max(self._confirmed_led, self._follower.confirmed))
        self._gate.leader = None
        broker.replication.leadership = None
        ended.end()
        broker.take_role(Role.FENCED, broker.role.epoch)
        broker.store.write_state.set(Refusal.TOO_FEW_COPIES, holds=False)
        self._sender.stop()
        self._feed.stop()
        broker.driver.forget_unconfirmed()
        broker.transactions.restart()
        broker.delay.restart()
        broker.locks.clear()
