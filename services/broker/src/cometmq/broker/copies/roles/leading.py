# SPDX-License-Identifier: Apache-2.0
"""What the master of a broker group does: it confirms, acknowledges, and refuses what it must."""

from collections.abc import Callable, Sequence

from cometmq.broker.broker import Broker
from cometmq.broker.copies.roles.acting import Acting
from cometmq.broker.copies.roles.inbox import Inbox
from cometmq.broker.copies.roles.leadership import Leader, Reign
from cometmq.broker.copies.streams.reports import Heard
from cometmq.broker.copies.streams.sending import LogSender
from cometmq.broker.copies.tables.feed import TableFeed
from cometmq.ha import events
from cometmq.ha.in_sync import Leadership
from cometmq.ha.record import Copy, Versioned
from cometmq.store.writing.write_state import Refusal

NewLeader = Callable[[Leadership, Reign, bool], Leader]
"""Begins a leadership; the last argument says that the previous master cannot answer any more."""


class Leading(Acting):
    """The role of the master in one epoch: `Reign` for its leadership, `Reports` for the stream."""

    leader: Leader

    def __init__(
        self,
        broker: Broker,
        inbox: Inbox,
        sender: LogSender,
        feed: TableFeed,
        *,
        close_peers: Callable[[], None],
        new_leader: Callable[[Reign], Leader],
    ) -> None:
        """`new_leader` begins the leadership that reports here."""
        self._broker = broker
        self._inbox = inbox
        self._sender = sender
        self._feed = feed
        self._close_peers = close_peers
        self._is_cut_off = False
        self.leader = new_leader(self)

    def confirm_offset(self) -> int:
        return self.leader.view.confirmed

    def has_successor(self) -> bool:
        return not self.leader.has_ended() and self.leader.has_successor()

    def tick(self) -> None:
        self.leader.tick()

    def look_after_clients(self) -> None:
        """While this broker is cut off, close connections, so that clients find the next master."""
        was_cut_off, self._is_cut_off = self._is_cut_off, self.leader.is_cut_off()
        if self._is_cut_off:
            if not was_cut_off:
                self._broker.log.warning("master.cut_off", epoch=self._broker.role.epoch)
            self._close_peers()

    def before_write(self) -> None:
        """Close all connections if the lease has lapsed."""
        if not self.leader.has_ended() and self.leader.is_lapsed():
            self.lapsed()
            self._close_peers()

    def note_end(self) -> None:
        self.leader.appended(self._broker.store.commit_log.end, self._feed.position.changes)

    def drop(self, ordinal: int) -> None:
        self.leader.drop(ordinal)

    def resize(self, copies: int) -> None:
        self.leader.resize(copies)

    def record_seen(self, found: Versioned | None) -> None:
        self.leader.record_seen(found)

    def end(self) -> None:
        self.leader.end()

    # What the leadership reports: see `Reign`

    def confirmed(self, offset: int) -> None:
        self._broker.store.confirm(offset)
        self._sender.confirm(offset)
        self._broker.driver.turn.wake()

    def acknowledged(self, offset: int) -> None:
        self._broker.driver.note_replicated(offset)

    def in_sync_changed(self, *, has_enough: bool) -> None:
        write_state = self._broker.store.write_state
        if write_state.set(Refusal.TOO_FEW_COPIES, holds=not has_enough):
            self._broker.log.warning(
                "in_sync.sufficient" if has_enough else "in_sync.insufficient",
                min_in_sync=self._broker.settings.min_in_sync,
            )

    def lapsed(self) -> None:
        self.leader.end()
        self._inbox.observe(events.LeaseLapsed())

    def deposed(self) -> None:
        self._inbox.want_read()

    # What followers report: see `Reports` of the stream

    def heard(self, reports: Sequence[Heard]) -> None:
        self.leader.note_heard(reports)

    def left(self, copy: Copy) -> None:
        self.leader.note_left(copy)
