# SPDX-License-Identifier: Apache-2.0
"""The queue of a member's events, the member's state after the last handled event, and the state
file (`cometmq.ha.state`): the member's promise and what it has seen of the record.

It is built before the driver that handles the events, so that streams and requests can report to
it.

A claim is an epoch that a follower, a master or another broker has named. It only causes a read of
the record, which alone decides which epoch is the newest. The first claim is checked at once; after
that, the record is read at most once per `PAUSE_MS`, however many claims arrive. A claim that the
record does not confirm changes nothing.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, NamedTuple

from cometmq.ha import member as rules
from cometmq.ha.epochs import HistoryUnsaved
from cometmq.ha.member import Member
from cometmq.ha.record import Copy, Record, Versioned
from cometmq.ha.state import State, StateFile
from cometmq.remoting.log import Log
from cometmq.remoting.transport.tasks import describe
from cometmq.runtime.worker import Worker

FREE_SPACE: Final = "free space on the disk: this broker then takes part again"

RETRY_MS: Final = 200
"""Pause after a failed read or write of the record."""

Sleep = Callable[[float], Awaitable[object]]

PAUSE_MS: Final = 1_000
"""Minimum interval between reads that claims cause. A claim counts as unconfirmed only after a
second read: before a deleted record is created again, members are fenced in its epoch, and may name
it.
"""

REPORT_MS: Final = 60_000
"""Minimum interval between warnings about unconfirmed claims."""


class EpochClaims:
    """The claims that have not been checked yet; `run` checks them."""

    def __init__(
        self,
        *,
        check: Callable[[int], None],
        recorded: Callable[[], int],
        log: Log,
        sleep: Sleep,
    ) -> None:
        """`check` causes a read of the record if the claimed epoch is later than this member's;
        `recorded` returns the epoch in the record when it was last read.
        """
        self._check = check
        self._recorded = recorded
        self._log = log
        self._sleep = sleep
        self._highest = 0
        self._is_waiting = asyncio.Event()
        self._reported_s: float | None = None

    def note(self, epoch: int) -> None:
        """Check a claim, now or when the pause is over."""
        self._highest = max(self._highest, epoch)
        self._is_waiting.set()

    async def run(self) -> None:
        """Check claims until cancelled."""
        while True:
            await self._is_waiting.wait()
            claimed = await self._checked(0)
            if claimed > self._recorded():
                claimed = await self._checked(claimed)
                if claimed > self._recorded():
                    self._report(claimed)

    async def _checked(self, again: int) -> int:
        """Check the highest new claim or, if it is higher, the claim `again` a second time; return
        the checked epoch after the pause.
        """
        claimed, self._highest = max(self._highest, again), 0
        self._is_waiting.clear()
        self._check(claimed)
        await self._sleep(PAUSE_MS / 1000)
        return claimed

    def _report(self, claimed: int) -> None:
        now_s = asyncio.get_running_loop().time()
        if self._reported_s is None or now_s - self._reported_s >= REPORT_MS / 1000:
            self._reported_s = now_s
            self._log.warning(
                "member.epoch_unrecorded", claimed=claimed, recorded=self._recorded(),
                action="find out who names an epoch that the record does not have; protect"
                " haListenPort with groupKeyFile",
            )  # fmt: skip


class SavedState:
    def __init__(self, state: State, file: StateFile, worker: Worker) -> None:
        """`state` is the saved result of `cometmq.ha.state.started`; `worker` writes the file."""
        self.state = state
        self._file = file
        self._worker = worker

    async def save(self, state: State) -> None:
        """Save a state unless it is saved already; raise OSError if that fails."""
        if state != self.state:
            await self.repair(state)

    async def repair(self, state: State) -> None:
        """Save a state, even if it equals the last saved one; raise OSError if that fails."""
        await self._worker.submit(partial(self._file.save, state))
        self.state = state


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
