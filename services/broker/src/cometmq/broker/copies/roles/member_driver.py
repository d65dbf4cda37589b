# SPDX-License-Identifier: Apache-2.0
"""Drives `cometmq.ha.member`: handles one event at a time, and completes each of its actions before
it begins the next.

Orders and observations are events in one queue. For each, `react` returns the new state and the
actions. The promise is on disk before any action that depends on it begins, and before `status`
shows it. An answer to an elector describes the state after the last completed event.

A step is a save of the state or an action. A failed step ends the membership until a restart, and
the order that led to it is refused. There is one exception: if the disk was too full for the state
file or the epoch file, the member recovers as soon as both can be saved.
"""

import asyncio
import contextlib
from collections.abc import Awaitable
from typing import Final, Protocol

import msgspec

from cometmq.broker.copies.roles.inbox import (
    FREE_SPACE,
    RETRY_MS,
    Inbox,
    Read,
    Retry,
    SavedState,
    Seen,
)
from cometmq.broker.copies.roles.record_writer import swap
from cometmq.ha import member as rules
from cometmq.ha import state as states
from cometmq.ha.durable import DISK_FULL
from cometmq.ha.epochs import HistoryUnsaved
from cometmq.ha.member import Duty, OrderRefusal, OrderRefused
from cometmq.ha.port import Answer, RecordPort
from cometmq.ha.role import Role
from cometmq.remoting.errors import CometError
from cometmq.remoting.log import Log
from cometmq.remoting.transport.tasks import describe

FULL_RETRY_MS: Final = 1_000
"""Interval at which a member whose disk was full tries to save its state."""


class Position(msgspec.Struct, frozen=True, kw_only=True):
    """How recent a broker's log and tables are, how far it is behind its master,
    and whether its disk has room.
    """

    last_log_epoch: int
    max_offset: int
    tables_epoch: int = 0
    tables: int = 0
    has_lost_master: bool = False
    lag_bytes: int = 0
    is_full: bool = False
    has_room: bool = False


class Duties(Protocol):
    """The broker as seen by the driver of its membership; `RoleChanges` implements it.

    The driver awaits each call before it makes the next one. OSError and StoreError mean that the
    disk has failed.
    """

    def position(self) -> Position:
        """Return the broker's position now."""

    async def perform(self, action: Duty) -> None:
        """Perform an action that `react` has returned. On return it is complete, and durable if its
        class says so; a connection to a master need only have begun.
        """

    async def repair_history(self) -> None:
        """Save the history of the log, without epochs that begin beyond its end (R5).

        The member is neither master nor slave during the call. Raise OSError if it fails.
        """


class _StepFailed(OrderRefused):
    """A step has failed, so the order that led to it is refused."""


class MemberDriver:
    """Handles the events of one member."""

    def __init__(
        self, saved: SavedState, record: RecordPort, duties: Duties, *, inbox: Inbox, log: Log
    ) -> None:
        """`inbox` begins with the saved state."""
        self.settled = inbox.member
        """The state after the last completed event."""
        self.inbox = inbox
        self.saved = saved
        self.record = record
        self.duties = duties
        self._log = log
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Handle events; the caller cancels this."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep_working(), name="member-events")
            group.create_task(self._keep_recovering(), name="member-recovery")
            group.create_task(self.inbox.claims.run(), name="member-claims")

    async def changed(self) -> None:
        """Wait until the next event has been completed."""
        await self._changed.wait()

    async def _keep_working(self) -> None:
        while True:
            job = await self.inbox.jobs.get()
            try:
                await self._work(job.event)
            except OrderRefused as error:
                if isinstance(error, _StepFailed):
                    # This comes first, because `status` and later events must not see a promise
                    # that is not on the disk.
                    await self._fail()
                if job.done is not None and not job.done.done():
                    job.done.set_exception(error)
            else:
                if job.done is not None and not job.done.done():
                    job.done.set_result(None)
            self._settle()

    async def _work(self, event: rules.Event | Read | Seen | Retry) -> None:
        if isinstance(event, Retry):
            await self._recover()
            return
        if isinstance(event, Seen):
            if self.inbox.member.role is not Role.FAILED:
                seen = states.saw(self.saved.state, event.record)
                await self._perform_step("SaveInSync", self.saved.save(seen), is_save=True)
            return
        if isinstance(event, Read):
            if event.began is not self.inbox.member:
                self.inbox.is_read_wanted.set()
                return
            event = rules.RecordRead(event.found)
        before = self.inbox.member
        self.inbox.member, actions = rules.react(before, event)
        if self.inbox.member.role is not before.role:
            self._log.info(
                "member.role_changed", role=self.inbox.member.role.value, before=before.role.value,
                epoch=self.inbox.member.epoch, cause=type(event).__name__,
            )  # fmt: skip
        for action in actions:
            is_save = isinstance(action, rules.SavePromise)
            step = type(action).__name__
            await self._perform_step(step, self._perform(action), is_save=is_save)

    async def _perform_step(
        self, step: str, work: Awaitable[None], *, is_save: bool = False
    ) -> None:
        """Perform a step; if it fails, end the membership, because later steps
        could break a promise.

        After a save that failed because the disk is full (`is_save`), the membership can recover.
        """
        try:
            await work
        except (CometError, OSError) as error:
            is_full = isinstance(error, HistoryUnsaved) or (
                is_save and isinstance(error, OSError) and error.errno in DISK_FULL
            )
            action = FREE_SPACE if is_full else "repair the disk, then restart this broker"
            self._log.error("member.failed", step=step, error=describe(error), action=action)
            if is_full:
                self.inbox.is_full.set()
            else:
                self.inbox.can_recover = False
            raise _StepFailed(
                OrderRefusal.STORE_FAILED, f"{step} has failed: {describe(error)}; {action}"
            ) from error

    async def _fail(self) -> None:
        with contextlib.suppress(_StepFailed):  # logged by the step
            await self._work(rules.StoreFailed())

    async def _keep_recovering(self) -> None:
        while True:
            await self.inbox.is_full.wait()
            self.inbox.is_full.clear()
            await self.inbox.sleep(FULL_RETRY_MS / 1000)
            self.inbox.observe(Retry())

    async def _recover(self) -> None:
        """Save the state and the history, then resume the membership; if the disk is still too
        full, wait for the next retry.
        """
        state = states.promised(self.saved.state, self.inbox.member.promised)
        try:
            await self.saved.repair(state)
        except OSError:
            self.inbox.is_full.set()
            return
        if not self.inbox.can_recover or self.inbox.member.role is not Role.FAILED:
            return
        try:
            await self.duties.repair_history()
        except OSError:
            self.inbox.is_full.set()
            return
        self._log.info("member.recovered")
        self.inbox.observe(rules.Recovered())

    async def _perform(self, action: rules.Action) -> None:
        match action:
            case rules.ReadRecord():
                self.inbox.is_read_wanted.set()
            case rules.SavePromise(epoch=epoch):
                await self.saved.save(states.promised(self.saved.state, epoch))
            case rules.Claim(base=base, record=record):
                outcome = await swap(self.record, base, record)
                if outcome.answer is Answer.UNKNOWN:
                    await self.inbox.sleep(RETRY_MS / 1000)
                self.inbox.is_read_wanted.set()
            case rules.BeginEpoch(epoch=epoch):
                await self.duties.perform(action)
                self.inbox.observe(rules.Opened(epoch))
            case _:
                await self.duties.perform(action)

    def _settle(self) -> None:
        self.settled = self.inbox.member
        self._changed.set()
        self._changed = asyncio.Event()
