# SPDX-License-Identifier: Apache-2.0
"""What the copies of a master have confirmed in one epoch, which copies report, until when the
master may acknowledge messages, and the record of all this.

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
from typing import Final, TypedDict, Unpack

import msgspec

from cometmq.broker.copies.streams.follower_stream import Heard
from cometmq.ha import fencing, in_sync
from cometmq.ha.fencing import Progress, Timing
from cometmq.ha.in_sync import Ack, Leadership
from cometmq.ha.port import UNKNOWN, Answer, Outcome, RecordPort, RecordUnreachable
from cometmq.ha.record import Copy, Record, RecordDamaged, Versioned
from cometmq.remoting.log import Log

SILENT_FACTOR: Final = 4 / 3
"""A copy that is silent for so many `heard_within_ms` (2 s) leaves the in-sync set; producers give
up after 3 s.
"""

CUT_OFF_FACTOR: Final = 1.5
"""A master counts as cut off if all its copies are silent for so many `heard_within_ms`: since
SILENT_FACTOR, it would have removed them if it could write the record.
"""

RENEWALS_PER_DEADLINE: Final = 4
PAUSE_MS: Final = 200
HAND_OVER_PAUSE_MS: Final = 5


async def swap(port: RecordPort, base: Versioned, record: Record) -> Outcome:
    """Replace the record if it is still `base`; with a damaged record, the outcome is unknown."""
    try:
        return await port.replace(base, record)
    except RecordDamaged:
        return UNKNOWN


class Options(TypedDict):
    """See `Attendance`."""

    timing: Timing
    now_ms: Callable[[], int]
    min_in_sync: int


class Attendance:
    """When a master last heard from each copy, and last renewed the record, in one epoch."""

    def __init__(
        self, view: Leadership, *, timing: Timing, now_ms: Callable[[], int], min_in_sync: int
    ) -> None:
        """Begin to lead; the record of `view` must just have been read or written."""
        self.view = view
        self.timing = timing
        self.now_ms = now_ms
        self.renewed_ms = self._opened_ms = now_ms()
        self.write_wanted = asyncio.Event()
        """Set when the record should be written or read again."""
        self.heard_ms: dict[Copy, int] = {}
        # a deposed holder may still answer requests
        self._is_predecessor_gone = view.base.record.deposed is None
        self._progress: dict[Copy, Progress] = {}
        self._dropped: set[int] = set()
        self._left: set[Copy] = set()
        self._min_in_sync = min_in_sync
        self._is_ended = False
        self._valid_until_ms = 0  # a cache: each answer needs it
        self._extend(view)

    def has_ended(self) -> bool:
        return self._is_ended

    def left(self, copy: Copy) -> None:
        """Remove a stopping broker's copy from the in-sync set at once, until it reports again."""
        self._left.add(copy)
        self.write_wanted.set()

    def drop(self, ordinal: int) -> None:
        self._dropped.add(ordinal)
        self.write_wanted.set()

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

    def is_lapsed(self) -> bool:
        return self._is_ended or self.now_ms() >= self._valid_until_ms

    def may_answer_unlogged(self) -> bool:
        return not self.is_lapsed() and fencing.may_answer_unlogged(
            self.view,
            self.now_ms(),
            heard=self.heard_ms,
            opened_ms=self._opened_ms,
            timing=self.timing,
            is_predecessor_gone=self._is_predecessor_gone,
        )

    def _note_report(self, ack: Ack, sent_ms: int, end: int) -> None:
        copy, now_ms = ack.copy, self.now_ms()
        self._left.discard(copy)
        self.heard_ms[copy] = max(sent_ms, self.heard_ms.get(copy, fencing.NEVER))
        self._progress[copy] = fencing.progressed(self._progress.get(copy), ack, end, now_ms)

    def _extend(self, view: Leadership) -> None:
        """Extend the lease, after a report or a new version of the record."""
        self._valid_until_ms = fencing.valid_until_ms(
            view, renewed_ms=self.renewed_ms, heard=self.heard_ms, timing=self.timing
        )


class Confirmation(Attendance, ABC):
    """A master's view of its copies, whose reports it gets; without effect after `end`."""

    def __init__(self, view: Leadership, **options: Unpack[Options]) -> None:
        super().__init__(view, **options)
        self.progressed = asyncio.Event()
        """Set, and replaced, when more is confirmed or the leadership has ended."""
        self._puts: deque[tuple[int, int]] = deque()  # end of the log, table changes before it
        self._has_enough: bool | None = None

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
        view = self.view
        for ack, sent_ms in reports:
            if in_sync.is_current(view, ack):
                view = in_sync.acked(view, ack)
                self._note_report(ack, sent_ms, view.end)
        self._extend(self.view)
        self._advance(view)

    def tick(self) -> None:
        """Call `lapsed` if the lease has lapsed; request a write of the record if one is due."""
        if self._is_ended:
            return
        if self.is_lapsed():
            self.lapsed()
        elif in_sync.wants_write(self.view, self.unfit()):
            self.write_wanted.set()

    # Permission to answer

    def may_read(self) -> bool:
        return not self._is_ended and in_sync.may_read(self.view, self.view.confirmed)

    def has_confirmed_tables(self, tables: int) -> bool:
        return self.view.confirmed_tables >= tables

    async def progress(self) -> None:
        """Wait until more is confirmed, or the leadership has ended."""
        await self.progressed.wait()

    def adopt(self, view: Leadership) -> None:
        """Adopt a view whose record or in-sync sets may differ from the current ones."""
        self._extend(view)
        before, self.view = self.view, view
        self._note_set()
        self._release_more(before)

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


class Reign(Confirmation):
    """Keeps the record up to date; the result of a write is applied to the view of that time."""

    def __init__(
        self, view: Leadership, *, record: RecordPort, log: Log, **options: Unpack[Options]
    ) -> None:
        super().__init__(view, **options)
        self._record = record
        self._log = log
        self._writing = asyncio.Lock()
        self._copies: int | None = None

    @abstractmethod
    def deposed(self) -> None:
        """Handle a record that names a different master or epoch."""

    def resize(self, copies: int) -> None:
        self._copies = copies
        self.write_wanted.set()

    def record_seen(self, found: Versioned | None) -> None:
        is_news = found is not None and found.version != self.view.base.version
        if is_news and not self._is_ended and not self._writing.locked():
            self.view = msgspec.structs.replace(self.view, must_read=True)
            self.write_wanted.set()

    async def keep_record(self) -> None:
        """Renew the record, update its in-sync set, and read it when the rules require that."""
        interval_ms = self.timing.renew_deadline_ms // RENEWALS_PER_DEADLINE
        while not self.has_ended():
            self.write_wanted.clear()
            is_settled = await self._write_once()
            if self.has_ended():
                return
            wait_ms = interval_ms if is_settled else PAUSE_MS
            try:
                async with asyncio.timeout(wait_ms / 1000):
                    await self.write_wanted.wait()
            except TimeoutError:
                continue

    async def _write_once(self) -> bool:
        """Read if required, write if necessary; return False if that must soon be tried again."""
        async with self._writing:
            if self.view.must_read and not await self._read():
                return False
            unfit = self.unfit()
            record = in_sync.proposal(self.view, unfit, copies=self._copies)
            if self.has_ended() or record is None:
                return self.has_ended()
            base, began_ms = self.view.base, self.now_ms()
            self.adopt(in_sync.written(self.view, record))
            outcome = await swap(self._record, base, record)
            if self.has_ended():
                return True
            before = base.record.in_sync
            if outcome.answer is Answer.APPLIED:
                self.renewed_ms = began_ms
            self.adopt(in_sync.answered(self.view, outcome))
            if outcome.answer is Answer.APPLIED and record.in_sync != before:
                self._log.info(
                    "in_sync.changed", epoch=record.epoch,
                    brokers=[copy.ordinal for copy in record.in_sync],
                    before=[copy.ordinal for copy in before],
                )  # fmt: skip
            return outcome.answer is Answer.APPLIED and not self.view.must_read

    async def _read(self) -> bool:
        """Read the record; return whether this master may base a write on it."""
        try:
            found = await self._record.read()
        except (RecordUnreachable, RecordDamaged):
            return False
        if self.has_ended():
            return False
        if found is not None and in_sync.is_deposed(self.view, found):
            self.deposed()
            return False
        self.adopt(in_sync.found(self.view, found))
        return not self.view.must_read

    async def write_successor(
        self, target: int, *, leaves: bool, deadline_ms: int, is_ready: Callable[[], bool]
    ) -> tuple[Answer, int] | None:
        """Write the record that makes a caught-up member master; return None if nothing was
        written.

        The caller has stopped appending; `is_ready` returns whether all puts have been answered and
        the target is connected.
        """
        while not self.has_ended():
            progressed = self.progressed
            async with self._writing:
                record = self._successor(target, leaves=leaves) if is_ready() else None
                if record is not None and not self.is_lapsed():
                    base = self.view.base
                    self.adopt(in_sync.written(self.view, record))
                    outcome = await swap(self._record, base, record)
                    if outcome.answer is not Answer.APPLIED and not self.has_ended():
                        self.view = in_sync.answered(self.view, outcome)
                        self.write_wanted.set()
                    return outcome.answer, record.epoch
            left_ms = deadline_ms - self.now_ms()
            if left_ms <= 0:
                return None
            try:
                async with asyncio.timeout(min(left_ms, HAND_OVER_PAUSE_MS) / 1000):
                    await progressed.wait()
            except TimeoutError:
                continue
        return None

    def _successor(self, target: int, *, leaves: bool) -> Record | None:
        view = self.view
        copy = view.base.record.member(target)
        return None if copy is None else in_sync.hand_over(view, copy, leaves=leaves)
