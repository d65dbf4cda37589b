# SPDX-License-Identifier: Apache-2.0
"""What reaches a member of a broker group: its events in order, and its state after the last one.

It is built before the member that handles the events, so that streams and requests can report to
it. Epochs that others mention are checked against the record first (`epoch_claims.py`).
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from cometmq.broker.copies.roles.epoch_claims import EpochClaims
from cometmq.ha import member as rules
from cometmq.ha.epochs import HistoryUnsaved
from cometmq.ha.member import Member
from cometmq.ha.record import Copy, Record, Versioned
from cometmq.remoting.log import Log
from cometmq.remoting.transport.tasks import describe

FREE_SPACE: Final = "free space on the disk: this broker then takes part again"

Sleep = Callable[[float], Awaitable[object]]


class Read(NamedTuple):
    """An answer to a read of the record, and the state in which the read began."""

    began: Member
    found: Versioned | None


class Seen(NamedTuple):
    """A fact in the record that the state file lacks."""

    record: Record


class Retry(NamedTuple):
    """A request to retry saving the state, which did not fit on the disk."""


class Job(NamedTuple):
    event: rules.Event | Read | Seen | Retry
    done: asyncio.Future[None] | None = None


class Inbox:
    """Events for one member; only the member takes them out and replaces its state."""

    def __init__(self, me: Copy, promised: int, *, log: Log, sleep: Sleep = asyncio.sleep) -> None:
        self.member = Member(me=me, promised=promised)
        """The state after the last event, whose actions may still be in progress."""
        self.jobs: asyncio.Queue[Job] = asyncio.Queue()
        self.is_read_wanted = asyncio.Event()
        self.is_full = asyncio.Event()
        """The disk has no room for the state or the history; the member waits until it has."""
        self.can_recover = True
        self.recorded_epoch = 0
        self.claims = EpochClaims(
            check=lambda epoch: self.observe(rules.EpochSeen(epoch)),
            recorded=lambda: max(self.recorded_epoch, self.member.promised),
            log=log,
            sleep=sleep,
        )
        self.sleep = sleep
        self._log = log

    def observe(self, event: rules.Observation | Read | Seen | Retry) -> None:
        """Queue an event."""
        if isinstance(event, rules.StoreFailed):
            self.can_recover = False
        self.jobs.put_nowait(Job(event))

    def epoch_seen(self, epoch: int) -> None:
        """Check an epoch that another broker has mentioned, if it is later than the promise."""
        if epoch > self.member.promised:
            self.claims.note(epoch)

    def store_failed(self, error: Exception) -> None:
        """End the membership; if only the history did not fit on the disk, until it does."""
        if isinstance(error, HistoryUnsaved):
            self._log.error(
                "member.failed", step="SaveHistory", error=describe(error), action=FREE_SPACE
            )
            self.jobs.put_nowait(Job(rules.StoreFailed()))
            self.is_full.set()
            return
        self._log.error("member.store_failed", error=describe(error))
        self.observe(rules.StoreFailed())
