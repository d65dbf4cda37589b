# SPDX-License-Identifier: Apache-2.0
"""One broker's membership in its group: drives `cometmq.ha.member`, which decides.

Orders and observations are events in one queue. For each, `react` returns the new state and the
actions; each action is complete before the next one begins. The promise is on disk before any
action that depends on it begins, and before `status` shows it. An answer to an elector describes
the state after the last completed event.

A step is a save of the state or an action. A failed step ends the membership until a restart, and
the order that led to it is refused. There is one exception: if the disk was too full for the state
file or the epoch file, the member recovers as soon as both can be saved.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, NamedTuple, Protocol

import msgspec

from cometmq.broker.copies.roles.confirmation import swap
from cometmq.broker.copies.roles.record_watch import RETRY_MS, Read, RecordWatch, Seen
from cometmq.ha import member as rules
from cometmq.ha import state as states
from cometmq.ha.actions import Status
from cometmq.ha.durable import DISK_FULL
from cometmq.ha.epochs import HistoryUnsaved
from cometmq.ha.member import Duty, Member, OrderRefusal, OrderRefused
from cometmq.ha.orders import HandOver, Order
from cometmq.ha.port import Answer, RecordPort
from cometmq.ha.record import Versioned
from cometmq.ha.role import Role
from cometmq.ha.state import State, StateFile
from cometmq.remoting.errors import CometError
from cometmq.remoting.log import Log
from cometmq.remoting.transport.tasks import describe
from cometmq.runtime.worker import Worker

FREE_SPACE: Final = "free space on the disk: this broker then takes part again"
FULL_RETRY_MS: Final = 1_000
"""Interval at which a member whose disk was full tries to save its state."""


class Position(msgspec.Struct, frozen=True, kw_only=True):
    last_log_epoch: int
    max_offset: int
    tables_epoch: int = 0
    tables: int = 0
    has_lost_master: bool = False
    lag_bytes: int = 0
    is_full: bool = False
    has_room: bool = False


class Acting:
    """A role. The defaults are right for a broker that neither leads nor follows."""

    def confirm_offset(self) -> int:
        return 0

    def has_lost_master(self) -> bool:
        return False

    def look_after_clients(self) -> None:
        """Make clients reconnect that may hang on a lost master (`groupAddress`); every 100 ms."""

    def before_write(self) -> None:
        """Close connections whose answers may not be sent; called before each write."""

    def obey(self, order: Order) -> None:
        """Carry out an order whose `obeyed_in` contains this role."""
        raise NotImplementedError(f"{type(self).__name__} does not obey {order}")

    async def hand_over(self, _order: HandOver) -> tuple[Answer, int] | None:
        """Wait until the successor has caught up; return the outcome of the write that makes it the
        master, and the new epoch, None if nothing was written.
        """
        return None

    def record_seen(self, found: Versioned | None) -> None:
        """Handle a version of the record reported by a watch."""

    def note_end(self) -> None:
        """Note that the log has grown; the master then confirms its new end with the copies."""


class InactiveRole(Acting):
    """A broker that may have been replaced, or knows no master, serves no requests."""

    def __init__(self, confirmed: int = 0) -> None:
        """`confirmed` is the confirm offset that was known in the last role."""
        self._confirmed = confirmed

    def confirm_offset(self) -> int:
        return self._confirmed

    def obey(self, order: Order) -> None:
        """Ignore the order: the role for which it was accepted has just ended."""


class Duties(Protocol):
    """The broker as seen by its membership, which awaits each call before the next (`RoleChanges`).

    OSError and StoreError mean that the disk has failed.
    """

    acting: Acting
    """The role in which the broker acts now."""

    def position(self) -> Position:
        """Return the broker's position now."""

    async def perform(self, action: Duty) -> None:
        """Perform an action of `react` completely, and durably if its class says so."""

    async def repair_history(self) -> None:
        """Save the history without epochs beyond the log's end (R5); raise OSError."""


class _StepFailed(OrderRefused):
    """A step has failed, so the order that led to it is refused."""


class Retry(NamedTuple):
    """A request to save again what did not fit on the disk."""


Happened = rules.Event | Read | Seen | Retry


class MemberDriver:
    """Handles the events and orders of one member; a refused order has changed nothing."""

    duties: Duties
    """Set before `run`; streams and requests may report events before that."""

    def __init__(
        self,
        state: State,
        file: StateFile,
        *,
        worker: Worker,
        record: RecordPort,
        log: Log,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self.saved = state
        """The state that is on the disk."""
        self.state = Member(me=state.copy, promised=state.promised)
        """The state after the last taken event, whose actions may still be in progress."""
        self.settled = self.state
        """The state after the last completed event."""
        self.record = record
        self.sleep = sleep
        self.watch = RecordWatch(self, log)
        self._file = file
        self._worker = worker
        self._log = log
        self._jobs: asyncio.Queue[tuple[Happened, asyncio.Future[None] | None]] = asyncio.Queue()
        self._is_full = asyncio.Event()  # the state or the history did not fit on the disk
        self._can_recover = True
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Handle events, and read and watch the record; the caller cancels this."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep_working(), name="member-events")
            group.create_task(self._keep_recovering(), name="member-recovery")
            group.create_task(self.watch.run(), name="member-record")

    async def changed(self) -> None:
        """Wait until the next event has been completed."""
        await self._changed.wait()

    # Events

    def observe(self, event: rules.Observation | Read | Seen | Retry) -> None:
        if isinstance(event, rules.StoreFailed):
            self._can_recover = False
        self._jobs.put_nowait((event, None))

    def epoch_seen(self, epoch: int) -> None:
        """Have an epoch checked that another broker has named, if it is later than the promise."""
        if epoch > self.state.promised:
            self.watch.claims.note(epoch)

    def store_failed(self, error: Exception) -> None:
        """End the membership until a restart, or until the history fits on the disk again."""
        if isinstance(error, HistoryUnsaved):
            self._log.error(
                "member.failed", step="SaveHistory", error=describe(error), action=FREE_SPACE
            )
            self._jobs.put_nowait((rules.StoreFailed(), None))
            self._is_full.set()
            return
        self._log.error("member.store_failed", error=describe(error))
        self.observe(rules.StoreFailed())

    async def _handle(self, event: rules.Event) -> Status:
        done = asyncio.get_running_loop().create_future()
        self._jobs.put_nowait((event, done))
        await done
        return self.status()

    # What electors and operators see, and order

    def status(self) -> Status:
        """Return the state after the last completed event, and the broker's current position.

        With a new promise, but still as a slave, the recorded member would look like a master that
        cannot open, and electors would replace it.
        """
        settled = self.settled
        return Status(
            copy=settled.me,
            role=settled.role,
            promised=settled.promised,
            epoch=settled.epoch,
            standing=self.saved.standing,
            last_in_sync=self.saved.last_in_sync,
            **msgspec.structs.asdict(self.duties.position()),
        )

    async def obey(self, order: Order) -> Status:
        """Carry out an order; return the status after its event, which may precede its role."""
        if isinstance(order, HandOver):
            return await self._hand_over(order)
        if type(order) in rules.CHANGE_THE_ROLE:
            return await self._handle(order)
        member = self.state
        if member.role not in order.obeyed_in:
            roles = " or ".join(sorted(order.obeyed_in))
            raise OrderRefused(
                OrderRefusal.NOT_MASTER,
                f"broker {member.me.ordinal} is {member.role}, not the {roles}",
            )
        if fault := order.fault(member.me.ordinal):
            raise OrderRefused(OrderRefusal.NOT_IN_SYNC, fault)
        self.duties.acting.obey(order)
        return self.status()

    async def _hand_over(self, order: HandOver) -> Status:
        """Hand over without failing a send; return once the record names the new master.

        Raise OrderRefused, with this broker still the master, if that fails.
        """
        target = order.successor
        await self._handle(order)
        result = await self.duties.acting.hand_over(order)
        if result is None:
            await self._handle(rules.Abandoned())
            raise self._not_handed_over(
                OrderRefusal.NOT_IN_SYNC,
                f"broker {target} did not catch up in time; try again when it lags less",
            )
        answer, epoch = result
        status = await self._handle(rules.HandedOver(answer, target, epoch))
        has_followed = (self.state.epoch, self.state.master) == (epoch, target)
        if answer is not Answer.APPLIED and not has_followed:
            raise self._not_handed_over(
                OrderRefusal.NOT_MASTER,
                f"the record did not confirm broker {target} as the master of epoch {epoch}:"
                f" {answer.value}; look at the state of the group before trying again",
            )
        return status

    def _not_handed_over(self, reason: OrderRefusal, text: str) -> OrderRefused:
        self._log.warning("hand_over.failed", error=text)  # a broker that stops has no caller
        return OrderRefused(reason, text)

    # Steps

    async def _keep_working(self) -> None:
        while True:
            event, done = await self._jobs.get()
            refusal: OrderRefused | None = None
            try:
                await self._work(event)
            except OrderRefused as error:
                refusal = error
                if isinstance(error, _StepFailed):
                    # This comes first, because `status` and later events must not see a promise
                    # that is not on the disk.
                    with contextlib.suppress(_StepFailed):  # logged by the step
                        await self._work(rules.StoreFailed())
            if done is not None and not done.done():
                if refusal is None:
                    done.set_result(None)
                else:
                    done.set_exception(refusal)
            self.settled = self.state
            self._changed.set()
            self._changed = asyncio.Event()

    async def _work(self, event: Happened) -> None:
        match event:
            case Retry():
                await self._recover()
                return
            case Seen():
                if self.state.role is not Role.FAILED:
                    save = self._save(states.saw(self.saved, event.record))
                    await self._perform_step("SaveInSync", save, is_save=True)
                return
            case Read():
                if event.began is not self.state:
                    self.watch.read_wanted.set()
                    return
                event = rules.RecordRead(event.found)
            case _:
                pass
        before = self.state
        self.state, actions = rules.react(before, event)
        if self.state.role is not before.role:
            self._log.info(
                "member.role_changed", role=self.state.role.value, before=before.role.value,
                epoch=self.state.epoch, cause=type(event).__name__,
            )  # fmt: skip
        for action in actions:
            is_save = isinstance(action, rules.SavePromise)
            step = type(action).__name__
            await self._perform_step(step, self._perform(action), is_save=is_save)

    async def _perform_step(
        self, step: str, work: Awaitable[None], *, is_save: bool = False
    ) -> None:
        """Perform a step; if it fails, end the membership: later steps could break a promise.

        After a save on a full disk (`is_save`), the membership can recover.
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
                self._is_full.set()
            else:
                self._can_recover = False
            raise _StepFailed(
                OrderRefusal.STORE_FAILED, f"{step} has failed: {describe(error)}; {action}"
            ) from error

    async def _perform(self, action: rules.Action) -> None:
        match action:
            case rules.ReadRecord():
                self.watch.read_wanted.set()
            case rules.SavePromise(epoch=epoch):
                await self._save(states.promised(self.saved, epoch))
            case rules.Claim(base=base, record=record):
                outcome = await swap(self.record, base, record)
                if outcome.answer is Answer.UNKNOWN:
                    await self.sleep(RETRY_MS / 1000)
                self.watch.read_wanted.set()
            case rules.BeginEpoch(epoch=epoch):
                await self.duties.perform(action)
                self.observe(rules.Opened(epoch))
            case _:
                await self.duties.perform(action)

    async def _save(self, state: State, *, is_repair: bool = False) -> None:
        if state != self.saved or is_repair:
            await self._worker.submit(partial(self._file.save, state))
            self.saved = state

    async def _keep_recovering(self) -> None:
        while True:
            await self._is_full.wait()
            self._is_full.clear()
            await self.sleep(FULL_RETRY_MS / 1000)
            self.observe(Retry())

    async def _recover(self) -> None:
        """Save state and history, then resume the membership; or wait for the next retry."""
        try:
            promised = states.promised(self.saved, self.state.promised)
            await self._save(promised, is_repair=True)
            if not self._can_recover or self.state.role is not Role.FAILED:
                return
            await self.duties.repair_history()
        except OSError:
            self._is_full.set()
            return
        self._log.info("member.recovered")
        self.observe(rules.Recovered())
