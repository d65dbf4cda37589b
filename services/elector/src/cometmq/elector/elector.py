# SPDX-License-Identifier: Apache-2.0
"""One elector: each round reads the record, asks all members for their status, and carries out the
decisions of `election`.

What an elector keeps between rounds is how long things have lasted (`Watched`, a loss, the epoch of
fence orders, an accepted loss) and what it has logged. Nothing of it is needed for safety, so an
elector may be killed at any point. Several electors of one group do not interfere, because a write
of the record fails if another write came first, and orders are idempotent.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Final

import msgspec

from cometmq.control.controlled import Report
from cometmq.elector.asked_member import Link, Member
from cometmq.elector.plan import Plan
from cometmq.elector.stats import RENEWED, RESTORED, ElectorStats
from cometmq.ha import election, missing_record
from cometmq.ha.actions import (
    Action,
    Actions,
    Blocked,
    Create,
    Drop,
    Elect,
    Fence,
    Follow,
    HandOver,
    Promote,
    Resize,
    Statuses,
    Wait,
)
from cometmq.ha.election import Loss, Watched
from cometmq.ha.fencing import Timing
from cometmq.ha.member import OrderRefused, Refusal, Role
from cometmq.ha.port import Answer, Outcome, RecordPort, RecordUnreachable
from cometmq.ha.record import Copy, Record, RecordDamaged, Versioned
from cometmq.remoting.errors import CometError
from cometmq.remoting.log import Log
from cometmq.remoting.transport.tasks import TaskSet

READ_TIMEOUT_MS: Final = 5_000
NO_ROUND: Final = "no round has ended yet"
ACCEPTANCE_MS: Final = 60_000
"""A longer wait means that the state differs from the one that the person judged."""
ACCEPT_WITH: Final = "cometmq ha restore --accept-loss"
Order = Promote | Follow | Fence | HandOver | Drop | Resize


class Acceptance(msgspec.Struct):
    """A person's consent to create the record once, although messages may be lost.

    It is kept in memory only: an elector that stops forgets it, and the person is asked again.
    """

    epoch: int
    """A record with a later epoch ends the acceptance."""
    copies: frozenset[Copy]
    """The stores that the person accepted: if one of them is replaced, the loss may be larger."""
    until_ms: int
    is_used: bool = False


class Elector:
    def __init__(  # noqa: PLR0913  # the collaborators, each by name
        self,
        plan: Plan,
        record: RecordPort,
        links: dict[int, Link],
        *,
        timing: Timing,
        status_timeout_ms: int,
        boottime_ms: Callable[[], int],
        new_uid: Callable[[], str],
        log: Log,
        accept_with: str = ACCEPT_WITH,
        master_opened: Callable[[], None] = lambda: None,
    ) -> None:
        """`links` holds a link for each address of the plan; `boottime_ms` reads CLOCK_BOOTTIME;
        `accept_with` is the command with which a person accepts a loss, for the log;
        `master_opened` is called when a master opens, with the record already in `stats`.
        """
        self.members = {
            ordinal: Member(ordinal, link, log=log) for ordinal, link in sorted(links.items())
        }
        self.stats = ElectorStats(plan.group.name, len(links))
        self.fault = NO_ROUND
        """Why this elector cannot do its work; empty if it can."""
        self.wake = asyncio.Event()
        """Set when there may be something to do before the next interval."""
        self._plan = plan
        self._record = record
        self._timing = timing
        self._status_timeout_ms = status_timeout_ms
        self._now_ms = boottime_ms
        self._new_uid = new_uid
        self._log = log
        self._accept_with = accept_with
        self._master_opened = master_opened
        self._open: tuple[int, int] | None = None
        self._acceptance: Acceptance | None = None
        self._watched: Watched | None = None
        self._fence_epoch: int | None = None
        self._loss: tuple[int, Loss] | None = None
        self._lost_at_ms: int | None = None
        self._record_fault = ""
        self._epoch_seen = 0  # in the log of a member, later than the record's
        self._strangers: frozenset[int] = frozenset()
        self._long_orders = TaskSet(log)
        self._probes = TaskSet(log)
        self._probed: set[int] = set()

    @property
    def has_ended_a_round(self) -> bool:
        """Whether it has asked for the record and the statuses, with or without success."""
        return self.fault != NO_ROUND

    async def round(self) -> None:
        """Run one round: read the record, ask the members, decide, act."""
        self.stats.round_count += 1
        try:
            async with asyncio.timeout(READ_TIMEOUT_MS / 1000):
                found = await self._record.read()
        except (RecordUnreachable, RecordDamaged) as error:
            self._record_unreachable(str(error))
            return
        except TimeoutError:
            self._record_unreachable(f"the record did not answer within {READ_TIMEOUT_MS} ms")
            return
        self._record_read(found)
        await self._ask_all()
        actions = self._decided(found)
        self._note_waiting(actions)
        self.fault = ""
        async with asyncio.TaskGroup() as group:
            for action in actions:
                group.create_task(self._perform(action))

    def accept_loss(self, epoch: int, copies: Collection[Copy]) -> None:
        """Allow one creation of the record that may lose messages, within `ACCEPTANCE_MS`.

        `epoch` is at least that of the last record and every promise that the caller knows of: the
        new record gets a later one. `copies` are the stores of all members. The acceptance has no
        effect while the stores that answer are not exactly these.
        """
        until_ms = self._now_ms() + ACCEPTANCE_MS
        self._acceptance = Acceptance(epoch, frozenset(copies), until_ms)
        self._log.warning("loss.accepted", group=self._plan.group.name, epoch=epoch)
        self.wake.set()

    @property
    def is_accepting_loss(self) -> bool:
        """Whether an acceptance has neither led to a record nor expired yet."""
        accepted = self._acceptance
        return accepted is not None and self._now_ms() < accepted.until_ms

    async def close(self) -> None:
        """Stop waiting for pending orders, which the members still complete, and for answers."""
        await self._long_orders.close()
        await self._probes.close()

    # ---- facts -------------------------------------------------------------------------------

    def _record_unreachable(self, text: str) -> None:
        if not self._record_fault:
            self._log.warning("record.unreachable", group=self._plan.group.name, error=text)
        self._record_fault = text
        self.stats.is_record_reachable = False
        self.fault = f"no elections are possible: {text}"

    def _record_read(self, found: Versioned | None) -> None:
        if self._record_fault:
            self._record_fault = ""
            self._log.info("record.reachable", group=self._plan.group.name)
        self.stats.is_record_reachable = True
        self.stats.record = None if found is None else found.record
        if found is None:
            self._watched = None
            return
        if self._acceptance is not None and found.record.epoch > self._acceptance.epoch:
            self._acceptance = None  # an earlier epoch: the read began before the record's deletion
        self._watched = election.watched(self._watched, found, self._now_ms())
        ordinals = {copy.ordinal for copy in found.record.in_sync}
        strangers = frozenset(ordinals - self.members.keys())
        if strangers - self._strangers:
            self._log.warning(
                "member.unlisted", group=self._plan.group.name, ordinals=sorted(strangers),
                action="add them to controlMembers, and to leavingMembers if they are to leave",
            )  # fmt: skip
        self._strangers = strangers

    async def _ask_all(self) -> None:
        """Ask each member for its status, except members that did not answer the last time.

        Those are only probed, so that a round does not wait until they time out. Otherwise, the
        election that replaces a silent master would be late by up to two timeouts.
        """
        now_ms = self._now_ms()
        async with asyncio.TaskGroup() as group:
            for member in self.members.values():
                if member.is_silent:
                    member.report = None
                    self._start_probe(member)
                else:
                    group.create_task(member.ask(timeout_ms=self._status_timeout_ms, now_ms=now_ms))
        self.stats.answering_count = len(self._statuses())

    def _start_probe(self, member: Member) -> None:
        if member.ordinal not in self._probed:
            self._probed.add(member.ordinal)
            self._probes.spawn(self._probe(member), name=f"elector-probe-{member.ordinal}")

    async def _probe(self, member: Member) -> None:
        """Probe a silent member once; start a round if its state has changed."""
        was_gone = member.is_gone
        try:
            await member.probe(timeout_ms=self._status_timeout_ms, now_ms=self._now_ms())
        finally:
            self._probed.discard(member.ordinal)
        if not member.is_silent or member.is_gone is not was_gone:
            self.wake.set()

    def _statuses(self) -> Statuses:
        return tuple(one.status for one in self.members.values() if one.status is not None)

    # ---- decisions ---------------------------------------------------------------------------

    def _decided(self, found: Versioned | None) -> Actions:
        statuses = self._statuses()
        if found is None:
            return self._without_record(statuses)
        self._fence_epoch = None
        if found.record.group != self._plan.group.name:
            text = (
                f"the record is that of group {found.record.group!r}, not of"
                f" {self._plan.group.name!r}: correct groupRecord or brokerName"
            )
            return (Wait(Blocked.WRONG_GROUP, text),)
        loss = self._lost(found, statuses)
        self._note_master(found.record, loss)
        if later := election.beyond(found.record, statuses):
            return self._outdated(found.record, later)
        return election.decide(
            self._plan.group,
            found,
            statuses,
            is_master_lost=loss is not None,
            removing=self._plan.leaving,
        )

    def _outdated(self, record: Record, later: Statuses) -> Actions:
        """Read the record again, which may have changed meanwhile; do nothing if it is still old.

        Its in-sync set may name copies that left the set long ago, so it must not decide who leads.
        """
        newest = max(one.last_log_epoch for one in later)
        if newest > self._epoch_seen:
            self._epoch_seen = newest
            self.wake.set()
            return ()
        ordinals = [one.copy.ordinal for one in later]
        text = (
            f"the record has epoch {record.epoch}, but the logs of brokers {ordinals} contain epoch"
            f" {newest}: an old record was restored. Start all brokers, then delete the record; it"
            " is created again from the most complete store"
        )
        return (Wait(Blocked.RECORD_OLD, text),)

    def _lost(self, found: Versioned, statuses: Statuses) -> Loss | None:
        assert self._watched is not None
        holder = self.members.get(found.record.holder.ordinal)
        now_ms = self._now_ms()
        return election.loss(
            found,
            statuses,
            self._watched,
            now_ms,
            timing=self._timing,
            is_gone=holder is not None and holder.is_gone,
            unheard_ms=holder.unheard_ms(now_ms) if holder is not None else 0,
        )

    def _without_record(self, statuses: Statuses) -> Actions:
        """Create the record, once no member can still be master (R10)."""
        self.stats.has_master = False
        readers = [
            ordinal
            for ordinal, member in self.members.items()
            if member.report is not None and member.report.record_uid
        ]
        if readers:
            text = (
                f"brokers {readers} read a record where this elector finds none: give all of them"
                " the same groupRecord; if the record was deleted, wait until they notice it"
            )
            return (Wait(Blocked.RECORD_ELSEWHERE, text),)
        if self._fence_epoch is None:
            self._fence_epoch = missing_record.restore_epoch(statuses)
        accepted = self._accepted(statuses)
        if accepted is not None:
            # The stores that knew the epoch of the deleted record may all be lost.
            self._fence_epoch = max(self._fence_epoch, accepted.epoch + 1)
        return missing_record.restore(
            self._plan.whole,
            statuses,
            self._fence_epoch,
            self._new_uid(),
            accept_loss=accepted is not None,
        )

    def _accepted(self, statuses: Statuses) -> Acceptance | None:
        """Return the acceptance if it applies to the stores that answer now."""
        accepted = self._acceptance
        if accepted is None or accepted.is_used or not self.is_accepting_loss:
            return None
        return accepted if accepted.copies == {one.copy for one in statuses} else None

    def _note_master(self, record: Record, loss: Loss | None) -> None:
        holder = self.members.get(record.holder.ordinal)
        status = None if holder is None else holder.status
        has_master = (
            status is not None
            and status.role in (Role.MASTER, Role.PARKING)
            and (status.copy, status.epoch) == (record.holder, record.epoch)
        )
        if has_master and not self.stats.has_master:
            outage_ms = 0
            if self._lost_at_ms is not None:
                outage_ms = self.stats.last_outage_ms = self._now_ms() - self._lost_at_ms
            self._log.info(
                "master.open", group=record.group, ordinal=record.holder.ordinal,
                epoch=record.epoch, outage_ms=outage_ms,
            )  # fmt: skip
            self._lost_at_ms = None
        self.stats.has_master = has_master
        opened = (record.epoch, record.holder.ordinal)
        if has_master and opened != self._open:
            self._open = opened
            self._master_opened()
        if loss is None:
            self._loss = None
        elif self._loss != (record.epoch, loss):
            self._loss = (record.epoch, loss)
            if self._lost_at_ms is None:
                self._lost_at_ms = self._now_ms()
            self._log.warning(
                "master.lost", group=record.group, ordinal=record.holder.ordinal,
                epoch=record.epoch, cause=str(loss),
            )  # fmt: skip

    def _note_waiting(self, actions: Iterable[Action]) -> None:
        waiting = next((one for one in actions if isinstance(one, Wait)), None)
        before, self.stats.waiting = self.stats.waiting, waiting
        if waiting is not None and waiting != before:
            may_accept = waiting.reason in missing_record.ACCEPTABLE
            text = f"{waiting.text}, with {self._accept_with}" if may_accept else waiting.text
            self._log.warning(
                "group.blocked", group=self._plan.group.name, reason=str(waiting.reason), text=text
            )
        elif waiting is None and before is not None:
            self._log.info("group.unblocked", group=self._plan.group.name)

    # ---- actions -----------------------------------------------------------------------------

    async def _perform(self, action: Action) -> None:
        match action:
            case Elect(base=base, record=record):
                cause = str(self._loss[1]) if self._loss else RENEWED
                await self._write(self._record.replace(base, record), record, cause)
            case Create(record=record):
                outcome = await self._write(self._record.create(record), record, RESTORED)
                # Without an answer, the next round tries again: only one creation can succeed.
                if outcome.answer is not Answer.UNKNOWN and self._acceptance is not None:
                    self._acceptance.is_used = True
            case HandOver():
                if not len(self._long_orders):  # another order would be refused until it ends
                    self._long_orders.spawn(self._order(action), name="elector-hand-over")
            case Promote() | Fence():
                await self._order(action)
                self.wake.set()
            case Follow() | Drop() | Resize():
                await self._order(action)
            case Wait():
                pass

    async def _write(self, write: Awaitable[Outcome], record: Record, cause: str) -> Outcome:
        """Write the record; the next round reads it, whatever the outcome."""
        outcome = await write
        self.stats.writes[outcome.answer.value] += 1
        self.wake.set()
        facts = {"group": record.group, "ordinal": record.holder.ordinal, "epoch": record.epoch}
        if outcome.answer is Answer.APPLIED:
            self.stats.elections[cause] += 1
            self._log.info("master.elected", **facts, cause=cause)
        elif outcome.answer is Answer.UNKNOWN:
            self._log.warning("record.write_unknown", **facts, error=outcome.reason)
        return outcome

    async def _order(self, action: Order) -> None:
        """Give an order; if it fails, the next round decides again."""
        ordinal, call = _call_of(action)
        member = self.members.get(ordinal)
        if member is None:  # the settings lack a broker that the record names
            return
        name, error = type(action).__name__, ""
        try:
            await call(member.link)
        except OrderRefused as refusal:
            outcome, error = "refused", str(refusal)
            if isinstance(action, Fence) and refusal.reason is Refusal.STALE_EPOCH:
                self._fence_epoch = None  # a member has promised another elector a later epoch
        except CometError as failure:
            outcome, error = "unanswered", str(failure)
        else:
            outcome = "obeyed"
        self.stats.orders[name, outcome] += 1
        given = (action, outcome, error)
        if given != member.given:
            member.given = given
            facts = {"order": name, "ordinal": ordinal, "epoch": getattr(action, "epoch", None)}
            if error:
                self._log.warning("order.failed", **facts, outcome=outcome, error=error)
            else:
                self._log.info("order.obeyed", **facts)


def _call_of(order: Order) -> tuple[int, Callable[[Link], Awaitable[Report]]]:
    """Return the member that must receive an order, and the call that sends it."""
    match order:
        case Promote(ordinal=ordinal, epoch=epoch):
            return ordinal, lambda link: link.promote(epoch)
        case Follow(ordinal=ordinal, epoch=epoch, master=master):
            return ordinal, lambda link: link.follow(epoch, master)
        case Fence(ordinal=ordinal, epoch=epoch):
            return ordinal, lambda link: link.fence(epoch)
        case HandOver(master=master, target=target, leaves=leaves):
            return master, lambda link: link.hand_over(target, leaves=leaves)
        case Drop(master=master, ordinal=ordinal):
            return master, lambda link: link.drop(ordinal)
        case Resize(master=master, copies=copies):
            return master, lambda link: link.resize(copies)
