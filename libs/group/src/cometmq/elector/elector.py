# SPDX-License-Identifier: Apache-2.0
"""One elector: each round reads the record, asks all members for their status, and carries out the
decisions of `cometmq.ha.election`, or of `missing_record` if the group has no record. Members are
not asked if the statuses that they have pushed leave nothing to do.

An elector may be killed at any point: what it keeps between rounds (since when a master is lost,
the epoch of fence orders, an accepted loss, what it has logged) is not needed for safety. A group
may have several electors, because a write of the record fails if another write came first, and
orders are idempotent.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from cometmq.elector.asked_member import AskedMember, AskedMembers, Link, OrderSender
from cometmq.elector.metrics import RENEWED, RESTORED, ElectorStats
from cometmq.elector.plan import Plan
from cometmq.elector.restoration import Restoration
from cometmq.ha import election, losses, missing_record
from cometmq.ha.actions import Action, Actions, Blocked, Create, Elect, Statuses, Tell, Wait, leads
from cometmq.ha.fencing import Timing
from cometmq.ha.losses import Loss, Watched
from cometmq.ha.member import OrderRefusal
from cometmq.ha.orders import Fence, HandOver, Promote
from cometmq.ha.port import Answer, Outcome, RecordPort, RecordUnreachable
from cometmq.ha.record import Record, RecordDamaged, Versioned
from cometmq.remoting.log import Log

READ_TIMEOUT_MS: Final = 5_000
ACCEPT_WITH: Final = "cometmq ha restore --accept-loss"


class MasterWatch:
    """Whether the recorded master is open (it leads in the record's epoch) or lost, with logs."""

    def __init__(
        self,
        stats: ElectorStats,
        *,
        timing: Timing,
        now_ms: Callable[[], int],
        opened: Callable[[], None],
        log: Log,
    ) -> None:
        self._stats = stats
        self._timing = timing
        self._now_ms = now_ms
        self._opened = opened
        self._log = log
        self._watched: Watched | None = None
        self._is_open = False
        """Whether the master was open when the record was last read."""
        self._open: tuple[int, int] | None = None
        self._loss: tuple[int, Loss] | None = None
        self._lost_at_ms: int | None = None

    @property
    def cause(self) -> str:
        """The cause of an election in this round: a loss, or RENEWED if the master is not lost."""
        return str(self._loss[1]) if self._loss else RENEWED

    def note_missing(self) -> None:
        """Note that the group has no record, and so no master."""
        self._watched, self._is_open, self._stats.has_master = None, False, False

    def note_without_record(self, statuses: Statuses) -> None:
        """Note, without a record, whether a member leads in its last known epoch or a later one."""
        record = self._stats.record
        known = 0 if record is None else record.epoch
        self._stats.has_master = any(one.role.is_leading and one.epoch >= known for one in statuses)

    def is_settled(self, found: Versioned, read_ms: int, members: AskedMembers) -> bool:
        self._watched = losses.watched(self._watched, found, read_ms)
        record, statuses = found.record, members.statuses
        return (
            any(leads(one, record) for one in statuses)
            and self.loss(found, statuses, members.by_ordinal.get(record.holder.ordinal)) is None
        )

    def look(self, found: Versioned, read_ms: int, members: AskedMembers) -> Loss | None:
        """Return why the master is lost, None if it is not; log losses and openings."""
        self._watched = losses.watched(self._watched, found, read_ms)
        record, statuses = found.record, members.statuses
        loss = self.loss(found, statuses, members.by_ordinal.get(record.holder.ordinal))
        has_master = any(leads(one, record) for one in statuses)
        facts = {"group": record.group, "ordinal": record.holder.ordinal, "epoch": record.epoch}
        if has_master and not self._is_open:
            outage_ms = 0
            if self._lost_at_ms is not None:
                outage_ms = self._stats.last_outage_ms = self._now_ms() - self._lost_at_ms
            self._log.info("master.open", **facts, outage_ms=outage_ms)
            self._lost_at_ms = None
        self._is_open = self._stats.has_master = has_master
        opened = (record.epoch, record.holder.ordinal)
        if has_master and opened != self._open:
            self._open = opened
            self._opened()
        if loss is None:
            self._loss = None
            if has_master:  # it was considered lost, but has renewed the record in time
                self._lost_at_ms = None
        elif self._loss != (record.epoch, loss):
            self._loss = (record.epoch, loss)
            if self._lost_at_ms is None:
                self._lost_at_ms = self._now_ms()
            self._log.warning("master.lost", **facts, cause=str(loss))
        return loss

    def loss(self, found: Versioned, statuses: Statuses, holder: AskedMember | None) -> Loss | None:
        assert self._watched is not None
        now_ms = self._now_ms()
        return losses.loss(
            found,
            statuses,
            self._watched,
            now_ms,
            timing=self._timing,
            is_gone=holder is not None and holder.is_gone,
            unheard_ms=holder.unheard_ms(now_ms) if holder is not None else 0,
        )


class Elector:
    def __init__(  # noqa: PLR0913  # the collaborators, each by name
        self,
        plan: Plan,
        record: RecordPort,
        links: dict[int, Link],
        *,
        timing: Timing,
        interval_ms: int,
        push_ms: int,
        status_timeout_ms: int,
        boottime_ms: Callable[[], int],
        new_uid: Callable[[], str],
        log: Log,
        accept_with: str = ACCEPT_WITH,
        master_opened: Callable[[], None] = lambda: None,
    ) -> None:
        """`push_ms` is the interval of pushed statuses; `boottime_ms` reads CLOCK_BOOTTIME.
        `accept_with` is the command with which a person accepts a loss. `master_opened` is called
        when a master opens; `stats` then has the record that names it.
        """
        self.stats = ElectorStats(plan.group.name, len(links))
        self.fault = "no round has ended yet"
        """Why this elector cannot elect a master; empty if it can."""
        self.has_ended_a_round = False
        """Whether a round has requested the record and the statuses, with or without success."""
        self.wake = asyncio.Event()
        """Set when the next round should start at once, not after the interval."""
        self.members = AskedMembers(
            links, interval_ms=interval_ms, push_ms=push_ms, timeout_ms=status_timeout_ms,
            now_ms=boottime_ms, wake=self.wake, log=log,
        )  # fmt: skip
        self.restoration = Restoration(
            plan, now_ms=boottime_ms, new_uid=new_uid, wake=self.wake, log=log
        )
        self._master = MasterWatch(
            self.stats, timing=timing, now_ms=boottime_ms, opened=master_opened, log=log
        )
        self._orders = OrderSender(self.members.by_ordinal, self.stats, log)
        self._plan = plan
        self._record = record
        self._log = log
        self._accept_with = accept_with
        self._now_ms = boottime_ms
        self._interval_ms = interval_ms
        self._silent_ms = timing.heard_within_ms
        self._record_fault = ""
        self._epoch_seen = 0  # in a member's log; the record was read again because of it
        self._strangers: frozenset[int] = frozenset()

    async def round(self) -> None:
        """Read the record, ask the members if necessary, decide, act."""
        self.stats.round_count += 1
        found: Versioned | None = None
        unreachable: str | None = None
        try:
            async with asyncio.timeout(READ_TIMEOUT_MS / 1000):
                found = await self._record.read()
        except (RecordUnreachable, RecordDamaged) as error:
            unreachable = str(error)
        except TimeoutError:
            unreachable = f"the record did not answer within {READ_TIMEOUT_MS} ms"
        if unreachable is None:
            self._record_read(found)
        else:
            self._record_unreachable(unreachable)
        read_ms = self._now_ms()
        if found is None or not self._is_settled(found, read_ms):
            await self.members.ask_all()
        self.stats.answering_count = len(self.members.statuses)
        if unreachable is not None:
            self._master.note_without_record(self.members.statuses)
            self.fault = f"no elections are possible: {unreachable}"
            self.has_ended_a_round = True
            return
        actions = self._decided(found, read_ms)
        self._note_waiting(actions)
        self.fault = ""
        self.has_ended_a_round = True
        async with asyncio.TaskGroup() as group:
            for action in actions:
                group.create_task(self._perform(action))

    def pause_ms(self, started_ms: int) -> int:
        """Return how long to wait for `wake`: at most until time alone makes a loss certain."""
        end_ms = started_ms + self._interval_ms
        late_ms = self.members.next_late_ms(self._silent_ms)
        return max(0, min(end_ms, end_ms if late_ms is None else late_ms) - self._now_ms())

    async def close(self) -> None:
        """Stop waiting for the answers to orders and probes; members still carry out the orders."""
        await self._orders.close()
        await self.members.close()

    # ---- facts -------------------------------------------------------------------------------

    def _record_unreachable(self, text: str) -> None:
        if not self._record_fault:
            self._log.warning("record.unreachable", group=self._plan.group.name, error=text)
        self._record_fault = text
        self.stats.is_record_reachable = False

    def _record_read(self, found: Versioned | None) -> None:
        if self._record_fault:
            self._record_fault = ""
            self._log.info("record.reachable", group=self._plan.group.name)
        self.stats.is_record_reachable = True
        self.stats.record = None if found is None else found.record
        if found is None:
            return
        self.restoration.record_exists(found.record.epoch)
        ordinals = {copy.ordinal for copy in found.record.in_sync}
        strangers = frozenset(ordinals - self.members.by_ordinal.keys())
        if strangers - self._strangers:
            self._log.warning(
                "member.unlisted", group=self._plan.group.name, ordinals=sorted(strangers),
                action="add them to controlMembers, and to leavingMembers if they are to leave",
            )  # fmt: skip
        self._strangers = strangers

    # ---- decisions ---------------------------------------------------------------------------

    def _is_settled(self, found: Versioned, read_ms: int) -> bool:
        """Return whether the statuses that the members have pushed leave nothing to do.

        They may be older than the record, so every action is decided again from answers.
        """
        record = found.record
        return (
            record.group == self._plan.group.name
            and self.members.take_pushed()
            and self._master.is_settled(found, read_ms, self.members)
            and all(one.last_log_epoch <= record.epoch for one in self.members.statuses)
            and not self._elections(found, is_master_lost=False)
        )

    def _elections(self, found: Versioned, *, is_master_lost: bool) -> Actions:
        return election.decide(
            self._plan.group,
            found,
            self.members.statuses,
            is_master_lost=is_master_lost,
            removing=self._plan.leaving,
        )

    def _decided(self, found: Versioned | None, read_ms: int) -> Actions:
        if found is None:
            self._master.note_missing()
            return self.restoration.decide(self.members)
        record, statuses = found.record, self.members.statuses
        if record.group != self._plan.group.name:
            self.stats.has_master = False
            text = (
                f"the record is that of group {record.group!r}, not of"
                f" {self._plan.group.name!r}: correct groupRecord or brokerName"
            )
            return (Wait(Blocked.WRONG_GROUP, text),)
        loss = self._master.look(found, read_ms, self.members)
        newest = max([0, *(one.last_log_epoch for one in statuses)])
        if newest > max(record.epoch, self._epoch_seen):
            # The record may have changed since it was read, so it is read again first.
            self._epoch_seen = newest
            self.wake.set()
            return ()
        return self._elections(found, is_master_lost=loss is not None)

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
                await self._write(self._record.replace(base, record), record, self._master.cause)
            case Create(record=record):
                outcome = await self._write(self._record.create(record), record, RESTORED)
                # Without an answer, the next round tries again: only one creation can succeed.
                if outcome.answer is not Answer.UNKNOWN:
                    self.restoration.created()
            case Tell(order=HandOver()):
                self._orders.begin(action)
            case Tell(order=Promote() | Fence() as order):
                refusal = await self._orders.give(action)
                if isinstance(order, Fence) and refusal is OrderRefusal.STALE_EPOCH:
                    self.restoration.choose_epoch_again()
                self.wake.set()
            case Tell():
                await self._orders.give(action)
            case Wait():
                pass

    async def _write(self, write: Awaitable[Outcome], record: Record, cause: str) -> Outcome:
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
