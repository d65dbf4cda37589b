# SPDX-License-Identifier: Apache-2.0
"""Which copies report to their master, and until when the master may acknowledge messages.

The rules are in `cometmq.ha.fencing`. All times are those of CLOCK_BOOTTIME, so that a process that
was suspended does not acknowledge late.
"""

from collections.abc import Callable
from typing import Final

from cometmq.ha import fencing, in_sync
from cometmq.ha.fencing import Progress, Timing
from cometmq.ha.in_sync import Ack, Leadership
from cometmq.ha.record import Copy

SILENT_FACTOR: Final = 4 / 3
"""A copy that is silent for this many times `heard_within_ms` leaves the in-sync set. By default
this is 2 s. Sends wait until then, and RocketMQ's producers give up after 3 s.
"""

CUT_OFF_FACTOR: Final = 1.5
"""A master counts as cut off if all copies in the in-sync set are silent for this many times
`heard_within_ms`. It has tried to remove them since SILENT_FACTOR, which takes milliseconds if the
record can be written.
"""


class Attendance:
    """When a master last heard from each copy, and last renewed the record, in one epoch."""

    def __init__(
        self, timing: Timing, now_ms: Callable[[], int], *, is_predecessor_gone: bool
    ) -> None:
        """`is_predecessor_gone` means that the previous master can no longer answer requests."""
        self.timing = timing
        self.now_ms = now_ms
        self.renewed_ms = self._opened_ms = now_ms()
        self.valid_until_ms = 0
        """When this master must stop acknowledging. It is cached, because each answer needs it."""
        self.heard: dict[Copy, int] = {}
        self._is_predecessor_gone = is_predecessor_gone
        self._progress: dict[Copy, Progress] = {}
        self._dropped: set[int] = set()
        self._left: set[Copy] = set()

    def note(self, ack: Ack, sent_ms: int, end: int, now_ms: int) -> None:
        """Note a report of a copy; `end` is the end of this master's log."""
        copy = ack.copy
        self._left.discard(copy)
        self.heard[copy] = max(sent_ms, self.heard.get(copy, fencing.NEVER))
        self._progress[copy] = fencing.progressed(self._progress.get(copy), ack, end, now_ms)

    def extend(self, view: Leadership) -> None:
        """Compute `valid_until_ms` again, after a report or a new version of the record."""
        self.valid_until_ms = fencing.valid_until_ms(
            view, renewed_ms=self.renewed_ms, heard=self.heard, timing=self.timing
        )

    def leave(self, copy: Copy) -> None:
        """Count a copy as unfit until it reports again, because its broker is stopping."""
        self._left.add(copy)

    def drop(self, ordinal: int) -> None:
        """Count all copies of a broker as unfit from now on."""
        self._dropped.add(ordinal)

    def unfit(self, view: Leadership) -> frozenset[Copy]:
        """Return the copies that should leave the in-sync set: those that are late, silent,
        stopping, dropped, or replaced by a copy with another store.
        """
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

    def is_cut_off(self, view: Leadership) -> bool:
        """Return whether all other members that may be in the in-sync set have been silent for so
        long that this master would have removed them if it could write the record.

        Such a master cannot acknowledge anything, and an elector is probably replacing it.
        """
        others = set(in_sync.maximal_set(view)) - {view.me}
        return bool(others) and not any(
            self._is_heard_within(copy, CUT_OFF_FACTOR) for copy in others
        )

    def may_answer_unlogged(self, view: Leadership) -> bool:
        """Return whether locks and offset commits may be answered (decision 8)."""
        return fencing.may_answer_unlogged(
            view,
            self.now_ms(),
            heard=self.heard,
            opened_ms=self._opened_ms,
            timing=self.timing,
            is_predecessor_gone=self._is_predecessor_gone,
        )

    def _is_heard_within(self, copy: Copy, factor: float) -> bool:
        """Return whether a copy was heard within this multiple of `heard_within_ms`."""
        since_ms = self.now_ms() - int(factor * self.timing.heard_within_ms)
        # A first report contains no time, because its copy has received nothing yet.
        return max(self.heard.get(copy, 0), self._opened_ms) >= since_ms
