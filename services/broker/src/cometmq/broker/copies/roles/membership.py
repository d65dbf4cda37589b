# SPDX-License-Identifier: Apache-2.0
"""Drives `cometmq.ha.member`: handles one event at a time, and completes each of its actions before
it begins the next.

Orders and observations wait in one queue. For each, `react` returns the new state and the actions.
The promise is on disk before any action that depends on it begins, and before `status` shows it. An
answer to an elector describes the state after the last completed event.

A failed step ends the membership until a restart, and the order that led to it is refused. There is
one exception: if the disk was too full for the state file or the epoch file, the member recovers as
soon as both can be saved. As after a restart, its promises are on disk before it takes part again,
and so is the history of its log.

The record is read in a separate task, because a read may take seconds. A read counts only if the
state has not changed since it began; otherwise it is repeated (R4).
"""

import asyncio
import contextlib
from collections.abc import Awaitable
from functools import partial
from typing import Final

from cometmq.broker.copies.roles.duties import Duties
from cometmq.broker.copies.roles.inbox import FREE_SPACE, Inbox
from cometmq.broker.copies.roles.jobs import Job, Read, Retry, Seen
from cometmq.broker.copies.roles.swap import swap
from cometmq.ha import events
from cometmq.ha import member as rules
from cometmq.ha import state as states
from cometmq.ha.actions import Status
from cometmq.ha.durable import DISK_FULL
from cometmq.ha.epochs import HistoryUnsaved
from cometmq.ha.member import Member, OrderRefused, Refusal, Role
from cometmq.ha.port import Answer, RecordPort, RecordUnreachable
from cometmq.ha.record import RecordDamaged, Versioned
from cometmq.ha.state import State, StateFile
from cometmq.remoting.errors import CometError
from cometmq.remoting.log import Log
from cometmq.remoting.transport.tasks import describe
from cometmq.runtime.worker import Worker

RETRY_MS: Final = 200
"""Pause after a failed read or write of the record."""
IDLE_READ_MS: Final = 1_000
"""Interval at which a member without a master reads the record, even if the watch shows no change.
"""
FULL_RETRY_MS: Final = 1_000
"""Interval at which a member whose disk was full tries to save its state."""
_SAVES: Final = frozenset({"SavePromise", "SaveInSync"})
"""The steps that only save the state file."""


class _StepFailed(OrderRefused):
    """A step could not be performed."""


class Membership:
    """One broker's membership; `run` must be running for orders to be answered."""

    def __init__(
        self,
        state: State,
        file: StateFile,
        record: RecordPort,
        duties: Duties,
        *,
        inbox: Inbox,
        worker: Worker,
        log: Log,
    ) -> None:
        """`state` is the saved result of `cometmq.ha.state.started`, and `inbox` begins with it;
        `worker` writes the file.
        """
        self._inbox = inbox
        self._state = state
        self._file = file
        self._record = record
        self._duties = duties
        self._worker = worker
        self._log = log
        self._sleep = inbox.sleep
        self._settled = inbox.member
        self._changed = asyncio.Event()
        self._seen: tuple[object, ...] = ()
        self._record_fault = ""
        self._record_uid = ""

    # For the broker

    @property
    def member(self) -> Member:
        """The state after the last event, whose actions may still be in progress."""
        return self._inbox.member

    @property
    def record_fault(self) -> str:
        """Why the last read of the record failed; empty if it succeeded."""
        return self._record_fault

    @property
    def record_uid(self) -> str:
        """The uid of the record when it was last seen; empty if there was none."""
        return self._record_uid

    async def run(self) -> None:
        """Handle events, and read and watch the record; the caller cancels this."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep_working(), name="member-events")
            group.create_task(self._keep_reading(), name="member-reads")
            group.create_task(self._keep_watching(), name="member-watch")
            group.create_task(self._keep_recovering(), name="member-recovery")
            group.create_task(self._inbox.claims.run(), name="member-claims")

    async def changed(self) -> None:
        """Wait until the next event has been completed."""
        await self._changed.wait()

    def begin(self) -> None:
        """Take part in the broker group, after the broker has recovered."""
        self._inbox.observe(events.Recovered())

    # For electors and operators. A call that raises OrderRefused has changed nothing.

    def status(self) -> Status:
        """Return the state after the last completed event, and the broker's current position.

        While an event is in progress, the promise on disk may be newer than the returned one. If a
        slave reported that it had promised the record's epoch, it would look like a holder that
        cannot open, and would be replaced.
        """
        position = self._duties.position()
        return Status(
            copy=self._settled.me,
            role=self._settled.role,
            promised=self._settled.promised,
            epoch=self._settled.epoch,
            last_log_epoch=position.last_log_epoch,
            max_offset=position.max_offset,
            tables_epoch=position.tables_epoch,
            tables=position.tables,
            standing=self._state.standing,
            has_lost_master=position.has_lost_master,
            lag_bytes=position.lag_bytes,
            is_full=position.is_full,
            has_room=position.has_room,
            last_in_sync=self._state.last_in_sync,
        )

    async def promote(self, epoch: int) -> Status:
        """Obey the order to become master of `epoch`, as recorded; return before leading."""
        return await self._obey(events.PromoteOrder(epoch))

    async def follow(self, epoch: int, master: int) -> Status:
        return await self._obey(events.FollowOrder(epoch, master))

    async def fence(self, epoch: int) -> Status:
        """Promise `epoch`, and stop being master; return the status after the promise."""
        return await self._obey(events.FenceOrder(epoch))

    async def hand_over(self, target: int, *, leaves: bool = False) -> Status:
        """Make a different member the master without failing any send; return once the record names
        it.

        `leaves` means that this broker is about to be removed. Raise OrderRefused, with this broker
        still the master, if the target does not catch up in time or the record cannot be written.
        """
        await self._obey(events.ParkOrder(target))
        result = await self._duties.hand_over(target, leaves=leaves)
        if result is None:
            await self._obey(events.Unparked())
            raise self._not_handed_over(
                Refusal.NOT_IN_SYNC,
                f"broker {target} did not catch up in time; try again when it lags less",
            )
        answer, epoch = result
        status = await self._obey(events.HandedOver(answer, target, epoch))
        has_followed = (self._inbox.member.epoch, self._inbox.member.master) == (epoch, target)
        if answer is not Answer.APPLIED and not has_followed:
            raise self._not_handed_over(
                Refusal.NOT_MASTER,
                f"the record did not confirm broker {target} as the master of epoch {epoch}:"
                f" {answer.value}; look at the state of the group before trying again",
            )
        return status

    def _not_handed_over(self, reason: Refusal, text: str) -> OrderRefused:
        self._log.warning("hand_over.failed", error=text)  # a broker that stops has no caller
        return OrderRefused(reason, text)

    async def drop(self, ordinal: int) -> Status:
        """Remove a departing member from the in-sync set."""
        self._check_leading()
        if ordinal == self._inbox.member.me.ordinal:
            raise OrderRefused(
                Refusal.NOT_IN_SYNC, f"broker {ordinal} is the master: hand over first"
            )
        self._duties.drop(ordinal)
        return self.status()

    async def resize(self, copies: int) -> Status:
        """Write a new number of copies to the record."""
        self._check_leading()
        if copies < 1:
            raise OrderRefused(
                Refusal.NOT_IN_SYNC, f"a group cannot have {copies} copies: give it 1 or more"
            )
        self._duties.resize(copies)
        return self.status()

    def _check_leading(self) -> None:
        if self._inbox.member.role is not Role.MASTER:
            raise OrderRefused(
                Refusal.NOT_MASTER,
                f"broker {self.member.me.ordinal} is {self.member.role}, not the master",
            )

    # Events

    async def _obey(self, event: events.Event) -> Status:
        done = asyncio.get_running_loop().create_future()
        self._inbox.jobs.put_nowait(Job(event, done))
        await done
        return self.status()

    async def _keep_working(self) -> None:
        while True:
            job = await self._inbox.jobs.get()
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

    async def _work(self, event: events.Event | Read | Seen | Retry) -> None:
        if isinstance(event, Retry):
            await self._recover()
            return
        if isinstance(event, Seen):
            if self._inbox.member.role is not Role.FAILED:
                seen = states.saw(self._state, event.record)
                await self._perform_step("SaveInSync", self._save(seen))
            return
        if isinstance(event, Read):
            if event.began is not self._inbox.member:
                self._inbox.is_read_wanted.set()
                return
            event = events.RecordRead(event.found)
        before = self._inbox.member
        self._inbox.member, actions = rules.react(before, event)
        if self._inbox.member.role is not before.role:
            self._log.info(
                "member.role_changed", role=self._inbox.member.role.value, before=before.role.value,
                epoch=self._inbox.member.epoch, cause=type(event).__name__,
            )  # fmt: skip
        for action in actions:
            await self._perform_step(type(action).__name__, self._perform(action))

    async def _perform_step(self, step: str, work: Awaitable[None]) -> None:
        """Perform a step; if it fails, end the membership, because later steps would break a
        promise.
        """
        try:
            await work
        except (CometError, OSError) as error:
            is_full = isinstance(error, HistoryUnsaved) or (
                step in _SAVES and isinstance(error, OSError) and error.errno in DISK_FULL
            )
            action = FREE_SPACE if is_full else "repair the disk, then restart this broker"
            self._log.error("member.failed", step=step, error=describe(error), action=action)
            if is_full:
                self._inbox.is_full.set()
            else:
                self._inbox.can_recover = False
            raise _StepFailed(
                Refusal.STORE_FAILED, f"{step} has failed: {describe(error)}; {action}"
            ) from error

    async def _fail(self) -> None:
        with contextlib.suppress(_StepFailed):  # logged by the step
            await self._work(events.StoreFailed())

    async def _keep_recovering(self) -> None:
        while True:
            await self._inbox.is_full.wait()
            self._inbox.is_full.clear()
            await self._sleep(FULL_RETRY_MS / 1000)
            self._inbox.jobs.put_nowait(Job(Retry(), None))

    async def _recover(self) -> None:
        """Save all promises and the history, and take part again; if they cannot be saved yet, wait
        for the next retry.
        """
        state = states.promised(self._state, self._inbox.member.promised)
        try:
            await self._worker.submit(partial(self._file.save, state))
        except OSError:
            self._inbox.is_full.set()
            return
        self._state = state
        if not self._inbox.can_recover or self._inbox.member.role is not Role.FAILED:
            return
        try:
            await self._duties.repair_history()
        except OSError:
            self._inbox.is_full.set()
            return
        self._log.info("member.recovered")
        self.begin()

    async def _perform(  # noqa: C901  # a case for each action
        self, action: rules.Action
    ) -> None:
        duties = self._duties
        match action:
            case rules.ReadRecord():
                self._inbox.is_read_wanted.set()
            case rules.SavePromise(epoch=epoch):
                await self._save(states.promised(self._state, epoch))
            case rules.Claim(base=base, record=record):
                outcome = await swap(self._record, base, record)
                if outcome.answer is Answer.UNKNOWN:
                    await self._sleep(RETRY_MS / 1000)
                self._inbox.is_read_wanted.set()
            case rules.BeginEpoch(epoch=epoch):
                await duties.begin_epoch(epoch)
                self._inbox.observe(events.Opened(epoch))
            case rules.StartFollowing(master=master, epoch=epoch):
                await duties.start_following(master, epoch)
            case rules.StopFollowing():
                await duties.stop_following()
            case rules.Lead(found=found):
                await duties.lead(found)
            case rules.CloseToClients():
                await duties.close_to_clients()
            case rules.Park(target=target):
                await duties.park(target)
            case rules.Unpark():
                await duties.unpark()
            case rules.ForwardParked(target=target):
                await duties.forward_parked(target)

    async def _save(self, state: State) -> None:
        if state != self._state:
            await self._worker.submit(partial(self._file.save, state))
            self._state = state

    def _settle(self) -> None:
        self._settled = self._inbox.member
        self._changed.set()
        self._changed = asyncio.Event()

    # The record

    async def _keep_reading(self) -> None:
        while True:
            await self._read_wanted()
            self._inbox.is_read_wanted.clear()
            began = self._inbox.member
            try:
                found = await self._record.read()
            except (RecordUnreachable, RecordDamaged) as error:
                self._note_fault(error)
                self._inbox.is_read_wanted.set()
                await self._sleep(RETRY_MS / 1000)
                continue
            self._note_fault(None)
            self._note_seen(found)
            self._inbox.jobs.put_nowait(Job(Read(began, found), None))

    async def _read_wanted(self) -> None:
        """Wait until a read of the record is requested; without a master, wait at most
        `IDLE_READ_MS`.
        """
        while True:
            try:
                async with asyncio.timeout(IDLE_READ_MS / 1000):
                    await self._inbox.is_read_wanted.wait()
                    return
            except TimeoutError:
                member = self._inbox.member
                if member.epoch == 0 and member.role in (Role.SLAVE, Role.FENCED):
                    return

    async def _keep_watching(self) -> None:
        while True:
            try:
                async for found in self._record.watch():
                    self._look(found)
            except (RecordUnreachable, RecordDamaged) as error:
                self._note_fault(error)
                await self._sleep(RETRY_MS / 1000)

    def _look(self, found: Versioned | None) -> None:
        """Read the record if a watch shows a different master."""
        self._duties.record_seen(found)
        self._note_seen(found)
        if found is None:
            return
        seen = (found.record.uid, found.record.epoch, found.record.holder)
        if seen != self._seen:
            self._seen = seen
            self._inbox.is_read_wanted.set()

    def _note_seen(self, found: Versioned | None) -> None:
        """Save the record's content, in case it is deleted (R10)."""
        self._record_uid = "" if found is None else found.record.uid
        if found is None:
            return
        self._inbox.recorded_epoch = found.record.epoch
        if states.saw(self._state, found.record) != self._state:
            self._inbox.jobs.put_nowait(Job(Seen(found.record), None))

    def _note_fault(self, error: CometError | None) -> None:
        text = "" if error is None else str(error)
        if text and not self._record_fault:
            self._log.warning("record.unreachable", error=text)
        elif self._record_fault and not text:
            self._log.info("record.reachable")
        self._record_fault = text
