# SPDX-License-Identifier: Apache-2.0
"""The queue of a member's events, and the member's state after the last handled event.

It is built before the driver that handles the events, so that streams and requests can report to
it. Epochs that other brokers name become events only after a check of the record
(`epoch_claims.py`).
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
    """The result of a read of the record, and the member's state when the read began."""

    began: Member
    found: Versioned | None


class Seen(NamedTuple):
    """A version of the record with facts that the state file lacks."""

    record: Record


class Retry(NamedTuple):
    """A request to save again what did not fit on the disk."""


class Job(NamedTuple):
    event: rules.Event | Read | Seen | Retry
    done: asyncio.Future[None] | None = None


class Inbox:
    """The events and the state of one member; only its driver takes events and replaces the
    state.
    """

    def __init__(self, me: Copy, promised: int, *, log: Log, sleep: Sleep = asyncio.sleep) -> None:
        self.member = Member(me=me, promised=promised)
        """The state after the last taken event, whose actions may still be in progress."""
        self.jobs: asyncio.Queue[Job] = asyncio.Queue()
        self.is_read_wanted = asyncio.Event()
        self.is_full = asyncio.Event()
        """Set if the disk had no room for the state or the history, until both are saved."""
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
        if isinstance(event, rules.StoreFailed):
            self.can_recover = False
        self.jobs.put_nowait(Job(event))

    def epoch_seen(self, epoch: int) -> None:
        """Have an epoch checked that another broker has named, if it is later than the promise."""
        if epoch > self.member.promised:
            self.claims.note(epoch)

    def store_failed(self, error: Exception) -> None:
        """End the membership until a restart; if only the history did not fit on the disk, until it
        does.
        """
        if isinstance(error, HistoryUnsaved):
            self._log.error(
                "member.failed", step="SaveHistory", error=describe(error), action=FREE_SPACE
            )
            self.jobs.put_nowait(Job(rules.StoreFailed()))
            self.is_full.set()
            return
        self._log.error("member.store_failed", error=describe(error))
        self.observe(rules.StoreFailed())
