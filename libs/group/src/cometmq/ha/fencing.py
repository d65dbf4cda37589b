# SPDX-License-Identifier: Apache-2.0
"""How long a master may acknowledge, and which copies lag too far behind (pure).

All times are milliseconds of CLOCK_BOOTTIME, which continues while the host sleeps; clocks of
different hosts are never compared. The broker calls `is_lapsed` right before it writes answers, so
that a suspended process cannot acknowledge late, and calls `laggards` before each proposal.

As long as the set has two members, the confirm offset alone prevents two masters from both
acknowledging. The clock matters only for a master that is alone in its set, and for elections that
an operator forces.
"""

from collections.abc import Mapping
from typing import Self

import msgspec

from cometmq.ha import in_sync
from cometmq.ha.in_sync import Ack, Leadership
from cometmq.ha.record import Copy
from cometmq.remoting.errors import SettingsError

NEVER = -(1 << 62)


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """Intervals in milliseconds."""

    renew_deadline_ms: int = 6_000
    """A master whose last renewal is older fences itself if its copies are silent, too."""
    lease_duration_ms: int = 8_000
    """How long the elector waits after the last change to the record: 1.3 deadlines for slow
    clocks.
    """
    heard_within_ms: int = 1_500
    """A copy that was heard from within this time is certain to follow this master."""
    lag_timeout_ms: int = 10_000
    """A copy that has not caught up for this long leaves the set."""

    @classmethod
    def renewed_within(cls, deadline_ms: int, **intervals_ms: int) -> Self:
        """Return the intervals for a renew deadline, with the shortest lease that is safe."""
        lease_ms = deadline_ms + deadline_ms * 3 // 10 + 1  # 1.3 times, rounded up
        return cls(renew_deadline_ms=deadline_ms, lease_duration_ms=lease_ms, **intervals_ms)

    def __post_init__(self) -> None:
        if self.lease_duration_ms < 1.3 * self.renew_deadline_ms:
            raise SettingsError(
                f"a lease of {self.lease_duration_ms} ms is too short for a renew deadline of"
                f" {self.renew_deadline_ms} ms: it needs 1.3 times as much"
            )


Heard = Mapping[Copy, int]
"""When each copy was last heard from in this epoch, by acknowledgement or heartbeat."""


def valid_until_ms(leadership: Leadership, *, renewed_ms: int, heard: Heard, timing: Timing) -> int:
    """Return the time until which the master may acknowledge.

    `renewed_ms` is the *start* of the last applied write. A master whose copies all answer may
    continue without the record: none of them has promised a different epoch.
    """
    return max(
        renewed_ms + timing.renew_deadline_ms,
        heard_by_all_ms(leadership, heard) + timing.heard_within_ms,
    )


def is_lapsed(
    leadership: Leadership, now_ms: int, *, renewed_ms: int, heard: Heard, timing: Timing
) -> bool:
    """Return whether the master must stop acknowledging and fence itself."""
    until = valid_until_ms(leadership, renewed_ms=renewed_ms, heard=heard, timing=timing)
    return now_ms >= until


def may_answer_unlogged(
    leadership: Leadership,
    now_ms: int,
    *,
    heard: Heard,
    opened_ms: int,
    timing: Timing,
    is_predecessor_gone: bool,
) -> bool:
    """Return whether queue locks and offset commits may be answered (decision 8).

    Every copy that could elect another master must have been heard recently, and the previous
    master must have stopped: at once if it is dead, fenced or handed over, otherwise 1.1 intervals
    after this one opened. A master alone in its set relies on its lease.
    """
    if not is_predecessor_gone and now_ms < opened_ms + 11 * timing.heard_within_ms // 10:
        return False
    if len(in_sync.maximal_set(leadership)) == 1:
        return True
    return now_ms < heard_by_all_ms(leadership, heard) + timing.heard_within_ms


def heard_by_all_ms(leadership: Leadership, heard: Heard) -> int:
    """Return since when the master has heard from every copy that an election needs, or NEVER."""
    if len(in_sync.certain_set(leadership)) < 2:
        return NEVER
    others = (copy for copy in in_sync.maximal_set(leadership) if copy != leadership.me)
    return min((heard.get(copy, NEVER) for copy in others), default=NEVER)


class Progress(msgspec.Struct, frozen=True):
    """The time at which a copy last had all of its master's log."""

    caught_up_ms: int
    """When the copy last had all of the master's log."""
    mark_end: int
    """The end of the master's log at `mark_ms`."""
    mark_ms: int


def progressed(progress: Progress | None, ack: Ack, end: int, now_ms: int) -> Progress:
    """Return a copy's progress after a report, for a master whose log ends at `end`.

    Under load, a copy that has all that the master had at its previous report had caught up then.
    """
    if progress is None:
        return Progress(now_ms, end, now_ms)
    caught_up_ms = progress.caught_up_ms
    if ack.offset >= end:
        caught_up_ms = now_ms
    elif ack.offset >= progress.mark_end:
        caught_up_ms = progress.mark_ms
    else:
        return progress
    return Progress(caught_up_ms, end, now_ms)


def laggards(
    leadership: Leadership,
    progress: Mapping[Copy, Progress],
    now_ms: int,
    *,
    opened_ms: int,
    timing: Timing,
) -> frozenset[Copy]:
    """Return the members of the set that have not caught up in time, counted from the opening."""
    return frozenset(
        copy
        for copy in leadership.base.record.in_sync
        if copy != leadership.me
        and now_ms - (progress[copy].caught_up_ms if copy in progress else opened_ms)
        > timing.lag_timeout_ms
    )
