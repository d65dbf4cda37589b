# SPDX-License-Identifier: Apache-2.0
"""A master's work during one epoch: its copies, its confirm offset, and its writes to the record.

The rules are `cometmq.ha.in_sync` and `cometmq.ha.fencing`. Acknowledgements, appends and table
changes arrive on the loop and take effect at once. `run` writes the record, one write at a time;
the result of a write is applied to the view that is current when the answer arrives.

A put counts as acknowledged when the copies have both its bytes and every table change made before
it, so that a topic created by a send exists wherever the message does.

`is_lapsed` compares CLOCK_BOOTTIME with the lease right before answers are released, so that a
process that was suspended does not acknowledge late.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import msgspec

from cometmq.broker.copies.roles.swap import swap
from cometmq.broker.copies.streams.reports import Heard
from cometmq.ha import fencing, in_sync
from cometmq.ha.fencing import Progress, Timing
from cometmq.ha.in_sync import Leadership
from cometmq.ha.port import Answer, RecordPort, RecordUnreachable
from cometmq.ha.record import Copy, Record, RecordDamaged, Versioned
from cometmq.remoting.log import Log

RENEWALS_PER_DEADLINE: Final = 4
PAUSE_MS: Final = 200
"""Pause after a failed read or write of the record, before the record is read again."""
HAND_OVER_PAUSE_MS: Final = 5
"""Interval at which a hand-over checks whether the target has caught up."""
SILENT_FACTOR: Final = 4 / 3
"""A copy that is silent for this many times `heard_within_ms` leaves the in-sync set.

By default after 2 s: sends wait until then, and RocketMQ's producers give up after 3 s.
"""

CUT_OFF_FACTOR: Final = 1.5
"""After so many times `heard_within_ms` of silence, a master that could not remove its copies from
the set counts as cut off. A write of the record takes some milliseconds.
"""


class Reign(Protocol):
    """The calls that tell a broker about changes to the master's view."""

    def confirmed(self, offset: int) -> None:
        """Handle a new confirm offset: every copy that counts has the log up to it."""

    def acknowledged(self, offset: int) -> None:
        """Answer the puts up to this offset."""

    def in_sync_changed(self, *, has_enough: bool) -> None:
        """Handle a possible change of the in-sync set; refuse puts if it has too few members."""

    def lapsed(self) -> None:
        """Stop acknowledging, because this master's lease has lapsed."""

    def deposed(self) -> None:
        """Handle the end of the leadership: the record names a different master or epoch."""


class Leader:
    """One epoch's leadership; after `end` it has no further effect."""

    def __init__(  # noqa: PLR0913  # the collaborators, each by name
        self,
        leadership: Leadership,
        reign: Reign,
        *,
        record: RecordPort,
        timing: Timing,
        min_in_sync: int,
        is_predecessor_gone: bool,
        boottime_ms: Callable[[], int],
        log: Log,
    ) -> None:
        """Begin to lead; `record` must just have been read or written.

        `is_predecessor_gone` means that the previous master can no longer answer requests.
        """
        self._view = leadership
        self._reign = reign
        self._record = record
        self._timing = timing
        self._min_in_sync = min_in_sync
        self._is_predecessor_gone = is_predecessor_gone
        self._now_ms = boottime_ms
        self._log = log
        self._opened_ms = boottime_ms()
        self._renewed_ms = self._opened_ms
        self._heard: dict[Copy, int] = {}
        self._progress: dict[Copy, Progress] = {}
        self._dropped: set[int] = set()
        self._left: set[Copy] = set()
        self._copies: int | None = None
        self._puts: deque[tuple[int, int]] = deque()  # end of the log, table changes before it
        self._has_enough: bool | None = None
        self._wake = asyncio.Event()
        self._confirmed_more = asyncio.Event()
        self._writing = asyncio.Lock()
        self._is_ended = False
        self._valid_until_ms = self._validity_ms()  # kept: it is asked before each answer

    @property
    def view(self) -> Leadership:
        return self._view

    @property
    def heard(self) -> fencing.Heard:
        return self._heard

    def end(self) -> None:
        """Stop: nothing is confirmed or acknowledged from now on."""
        self._is_ended = True
        self._wake.set()
        self._notify()

    # Events of the loop

    def open(self) -> None:
        """Report the first view; call this once, when the broker is ready for it."""
        self._note_set()
        self._release()

    def appended(self, end: int, tables: int) -> None:
        """Note the end of the log, and how many table changes of this epoch precede it."""
        if self._is_ended:
            return
        view = self._view
        if tables > view.tables:
            view = in_sync.tables_changed(view, tables)
        if end > view.end:
            view = in_sync.appended(view, end)
            self._puts.append((end, tables))
        self._advance(view)

    def note_heard(self, reports: Sequence[Heard]) -> None:
        """Apply one turn's reports from the copies; none exceeds this master's log or tables."""
        if self._is_ended:
            return
        now_ms, view = self._now_ms(), self._view
        for ack, sent_ms in reports:
            if not in_sync.is_current(view, ack):
                continue
            view = in_sync.acked(view, ack)
            self._left.discard(ack.copy)
            self._heard[ack.copy] = max(sent_ms, self._heard.get(ack.copy, fencing.NEVER))
            before = self._progress.get(ack.copy)
            self._progress[ack.copy] = fencing.progressed(before, ack, view.end, now_ms)
        self._valid_until_ms = self._validity_ms()
        self._advance(view)

    def note_left(self, copy: Copy) -> None:
        """Remove a stopping broker's copy from the in-sync set at once; it may return later."""
        self._left.add(copy)
        self._wake.set()

    def drop(self, ordinal: int) -> None:
        """Keep a broker out of the in-sync set."""
        self._dropped.add(ordinal)
        self._wake.set()

    def resize(self, copies: int) -> None:
        """Store a new number of copies with the next write of the record."""
        self._copies = copies
        self._wake.set()

    def record_seen(self, found: Versioned | None) -> None:
        """Read the record if a watch shows a version that this master did not write."""
        if found is not None and not self._writing.locked() and self._is_news(found):
            self._view = msgspec.structs.replace(self._view, must_read=True)
            self._wake.set()

    def _is_news(self, found: Versioned) -> bool:
        return found.version != self._view.base.version

    def tick(self) -> None:
        """Report the lease if it has lapsed; start a write if one is due."""
        if self._is_ended:
            return
        if self.is_lapsed():
            self._reign.lapsed()
        elif in_sync.wants_write(self._view, self._unfit()):
            self._wake.set()

    # Permission to answer

    def is_lapsed(self) -> bool:
        """Return whether this master must stop acknowledging."""
        return self._is_ended or self._now_ms() >= self._valid_until_ms

    def is_cut_off(self) -> bool:
        """Return whether all other members have been silent for so long that they should have left
        the in-sync set, but the record could not be written.

        An elector is probably replacing this master, which cannot acknowledge anything.
        """
        others = set(in_sync.maximal_set(self._view)) - {self._view.me}
        return (
            not self._is_ended
            and bool(others)
            and not any(self._is_heard_within(copy, CUT_OFF_FACTOR) for copy in others)
        )

    def may_read(self) -> bool:
        """Return whether consumers may see the ends of queues (R6)."""
        return not self._is_ended and in_sync.may_read(self._view, self._view.confirmed)

    def may_answer_unlogged(self) -> bool:
        """Return whether locks and offset commits may be answered (decision 8)."""
        return not self.is_lapsed() and fencing.may_answer_unlogged(
            self._view,
            self._now_ms(),
            heard=self._heard,
            opened_ms=self._opened_ms,
            timing=self._timing,
            is_predecessor_gone=self._is_predecessor_gone,
        )

    def copies(self) -> tuple[int, ...]:
        """Return the brokers whose copies are certain to be in sync, this one included."""
        unfit = self._unfit()
        members = in_sync.certain_set(self._view)
        return tuple(sorted(copy.ordinal for copy in members if copy not in unfit))

    def has_successor(self) -> bool:
        """Return whether another copy is certain to be in sync, so that it can take over."""
        return len(in_sync.certain_set(self._view)) > 1

    def has_enough_copies(self) -> bool:
        """Return whether `minInSync` copies are certain to be in sync (R8)."""
        return in_sync.may_acknowledge(self._view, self._min_in_sync)

    def copy_count(self) -> int:
        """Return the number of copies that the record asks for."""
        return self._view.base.record.copies

    def has_confirmed_tables(self, tables: int) -> bool:
        """Return whether every copy that counts has this many table changes of the epoch."""
        return self._view.confirmed_tables >= tables

    async def progress(self) -> None:
        """Wait until more is confirmed, or the leadership has ended."""
        await self._confirmed_more.wait()

    def has_ended(self) -> bool:
        """Return whether this broker no longer leads."""
        return self._is_ended

    def _adopt(self, view: Leadership) -> None:
        """Adopt a view whose record or sets may differ."""
        before, self._view = self._view, view
        self._valid_until_ms = self._validity_ms()
        self._note_set()
        self._release_more(before)

    def _advance(self, view: Leadership) -> None:
        """Adopt a view with the same record and sets, once or twice per batch of messages."""
        before, self._view = self._view, view
        self._release_more(before)

    def _release_more(self, before: Leadership) -> None:
        view = self._view
        if (view.confirmed, view.confirmed_tables) != (before.confirmed, before.confirmed_tables):
            self._release()

    def _validity_ms(self) -> int:
        return fencing.valid_until_ms(
            self._view, renewed_ms=self._renewed_ms, heard=self._heard, timing=self._timing
        )

    def _note_set(self) -> None:
        has_enough = self.has_enough_copies()
        if has_enough is not self._has_enough:
            self._has_enough = has_enough
            self._reign.in_sync_changed(has_enough=has_enough)
            if has_enough:
                self._release()

    def _release(self) -> None:
        """Make confirmed messages visible to readers, and answer acknowledged puts."""
        view = self._view
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
        self._confirmed_more.set()
        self._confirmed_more = asyncio.Event()

    # The record

    def _unfit(self) -> frozenset[Copy]:
        """Return the members that are late, silent, stopping, dropped or on a different store."""
        view, now_ms = self._view, self._now_ms()
        acked = {ack.copy.ordinal: ack.copy for ack in view.acks}
        copies = {*in_sync.maximal_set(view), *acked.values()} - {view.me}
        return fencing.laggards(
            view, self._progress, now_ms, opened_ms=self._opened_ms, timing=self._timing
        ) | {
            copy
            for copy in copies
            if copy.ordinal in self._dropped
            or copy in self._left
            or not self._is_heard_within(copy, SILENT_FACTOR)
            or acked.get(copy.ordinal, copy) != copy
        }

    def _is_heard_within(self, copy: Copy, factor: float) -> bool:
        """Return whether a copy was heard within so many times `heard_within_ms`."""
        since_ms = self._now_ms() - int(factor * self._timing.heard_within_ms)
        # A first report contains no time, because its copy has received nothing yet.
        return max(self._heard.get(copy, 0), self._opened_ms) >= since_ms

    async def run(self) -> None:
        """Renew the record, update its in-sync set, and read it when the rules require that."""
        interval_ms = self._timing.renew_deadline_ms // RENEWALS_PER_DEADLINE
        while not self.has_ended():
            self._wake.clear()
            is_settled = await self._write_once()
            if self.has_ended():
                return
            wait_ms = interval_ms if is_settled else PAUSE_MS
            try:
                async with asyncio.timeout(wait_ms / 1000):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def _write_once(self) -> bool:
        """Write the record if necessary, reading it first if required; return False if the call
        must be repeated soon.
        """
        async with self._writing:
            if self._view.must_read and not await self._read():
                return False
            unfit = self._unfit()
            record = in_sync.proposal(self._view, unfit, copies=self._copies)
            if self.has_ended() or record is None:
                return self.has_ended()
            base, began_ms = self._view.base, self._now_ms()
            self._adopt(in_sync.written(self._view, record))
            outcome = await swap(self._record, base, record)
            if self.has_ended():
                return True
            before = base.record.in_sync
            if outcome.answer is Answer.APPLIED:
                self._renewed_ms = began_ms
            self._adopt(in_sync.answered(self._view, outcome))
            if outcome.answer is Answer.APPLIED and record.in_sync != before:
                self._log.info(
                        "in_sync.changed", epoch=record.epoch,
                        brokers=[copy.ordinal for copy in record.in_sync],
                        before=[copy.ordinal for copy in before],
                    )  # fmt: skip
            return outcome.answer is Answer.APPLIED and not self._view.must_read

    async def _read(self) -> bool:
        """Read the record; return whether this master may base a write on it."""
        try:
            found = await self._record.read()
        except (RecordUnreachable, RecordDamaged):
            return False
        if self.has_ended():
            return False
        if found is not None and in_sync.is_deposed(self._view, found):
            self._reign.deposed()
            return False
        self._adopt(in_sync.found(self._view, found))
        return not self._view.must_read

    # Hand-over

    async def hand_over(
        self, target: int, *, leaves: bool, deadline_ms: int, is_ready: Callable[[], bool]
    ) -> tuple[Answer, int] | None:
        """Write the record that makes a caught-up member master; return None if nothing was
        written.

        The caller has stopped appending. Waiting puts are answered while the target catches up, and
        `is_ready` returns whether all have been answered and the target has caught up.
        """
        while not self.has_ended():
            progress = self._confirmed_more
            async with self._writing:
                record = self._successor(target, leaves=leaves) if is_ready() else None
                if record is not None and not self.is_lapsed():
                    base = self._view.base
                    self._adopt(in_sync.written(self._view, record))
                    outcome = await swap(self._record, base, record)
                    if outcome.answer is not Answer.APPLIED and not self.has_ended():
                        self._view = in_sync.answered(self._view, outcome)
                        self._wake.set()
                    return outcome.answer, record.epoch
            left_ms = deadline_ms - self._now_ms()
            if left_ms <= 0:
                return None
            try:
                async with asyncio.timeout(min(left_ms, HAND_OVER_PAUSE_MS) / 1000):
                    await progress.wait()
            except TimeoutError:
                continue
        return None

    def _successor(self, target: int, *, leaves: bool) -> Record | None:
        copy = self._view.base.record.member(target)
        if copy is None:
            return None
        return in_sync.hand_over(self._view, copy, leaves=leaves)
