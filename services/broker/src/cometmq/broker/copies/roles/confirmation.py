# SPDX-License-Identifier: Apache-2.0
"""What the copies of a master have confirmed in one epoch, which copies report, and until when
the master may acknowledge messages.

The rules are in `cometmq.ha.in_sync` and `cometmq.ha.fencing`. Reports, appends and table changes
arrive on the loop and take effect at once. All times are those of CLOCK_BOOTTIME, so that a process
that was suspended does not acknowledge late.

A put is acknowledged when the copies have both its bytes and every table change made before it, so
that a topic created by a send exists wherever the message does.
"""

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from cometmq.broker.copies.streams.follower_stream import Heard
from cometmq.ha import fencing, in_sync
from cometmq.ha.fencing import Progress, Timing
from cometmq.ha.in_sync import Leadership
from cometmq.ha.record import Copy

SILENT_FACTOR: Final = 4 / 3
"""A copy that is silent for so many `heard_within_ms` (2 s) leaves the in-sync set; producers give
up after 3 s.
"""

CUT_OFF_FACTOR: Final = 1.5
"""A master counts as cut off if all its copies are silent for so many `heard_within_ms`: since
SILENT_FACTOR, it would have removed them if it could write the record.
"""


class Confirmation(ABC):
    """A master's view of its copies, whose reports it gets; without effect after `end`."""

    def __init__(
        self,
        view: Leadership,
        *,
        timing: Timing,
        now_ms: Callable[[], int],
        min_in_sync: int,
    ) -> None:
        """Begin to lead; the record of `view` must just have been read or written."""
        self.view = view
        self.timing = timing
        self.now_ms = now_ms
        self.renewed_ms = self._opened_ms = now_ms()
        self.write_wanted = asyncio.Event()
        """Set when the record should be written or read again (`record_writer.py`)."""
        self.progressed = asyncio.Event()
        """Set, and replaced, when more is confirmed or the leadership has ended."""
        self.heard_ms: dict[Copy, int] = {}
        # a deposed holder may still answer requests
        self._is_predecessor_gone = view.base.record.deposed is None
        self._progress: dict[Copy, Progress] = {}
        self._dropped: set[int] = set()
        self._left: set[Copy] = set()
        self._min_in_sync = min_in_sync
        self._puts: deque[tuple[int, int]] = deque()  # end of the log, table changes before it
        self._has_enough: bool | None = None
        self._is_ended = False
        self._valid_until_ms = 0  # a cache: each answer needs it
        self._extend(view)

    @abstractmethod
    def confirmed(self, offset: int) -> None:
        """Handle a new confirm offset: every copy in the in-sync set has the log up to it."""

    @abstractmethod
    def acknowledged(self, offset: int) -> None: ...

    @abstractmethod
    def in_sync_changed(self, *, has_enough: bool) -> None:
        """Handle a change of whether the in-sync set has enough members; refuse puts if not."""

    @abstractmethod
    def lapsed(self) -> None:
        """Stop acknowledging, because this master's lease has lapsed."""

    def end(self) -> None:
        self._is_ended = True
        self.write_wanted.set()
        self._notify()

    def open(self) -> None:
        """Handle the first view; call this once, when the broker is ready for it."""
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
        view, now_ms = self.view, self.now_ms()
        for ack, sent_ms in reports:
            if in_sync.is_current(view, ack):
                view, copy = in_sync.acked(view, ack), ack.copy
                self._left.discard(copy)
                self.heard_ms[copy] = max(sent_ms, self.heard_ms.get(copy, fencing.NEVER))
                before = self._progress.get(copy)
                self._progress[copy] = fencing.progressed(before, ack, view.end, now_ms)
        self._extend(self.view)
        self._advance(view)

    def left(self, copy: Copy) -> None:
        """Remove a stopping broker's copy from the in-sync set at once, until it reports again."""
        self._left.add(copy)
        self.write_wanted.set()

    def drop(self, ordinal: int) -> None:
        self._dropped.add(ordinal)
        self.write_wanted.set()

    def tick(self) -> None:
        """Call `lapsed` if the lease has lapsed; request a write of the record if one is due."""
        if self._is_ended:
            return
        if self.is_lapsed():
            self.lapsed()
        elif in_sync.wants_write(self.view, self.unfit()):
            self.write_wanted.set()

    # Copies

    def unfit(self) -> frozenset[Copy]:
        """Return the copies to leave the set: late, silent, stopping, dropped, replaced."""
        view = self.view
        acked = {ack.copy.ordinal: ack.copy for ack in view.acks}
        copies = {*in_sync.maximal_set(view), *acked.values()} - {view.me}
        return fencing.laggards(
            view, self._progress, self.now_ms(), opened_ms=self._opened_ms, timing=self.timing
        ) | {
            copy
            for copy in copies
            if copy.ordinal in self._dropped
            or copy in self._left
            or not self._is_heard_within(copy, SILENT_FACTOR)
            or acked.get(copy.ordinal, copy) != copy
        }

    def is_cut_off(self) -> bool:
        """Return whether all copies are silent, and this master failed to remove them.

        It cannot acknowledge anything, and an elector is probably replacing it.
        """
        others = set(in_sync.maximal_set(self.view)) - {self.view.me}
        is_heard = any(self._is_heard_within(copy, CUT_OFF_FACTOR) for copy in others)
        return bool(others) and not is_heard and not self._is_ended

    def copies(self) -> tuple[int, ...]:
        """Return the brokers whose copies are certain to be in sync, this one included."""
        unfit, members = self.unfit(), in_sync.certain_set(self.view)
        return tuple(sorted(copy.ordinal for copy in members if copy not in unfit))

    def has_successor(self) -> bool:
        return len(in_sync.certain_set(self.view)) > 1

    def has_enough_copies(self) -> bool:
        """Return whether `minInSync` copies are certain to be in sync (R8)."""
        return in_sync.may_acknowledge(self.view, self._min_in_sync)

    def copy_count(self) -> int:
        return self.view.base.record.copies

    def _is_heard_within(self, copy: Copy, factor: float) -> bool:
        """Return whether a copy was heard within this multiple of `heard_within_ms`."""
        since_ms = self.now_ms() - int(factor * self.timing.heard_within_ms)
        # A first report contains no time, because its copy has received nothing yet.
        return max(self.heard_ms.get(copy, 0), self._opened_ms) >= since_ms

    # Permission to answer

    def is_lapsed(self) -> bool:
        return self._is_ended or self.now_ms() >= self._valid_until_ms

    def may_read(self) -> bool:
        return not self._is_ended and in_sync.may_read(self.view, self.view.confirmed)

    def may_answer_unlogged(self) -> bool:
        return not self.is_lapsed() and fencing.may_answer_unlogged(
            self.view,
            self.now_ms(),
            heard=self.heard_ms,
            opened_ms=self._opened_ms,
            timing=self.timing,
            is_predecessor_gone=self._is_predecessor_gone,
        )

    def has_confirmed_tables(self, tables: int) -> bool:
        return self.view.confirmed_tables >= tables

    async def progress(self) -> None:
        """Wait until more is confirmed, or the leadership has ended."""
        await self.progressed.wait()

    def has_ended(self) -> bool:
        return self._is_ended

    def adopt(self, view: Leadership) -> None:
        """Adopt a view whose record or in-sync sets may differ from the current ones."""
        self._extend(view)
        before, self.view = self.view, view
        self._note_set()
        self._release_more(before)

    def _extend(self, view: Leadership) -> None:
        """Extend the lease, after a report or a new version of the record."""
        self._valid_until_ms = fencing.valid_until_ms(
            view, renewed_ms=self.renewed_ms, heard=self.heard_ms, timing=self.timing
        )

    def _advance(self, view: Leadership) -> None:
        """Adopt a view with the same record and sets, once or twice per batch of messages."""
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
            self.in_sync_changed(has_enough=has_enough)
            if has_enough:
                self._release()

    def _release(self) -> None:
        """Make confirmed messages visible to readers, and answer acknowledged puts."""
        view = self.view
        if self.is_lapsed():
            self.lapsed()
            return
        self.confirmed(view.confirmed)
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
            self.acknowledged(reached)

    def _notify(self) -> None:
        self.progressed.set()
        self.progressed = asyncio.Event()
