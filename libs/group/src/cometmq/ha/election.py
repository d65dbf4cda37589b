# SPDX-License-Identifier: Apache-2.0
"""The actions of an elector, given a record and the states of the members (pure).

`cometmq elector` and the Kubernetes operator repeatedly read the record and the members' states,
and perform what `decide` returns. No state is kept here between calls. An elector may be killed at
any point, and two electors that run at the same time can at worst make each other's
compare-and-swap fail.

The record is read with a quorum. A state is one answer of one member and is consistent: the member
saved its promise before it read its offsets.
"""

from collections.abc import Collection

from cometmq.ha.actions import (
    Actions,
    Blocked,
    Elect,
    Group,
    Status,
    Statuses,
    Tell,
    Wait,
    status_of,
)
from cometmq.ha.orders import Follow, Promote
from cometmq.ha.planned import next_change
from cometmq.ha.record import Record, Versioned
from cometmq.ha.role import Role


def decide(
    group: Group,
    found: Versioned,
    statuses: Statuses,
    *,
    is_master_lost: bool,
    removing: Collection[int] = (),
) -> Actions:
    """Return the actions for a group with a record: elect a master, renew the epoch, change the
    members, or complete the last election.

    If a member's log has a later epoch than the record, wait: the record is an old version, whose
    in-sync set may name copies that left the set long ago.
    """
    record = found.record
    # A log begins an epoch only after the record has named it, so the record had that epoch once.
    if later := [one for one in statuses if one.last_log_epoch > record.epoch]:
        text = (
            f"the record has epoch {record.epoch}, but the logs of brokers"
            f" {[one.copy.ordinal for one in later]} contain epoch"
            f" {max(one.last_log_epoch for one in later)}: an old record was restored. Start all"
            " brokers, then delete the record; it is created again from the most complete store"
        )
        return (Wait(Blocked.RECORD_OLD, text),)
    if is_master_lost:
        return elect(found, statuses, removing=removing)
    if promises_beyond(record, statuses):
        return renew_epoch(found, statuses)
    return (*complete(record, statuses), *next_change(group, record, statuses, removing))


def promises_beyond(record: Record, statuses: Statuses) -> int:
    """Return the highest epoch above the record's that a potential follower has promised; 0 if none
    has, or while the recorded master does not lead.

    A member with such a promise was fenced for an election that did not take place, so it can never
    follow the current epoch again.
    """
    holder = status_of(statuses, record.holder.ordinal)
    if holder is None or holder.copy != record.holder:
        return 0
    if (holder.role, holder.epoch) != (Role.MASTER, record.epoch):
        return 0
    promises = [one.promised for one in statuses if one.role.is_candidate]
    return max((promised for promised in promises if promised > record.epoch), default=0)


def renew_epoch(found: Versioned, statuses: Statuses) -> Actions:
    """Return the action that gives the acting master an epoch above all promises.

    It needs no promises from other members: this master has confirmed everything that was confirmed
    in its epoch, and it holds everything that was confirmed in earlier epochs.
    """
    record = found.record
    epoch = promises_beyond(record, statuses) + 1
    return (Elect(found, record.elected(record.holder, epoch)),)


def complete(record: Record, statuses: Statuses) -> Actions:
    """Return the orders that put the record into effect, even if another elector wrote it."""
    holder = status_of(statuses, record.holder.ordinal)
    if holder is None or holder.copy != record.holder:
        return ()
    if holder.role.is_candidate and holder.promised < record.epoch:
        return (Tell(record.holder.ordinal, Promote(record.epoch)),)
    if holder.role is not Role.MASTER or holder.epoch != record.epoch:
        return ()
    return tuple(
        Tell(one.copy.ordinal, Follow(record.epoch, record.holder.ordinal))
        for one in statuses
        if one.copy.ordinal != record.holder.ordinal
        and one.role.has_store
        and one.epoch < record.epoch >= one.promised
    )


def elect(found: Versioned, statuses: Statuses, *, removing: Collection[int] = ()) -> Actions:
    """Return the actions that elect a new holder, or the conditions that are still unmet."""
    record = found.record
    voters = tuple(one for one in statuses if may_vote(record, one))
    if not voters:
        copies = ", ".join(str(copy.ordinal) for copy in record.in_sync)
        text = f"no member of the in-sync set (brokers {copies}) answers with the recorded store"
        return (Wait(Blocked.NO_CANDIDATE, text),)
    epoch = max([record.epoch, *(one.promised for one in voters)]) + 1
    candidates = without_fenced_holder(record, voters)
    winner = max(candidates, key=lambda one: rank(one, removing))
    return (Elect(found, record.elected(winner.copy, epoch)),)


def may_vote(record: Record, status: Status) -> bool:
    """Return whether a member counts in an election; only recorded incarnations do (R2)."""
    return status.copy in record.in_sync and status.role.is_candidate


def without_fenced_holder(record: Record, voters: Statuses) -> Statuses:
    """Return the voters that may win; leave out a holder that an administrator has
    fenced, unless it is the only voter.
    """
    return tuple(one for one in voters if not is_fenced_holder(record, one)) or voters


def is_fenced_holder(record: Record, status: Status) -> bool:
    """Return whether a member is the recorded holder and was ordered to stop.

    A holder that restarted or fenced itself has promised no epoch later than its own.
    """
    return status.copy == record.holder and status.promised > record.epoch


def rank(status: Status, removing: Collection[int] = ()) -> tuple[bool | int, ...]:
    """Return a candidate's sort key; with equal logs, the lower ordinal is preferred.

    Every member of the set is safe, so a member that is being removed comes last, whatever its log.
    """
    stays = status.copy.ordinal not in removing
    return (stays, status.last_log_epoch, status.max_offset, -status.copy.ordinal)
