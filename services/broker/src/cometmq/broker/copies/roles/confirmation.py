# SPDX-License-Identifier: Apache-2.0
"""What the copies of a master have confirmed in one epoch; answers puts and shows
messages to readers accordingly.

The rules are in `cometmq.ha.in_sync`. Reports, appends and table changes arrive on
the loop and take effect at once.

A put is acknowledged when the copies have both its bytes and every table change made before it, so
that a topic created by a send exists wherever the message does.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from cometmq.broker.copies.roles.attendance import Attendance
from cometmq.broker.copies.streams.reports import Heard
from cometmq.ha import in_sync
from cometmq.ha.in_sync import Leadership
from cometmq.ha.record import Copy


class Reign(Protocol):
    """What a broker does when its master's view changes; implemented by `MasterRole`."""

    def confirmed(self, offset: int) -> None:
        """Handle a new confirm offset: every copy in the in-sync set has the log up to it."""

    def acknowledged(self, offset: int) -> None:
        """Answer the puts up to this offset."""

    def in_sync_changed(self, *, has_enough: bool) -> None:
        """Handle a change of whether the in-sync set has enough members; refuse puts if not."""

    def lapsed(self) -> None:
        """Stop acknowledging, because this master's lease has lapsed."""


class Confirmation:
    """A master's view of its copies, which receives their reports (`Reports`).
    After `end`, calls have no effect.
    """

    def __init__(
        self, view: Leadership, reign: Reign, attendance: Attendance, *, min_in_sync: int
    ) -> None:
        """Begin to lead; the record of `view` must just have been read or written."""
        self.view = view
        self.attendance = attendance
        self.write_wanted = asyncio.Event()
        """Set when the record should be written or read again (`record_writer.py`)."""
        self.progressed = asyncio.Event()
        """Set, and replaced, when more is confirmed or the leadership has ended."""
        self._reign = reign
        self._min_in_sync = min_in_sync
        self._puts: deque[tuple[int, int]] = deque()  # end of the log, table changes before it
        self._has_enough: bool | None = None
        self._is_ended = False
        attendance.extend(view)

    def end(self) -> None:
        """Stop: nothing is confirmed or acknowledged from now on."""
        self._is_ended = True
        self.write_wanted.set()
        self._notify()

    def open(self) -> None:
        """Pass the first view to the `Reign`; call this once, when the broker is ready for it."""
        self._note_set()
        self._release()

    def appended(self, end: int, tables: int) -> None:
        """Note the end of the log, and how many table changes of this epoch precede it."""
        if self._is_ended:
            return
        view = self.view
        if tables > view.tables:
            view = in_sync.tables_changed(view, tables)
        if end > view.end:
            view = in_sync.appended(view, end)
            self._puts.append((end, tables))
        self._advance(view)

    def heard(self, reports: Sequence[Heard]) -> None:
        """Apply one turn's reports from the copies; none exceeds this master's log or tables."""
        if self._is_ended:
            return
        attendance, view = self.attendance, self.view
        now_ms = attendance.now_ms()
        for ack, sent_ms in reports:
            if in_sync.is_current(view, ack):
                view = in_sync.acked(view, ack)
                attendance.note(ack, sent_ms, view.end, now_ms)
        attendance.extend(self.view)
        self._advance(view)

    def left(self, copy: Copy) -> None:
        """Remove a stopping broker's copy from the in-sync set at once; it may return later."""
        self.attendance.leave(copy)
        self.write_wanted.set()

    def drop(self, ordinal: int) -> None:
        """Keep a broker out of the in-sync set."""
        self.attendance.drop(ordinal)
        self.write_wanted.set()

    def tick(self) -> None:
        """Call `Reign.lapsed` if the lease has lapsed; request a write of the record if one is
        due.
        """
        if self._is_ended:
            return
        if self.is_lapsed():
            self._reign.lapsed()
        elif in_sync.wants_write(self.view, self.attendance.unfit(self.view)):
            self.write_wanted.set()

    # Permission to answer

    def is_lapsed(self) -> bool:
        """Return whether this master must stop acknowledging."""
        attendance = self.attendance
        return self._is_ended or attendance.now_ms() >= attendance.valid_until_ms

    def is_cut_off(self) -> bool:
        """Return whether the copies are silent, and the record cannot be written either."""
        return not self._is_ended and self.attendance.is_cut_off(self.view)

    def may_read(self) -> bool:
        """Return whether consumers may see the ends of queues (R6)."""
        return not self._is_ended and in_sync.may_read(self.view, self.view.confirmed)

    def may_answer_unlogged(self) -> bool:
        """Return whether locks and offset commits may be answered (decision 8)."""
        return not self.is_lapsed() and self.attendance.may_answer_unlogged(self.view)

    def copies(self) -> tuple[int, ...]:
        """Return the brokers whose copies are certain to be in sync, this one included."""
        unfit = self.attendance.unfit(self.view)
        members = in_sync.certain_set(self.view)
        return tuple(sorted(copy.ordinal for copy in members if copy not in unfit))

    def has_successor(self) -> bool:
        """Return whether another copy is certain to be in sync, so that it can take over."""
        return len(in_sync.certain_set(self.view)) > 1

    def has_enough_copies(self) -> bool:
        """Return whether `minInSync` copies are certain to be in sync (R8)."""
        return in_sync.may_acknowledge(self.view, self._min_in_sync)

    def copy_count(self) -> int:
        """Return the number of copies that the record asks for."""
        return self.view.base.record.copies

    def has_confirmed_tables(self, tables: int) -> bool:
        """Return whether every copy in the in-sync set has this many table changes of the epoch."""
        return self.view.confirmed_tables >= tables

    async def progress(self) -> None:
        """Wait until more is confirmed, or the leadership has ended."""
        await self.progressed.wait()

    def has_ended(self) -> bool:
        return self._is_ended

    def adopt(self, view: Leadership) -> None:
        """Adopt a view whose record or in-sync sets may differ from the current ones."""
        before, self.view = self.view, view
        self.attendance.extend(view)
        self._note_set()
        self._release_more(before)

    def _advance(self, view: Leadership) -> None:
        """Adopt a view with the same record and sets. Called once or twice per batch of messages,
        so it does less than `adopt`.
        """
        before, self.view = self.view, view
        self._release_more(before)

    def _release_more(self, before: Leadership) -> None:
        view = self.view
        if (view.confirmed, view.confirmed_tables) != (before.confirmed, before.confirmed_tables):
            self._release()

    def _note_set(self) -> None:
        has_enough = self.has_enough_copies()
        if has_enough is not self._has_enough:
            self._has_enough = has_enough
            self._reign.in_sync_changed(has_enough=has_enough)
            if has_enough:
                self._release()

    def _release(self) -> None:
        """Make confirmed messages visible to readers, and answer acknowledged puts."""
        view = self.view
        if self.is_lapsed():
            self._reign.lapsed()
            return
        self._reign.confirmed(view.confirmed)
        self._notify()
        reached, puts = 0, self._puts
        while (
            self._has_enough
            and puts
            and puts[0][0] <= view.confirmed
            and puts[0][1] <= view.confirmed_tables
        ):
            reached = puts.popleft()[0]
        if reached:
            self._reign.acknowledged(reached)

    def _notify(self) -> None:
        self.progressed.set()
        self.progressed = asyncio.Event()
