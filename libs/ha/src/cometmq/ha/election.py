# SPDX-License-Identifier: Apache-2.0
"""The actions of an elector, given a record and the states of the members (pure).

`cometmq elector` and the Kubernetes operator repeatedly read the record and the members' states,
and perform what `decide` returns. Nothing has to be remembered between two calls except `Watched`
and, while a record is missing, the epoch of `restore_epoch`. An elector may therefore die at any
point, and the worst that two electors can do is make each other's compare-and-swap fail.

The record is read with a quorum. A state is one answer of one member and is consistent: its promise
was saved before its offsets were read.
"""

from collections.abc import Collection
from enum import StrEnum
from typing import Final

import msgspec

from cometmq.ha.fencing import Timing
from cometmq.ha.member import Role
from cometmq.ha.record import Copy, Policy, Record, TablesAt, Versioned, promise_quorum
from cometmq.ha.state import Standing
from cometmq.remoting.errors import SettingsError


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """A member's answer to GetStatus or to a fence order."""

    copy: Copy
    role: Role
    promised: int
    epoch: int = 0
    """The epoch in which the member is master or follows a master."""
    last_log_epoch: int = 0
    max_offset: int = 0
    tables_epoch: int = 0
    """The epoch from whose master the member's tables come."""
    tables: int = 0
    """Number of changes of that epoch that the tables contain."""
    standing: Standing = Standing.NEW
    has_lost_master: bool = False
    """The member follows a master from which it has not heard for a while."""
    lag_bytes: int = 0
    """Bytes by which the member's log is behind its master's, for a planned switchover."""
    last_in_sync: tuple[Copy, ...] = ()
    """The in-sync set of the record that the member saw last, which may have been deleted since."""


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration of a broker group."""

    name: str
    ordinals: tuple[int, ...]
    """The ordinals of all brokers that should exist."""
    policy: Policy = Policy.ALL_IN_SYNC
    min_in_sync: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.min_in_sync <= self.copies:
            raise SettingsError(
                f"minInSync is {self.min_in_sync}, but group {self.name!r} has {self.copies}"
                " copies: give it a value from 1 to the number of copies"
            )
        if self.policy is Policy.MAJORITY and self.copies < 3:
            raise SettingsError(
                f"group {self.name!r} has {self.copies} copies: the policy {self.policy} needs at"
                f" least 3, use {Policy.ALL_IN_SYNC}"
            )

    @property
    def copies(self) -> int:
        """The number of copies that the group should have."""
        return len(self.ordinals)


# ---- actions ---------------------------------------------------------------------------------


class Elect(msgspec.Struct, frozen=True):
    """Write `record` on `base`; whatever the outcome, read and decide again."""

    base: Versioned
    record: Record


class Create(msgspec.Struct, frozen=True):
    """Create the record; whatever the outcome, read and decide again."""

    record: Record


class Fence(msgspec.Struct, frozen=True):
    """Order a member to promise `epoch` and to stop being the master."""

    ordinal: int
    epoch: int


class Promote(msgspec.Struct, frozen=True):
    """Tell a member that the record names it as the holder."""

    ordinal: int
    epoch: int


class Follow(msgspec.Struct, frozen=True):
    """Tell a member which master to follow."""

    ordinal: int
    epoch: int
    master: int


class HandOver(msgspec.Struct, frozen=True):
    """Order the master to hand over; `leaves` means that it will be removed afterwards."""

    master: int
    target: int
    leaves: bool = False


class Drop(msgspec.Struct, frozen=True):
    """Order the master to take a departing member out of the in-sync set."""

    master: int
    ordinal: int


class Resize(msgspec.Struct, frozen=True):
    """Order the master to write another number of copies."""

    master: int
    copies: int


class Blocked(StrEnum):
    """Reasons why the elector does nothing, as shown in events and conditions."""

    NO_CANDIDATE = "NoCandidate"
    NO_QUORUM = "NoQuorum"
    MEMBERS_MISSING = "MembersMissing"
    SUSPECT_COPY = "SuspectCopy"
    NO_PROVEN_COPY = "NoProvenCopy"
    COPY_LEFT_OUT = "CopyLeftOut"
    NO_MASTER = "NoMaster"
    TARGET_UNFIT = "TargetUnfit"
    TOO_FEW_IN_SYNC = "TooFewInSync"
    COPIES_FIXED = "CopiesFixed"
    WRONG_GROUP = "WrongGroup"
    RECORD_ELSEWHERE = "RecordElsewhere"


class Wait(msgspec.Struct, frozen=True):
    """Nothing can be done now; `text` names the missing condition."""

    reason: Blocked
    text: str


Action = Elect | Create | Fence | Promote | Follow | HandOver | Drop | Resize | Wait
Actions = tuple[Action, ...]
Statuses = tuple[Status, ...]

LIVE_ROLES: Final = frozenset({Role.PROMOTING, Role.MASTER, Role.PARKING})
CANDIDATE_ROLES: Final = frozenset({Role.SLAVE, Role.FENCED})


# ---- is the master lost? ---------------------------------------------------------------------


class Watched(msgspec.Struct, frozen=True):
    """When the elector last saw the record change, on its own clock (CLOCK_BOOTTIME)."""

    version: str
    changed_ms: int


def watched(before: Watched | None, found: Versioned, now_ms: int) -> Watched:
    """Return what the elector remembers after a read; each renewal is a new version."""
    if before is not None and before.version == found.version:
        return before
    return Watched(found.version, now_ms)


class Loss(StrEnum):
    """Reasons why a master is considered lost, as shown in events."""

    GONE = "Gone"
    """Its process has ended, or its pod was deleted."""
    NO_MASTER = "NoMaster"
    """It answers, but is not the master that the record names."""
    REPLICATION_LOST = "ReplicationLost"
    """Neither the elector nor any member of the set can reach it."""
    LEASE_EXPIRED = "LeaseExpired"
    """It does not renew the record, and no member of the set replicates from it."""


def loss(
    found: Versioned,
    statuses: Statuses,
    watched: Watched,
    now_ms: int,
    *,
    timing: Timing,
    is_gone: bool = False,
    unheard_ms: int = 0,
) -> Loss | None:
    """Return why the recorded master is considered lost; None if it is not.

    `is_gone` means that, according to the platform, its process has ended. `unheard_ms` is the time
    since its last answer to the elector. A master that its members still follow is not replaced
    even if it does not renew the record, because only its own path to the record is broken.
    """
    record = found.record
    holder = _status(statuses, record.holder.ordinal)
    if holder is not None and not _leads_or_will(holder, record):
        return Loss.NO_MASTER
    if is_gone:
        return Loss.GONE
    members = [one for one in statuses if one.copy in record.in_sync and one.copy != record.holder]
    lost = [one for one in members if one.has_lost_master or one.epoch != record.epoch]
    if holder is None and unheard_ms >= timing.heard_within_ms and lost:
        return Loss.REPLICATION_LOST
    is_expired = now_ms - watched.changed_ms >= timing.lease_duration_ms
    return Loss.LEASE_EXPIRED if is_expired and len(lost) == len(members) else None


def _leads_or_will(status: Status, record: Record) -> bool:
    """Return whether a holder is its epoch's master or can still become it without a restart."""
    if status.copy != record.holder or status.role is Role.FAILED:
        return False
    if status.role in LIVE_ROLES:
        return status.epoch == record.epoch
    return status.role is Role.RECOVERING or status.promised < record.epoch


# ---- decisions -------------------------------------------------------------------------------


def decide(
    group: Group,
    found: Versioned,
    statuses: Statuses,
    *,
    is_master_lost: bool,
    removing: Collection[int] = (),
) -> Actions:
    """Return the actions for a group with a record: elect, or complete the last election."""
    if is_master_lost:
        return elect(found, statuses, removing=removing)
    record = found.record
    if promises_beyond(record, statuses):
        return renew_epoch(found, statuses)
    planned = retire(group, record, statuses, removing) or resize(group, record)
    return (*complete(record, statuses), *planned)


def promises_beyond(record: Record, statuses: Statuses) -> int:
    """Return the highest promise above the record's epoch of a member that should follow; else 0.

    Such a member was fenced for an election that did not take place. It can never follow the
    present epoch again. The result is 0 while the recorded master does not lead.
    """
    holder = _status(statuses, record.holder.ordinal)
    if holder is None or holder.copy != record.holder:
        return 0
    if (holder.role, holder.epoch) != (Role.MASTER, record.epoch):
        return 0
    promises = [one.promised for one in statuses if one.role in CANDIDATE_ROLES]
    return max((promised for promised in promises if promised > record.epoch), default=0)


def renew_epoch(found: Versioned, statuses: Statuses) -> Actions:
    """Return the action that makes the acting master the master of an epoch above all promises.

    This is safe without other promises, whatever the policy: everything confirmed in this epoch was
    confirmed by this master, which has everything confirmed before.
    """
    record = found.record
    epoch = promises_beyond(record, statuses) + 1
    return (Elect(found, record.elected(record.holder, epoch)),)


def complete(record: Record, statuses: Statuses) -> Actions:
    """Return the orders that put the record into effect, even if another elector wrote it."""
    holder = _status(statuses, record.holder.ordinal)
    if holder is None or holder.copy != record.holder:
        return ()
    if holder.role in CANDIDATE_ROLES and holder.promised < record.epoch:
        return (Promote(record.holder.ordinal, record.epoch),)
    if holder.role is not Role.MASTER or holder.epoch != record.epoch:
        return ()
    return tuple(
        Follow(one.copy.ordinal, record.epoch, record.holder.ordinal)
        for one in statuses
        if one.copy.ordinal != record.holder.ordinal
        and one.role not in (Role.RECOVERING, Role.FAILED)
        and one.epoch < record.epoch >= one.promised
    )


def elect(found: Versioned, statuses: Statuses, *, removing: Collection[int] = ()) -> Actions:
    """Return the actions that elect another holder, or the conditions still unmet."""
    record = found.record
    voters = tuple(one for one in statuses if may_vote(record, one))
    if record.policy is Policy.MAJORITY:
        needed = promise_quorum(record)
        reached = tuple(one for one in statuses if may_promise(record, one))
        voters = tuple(one for one in voters if has_promised(record, one))
        if len(reached) < needed:
            text = f"{len(reached)} of {record.copies} copies answer, {needed} are needed"
            return (Wait(Blocked.NO_QUORUM, text),)
        if len(voters) < needed:
            return tuple(
                Fence(one.copy.ordinal, record.epoch + 1) for one in reached if one not in voters
            )
    elif not voters:
        copies = ", ".join(str(copy.ordinal) for copy in record.in_sync)
        text = f"no member of the in-sync set (brokers {copies}) answers with the recorded store"
        return (Wait(Blocked.NO_CANDIDATE, text),)
    epoch = max([record.epoch, *(one.promised for one in voters)]) + 1
    voters = without_fenced_holder(record, voters)
    winner = max(voters, key=lambda one: rank(record, one, removing))
    tables = most_complete_tables(voters) if record.policy is Policy.MAJORITY else None
    return (Elect(found, record.elected(winner.copy, epoch, tables=tables)),)


def may_vote(record: Record, status: Status) -> bool:
    """Return whether a member counts in an election: only the recorded incarnation does (R2)."""
    return status.copy in record.in_sync and status.role in CANDIDATE_ROLES


def may_promise(record: Record, status: Status) -> bool:
    """Return whether a member can be asked for a promise, even while it leads or prepares to (R11).

    A winner that cannot fetch its tables stays in `Role.PROMOTING`, and its vote is needed again.
    """
    return may_vote(record, status) or (status.copy in record.in_sync and status.role in LIVE_ROLES)


def has_promised(record: Record, status: Status) -> bool:
    """Return whether a member can no longer acknowledge to the current master (R11)."""
    return status.promised > record.epoch


def without_fenced_holder(record: Record, voters: Statuses) -> Statuses:
    """Return the voters that may win; a fenced holder is one only if the others cannot elect.

    A recorded holder that promised a later epoch was stopped by an order, of an administrator or,
    under `Policy.MAJORITY`, of an elector. Of a majority's votes, those without the holder's have
    to be a quorum of their own (R11).
    """
    others = tuple(one for one in voters if not is_fenced_holder(record, one))
    needed = promise_quorum(record) if record.policy is Policy.MAJORITY else 1
    return others if len(others) >= needed else voters


def is_fenced_holder(record: Record, status: Status) -> bool:
    """Return whether a member is the recorded holder and was ordered to stop.

    A holder that restarted or fenced itself has promised its own epoch, and no later one.
    """
    return status.copy == record.holder and has_promised(record, status)


def rank(record: Record, status: Status, removing: Collection[int] = ()) -> tuple[bool | int, ...]:
    """Return a candidate's sort key; with equal logs, the lower ordinal is preferred.

    Under `Policy.MAJORITY` the log comes first (R11). Under `Policy.ALL_IN_SYNC` every member of
    the set is safe, so a member that is being removed comes last, whatever its log.
    """
    stays = status.copy.ordinal not in removing
    log = (status.last_log_epoch, status.max_offset)
    if record.policy is Policy.ALL_IN_SYNC:
        return (stays, *log, -status.copy.ordinal)
    return (*log, not is_fenced_holder(record, status), stays, -status.copy.ordinal)


def most_complete_tables(statuses: Statuses) -> TablesAt:
    """Return the location of the tables that contain every answered change (R11).

    Tables are confirmed separately from the log, so the winner's own tables may lack a change that
    another majority has confirmed.
    """
    best = max(statuses, key=lambda one: (one.tables_epoch, one.tables, -one.copy.ordinal))
    return TablesAt(best.copy, best.tables_epoch, best.tables)


# ---- a record that is missing ----------------------------------------------------------------


def restore_epoch(statuses: Statuses) -> int:
    """Return the epoch for fence orders while the record is missing; the elector remembers it."""
    return max([0, *(one.promised for one in statuses)]) + 1


def restore(
    group: Group, statuses: Statuses, fence_epoch: int, uid: str, *, accept_loss: bool = False
) -> Actions:
    """Return how to create the record of a new group, or of one whose record was deleted (R10).

    All members are fenced before their offsets are compared. Otherwise a master that still answers
    clients could acknowledge more messages after its offset was read. The answers to the fence
    orders cannot become outdated while there is no record.

    A store that has lost something since it was in the set is never chosen. It may have been the
    only member of the set, so an operator has to accept the loss explicitly (`accept_loss`). The
    same holds for a store of the last known set that does not take part: nobody is fenced for it,
    because a master may still acknowledge without a record.
    """
    usable = {
        one.copy.ordinal: one for one in statuses if one.role not in (Role.RECOVERING, Role.FAILED)
    }
    missing = [ordinal for ordinal in group.ordinals if ordinal not in usable]
    if missing:
        text = f"there is no record, and brokers {missing} do not answer; all must answer"
        return (Wait(Blocked.MEMBERS_MISSING, text),)
    members = tuple(usable[ordinal] for ordinal in group.ordinals)
    if (absent := left_out(members)) and not accept_loss:
        return (Wait(Blocked.COPY_LEFT_OUT, _left_out_text(absent, group)),)
    unfenced = [one for one in members if not is_fenced(one, fence_epoch)]
    if unfenced:
        return tuple(Fence(one.copy.ordinal, fence_epoch) for one in unfenced)
    eligible = tuple(one for one in members if one.standing is Standing.PROVEN)
    if all(one.last_log_epoch == 0 for one in members):  # a new group: no master ever opened
        eligible = members
    suspects = [one.copy.ordinal for one in members if one.standing is Standing.SUSPECT]
    if suspects and not accept_loss:
        text = (
            f"there is no record, and the stores of brokers {suspects} may have lost messages that"
            " no other has: a person has to accept that"
        )
        return (Wait(Blocked.SUSPECT_COPY, text),)
    if not eligible and not accept_loss:
        text = "there is no record, and no store was ever in sync: a person has to accept a loss"
        return (Wait(Blocked.NO_PROVEN_COPY, text),)
    best = max(eligible or members, key=completeness)
    record = Record(
        uid=uid,
        group=group.name,
        epoch=max(one.promised for one in members) + 1,
        holder=best.copy,
        in_sync=(best.copy,),
        policy=group.policy,
        copies=group.copies,
        tables=most_complete_tables(members) if group.policy is Policy.MAJORITY else None,
    )
    return (Create(record),)


def left_out(members: Statuses) -> tuple[Copy, ...]:
    """Return the copies that a member last saw in sync and that are not among the members.

    Each of them may be the only store with the newest messages. A store whose incarnation was
    replaced counts if its successor at this broker was never in the set: it began empty.
    """
    known = {copy for one in members for copy in one.last_in_sync}
    new = {one.copy.ordinal for one in members if one.standing is Standing.NEW}
    asked = {one.copy.ordinal for one in members}
    here = {one.copy for one in members}
    return tuple(
        copy for copy in sorted(known - here) if copy.ordinal in new or copy.ordinal not in asked
    )


def _left_out_text(absent: tuple[Copy, ...], group: Group) -> str:
    missing = sorted({copy.ordinal for copy in absent} - set(group.ordinals))
    replaced = sorted({copy.ordinal for copy in absent} & set(group.ordinals))
    facts = []
    if missing:
        facts.append(
            f"brokers {missing}, which were in sync when the others last read the record, are not"
            " among the brokers asked: add them to controlMembers (--members)"
        )
    if replaced:
        facts.append(
            f"brokers {replaced} were in sync with other stores than they have now: start them"
            " with those stores"
        )
    return (
        f"there is no record, and {'; '.join(facts)}; if those stores are lost, so may be"
        " acknowledged messages: a person has to accept that"
    )


def completeness(status: Status) -> tuple[int, ...]:
    """Return a sort key for stores by the data they hold; ties go to the lower ordinal."""
    tables = (status.tables_epoch, status.tables)
    return (status.last_log_epoch, status.max_offset, *tables, -status.copy.ordinal)


def is_fenced(status: Status, fence_epoch: int) -> bool:
    """Return whether a member has stopped for this fence order or a later one."""
    return status.role is Role.FENCED and status.promised >= fence_epoch


# ---- planned changes -------------------------------------------------------------------------

SWITCHOVER_LAG_BYTES_MAX: Final = 1 << 20


def switch_over(
    record: Record, statuses: Statuses, target: int | None = None, *, leaves: bool = False
) -> HandOver | Wait:
    """Return the order that makes another member the master without failing a send.

    If `target` is None, the member with the smallest lag is chosen.
    """
    holder = _status(statuses, record.holder.ordinal)
    if holder is None or holder.role is not Role.MASTER or holder.epoch != record.epoch:
        text = f"broker {record.holder.ordinal} is not the acting master of epoch {record.epoch}"
        return Wait(Blocked.NO_MASTER, text)
    fit = [
        one
        for one in statuses
        if one.copy in record.in_sync
        and one.copy != record.holder
        and (one.role, one.epoch) == (Role.SLAVE, record.epoch)
        and one.lag_bytes < SWITCHOVER_LAG_BYTES_MAX
        and target in (None, one.copy.ordinal)
    ]
    if not fit:
        name = "no member" if target is None else f"broker {target} is not one that"
        text = f"{name} is in sync, follows epoch {record.epoch} and lags by less than 1 MiB"
        return Wait(Blocked.TARGET_UNFIT, text)
    best = min(fit, key=lambda one: (one.lag_bytes, one.copy.ordinal))
    return HandOver(record.holder.ordinal, best.copy.ordinal, leaves)


def retire(group: Group, record: Record, statuses: Statuses, removing: Collection[int]) -> Actions:
    """Return the next step in removing members from the group; nothing once they are out.

    The master itself changes the set, so that its counts stay correct (R8); a master that is being
    removed hands over first. `min_in_sync` is preserved: if it leaves no choice, the set first gets
    room for a successor of the member that leaves.
    """
    leaving = [copy for copy in record.in_sync if copy.ordinal in removing]
    if not leaving:
        return ()
    is_full = len(record.in_sync) == record.copies and record.policy is Policy.ALL_IN_SYNC
    if record.holder in leaving:
        if is_full and len(leaving) == record.copies:  # no successor could join
            return (Resize(record.holder.ordinal, record.copies + 1),)
        stay = tuple(one for one in statuses if one.copy.ordinal not in removing)
        holder = tuple(one for one in statuses if one.copy == record.holder)
        return (switch_over(record, (*stay, *holder), leaves=True),)
    if len(record.in_sync) <= group.min_in_sync:
        if is_full:
            return (Resize(record.holder.ordinal, record.copies + 1),)
        text = f"{len(record.in_sync)} copies are in sync and {group.min_in_sync} are needed"
        return (Wait(Blocked.TOO_FEW_IN_SYNC, text),)
    return (Drop(record.holder.ordinal, leaving[0].ordinal),)


def resize(group: Group, record: Record) -> Actions:
    """Return the step towards the configured number of copies; none if the record has it."""
    if group.copies == record.copies:
        return ()
    if record.policy is Policy.MAJORITY:
        text = (
            f"the group is configured with {group.copies} copies and recorded with"
            f" {record.copies}: with the policy {record.policy} that cannot be changed"
        )
        return (Wait(Blocked.COPIES_FIXED, text),)
    return (Resize(record.holder.ordinal, group.copies),)


def _status(statuses: Statuses, ordinal: int) -> Status | None:
    return next((one for one in statuses if one.copy.ordinal == ordinal), None)
