# SPDX-License-Identifier: Apache-2.0
"""The actions of an elector, given a record and the states of the members (pure).

`cometmq elector` and the Kubernetes operator repeatedly read the record and the members' states,
and perform what `decide` returns. These rules keep nothing; their callers remember `Watched` and,
while a record is missing, the epoch of `restore_epoch`. An elector may die at any point, and two
electors that run at the same time can at worst make each other's compare-and-swap fail.

The record is read with a quorum. A state is one answer of one member and is consistent: the member
saved its promise before it read its offsets.
"""

from collections.abc import Collection
from enum import StrEnum

import msgspec

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
from cometmq.ha.fencing import Timing
from cometmq.ha.orders import Follow, Promote
from cometmq.ha.planned import relieve, resize, retire
from cometmq.ha.record import Record, Versioned
from cometmq.ha.role import Role

# ---- is the master lost? ---------------------------------------------------------------------


class Watched(msgspec.Struct, frozen=True):
    """When the elector last saw the record and its epoch change, by its own CLOCK_BOOTTIME."""

    version: str
    changed_ms: int
    epoch: int = 0
    epoch_ms: int = 0


def watched(before: Watched | None, found: Versioned, now_ms: int) -> Watched:
    """Return the updated `Watched` after a read; each renewal gives the record a new version."""
    if before is not None and before.version == found.version:
        return before
    epoch, epoch_ms = found.record.epoch, now_ms
    if before is not None and before.epoch == epoch:
        epoch_ms = before.epoch_ms
    return Watched(found.version, now_ms, epoch, epoch_ms)


class Loss(StrEnum):
    """Reasons why a master is considered lost, as shown in events."""

    GONE = "Gone"
    """Its process has ended, or its pod was deleted."""
    NO_MASTER = "NoMaster"
    """It answers, but is not the master that the record names."""
    REPLICATION_LOST = "ReplicationLost"
    """Neither the elector nor any member of the set can reach it."""
    LEASE_EXPIRED = "LeaseExpired"
    """It is not renewing the record, and no member of the set is replicating from it."""


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
    since its last answer to the elector. A master that fails to renew the record is not replaced
    while its members still follow it, because then only its own path to the record is broken. The
    silence of a new master counts only from the change of epoch, because right after a
    switchover no member follows it yet.
    """
    record = found.record
    holder = status_of(statuses, record.holder.ordinal)
    if holder is not None and not _leads_or_will(holder, record):
        return Loss.NO_MASTER
    if is_gone:
        return Loss.GONE
    members = [one for one in statuses if one.copy in record.in_sync and one.copy != record.holder]
    lost = [one for one in members if one.has_lost_master or one.epoch != record.epoch]
    silent_ms = min(unheard_ms, now_ms - watched.epoch_ms)
    if holder is None and silent_ms >= timing.heard_within_ms and lost:
        return Loss.REPLICATION_LOST
    is_expired = now_ms - watched.changed_ms >= timing.lease_duration_ms
    return Loss.LEASE_EXPIRED if is_expired and len(lost) == len(members) else None


def beyond(record: Record, statuses: Statuses) -> Statuses:
    """Return the members whose logs contain an epoch later than the record's.

    A log begins an epoch only after the record has named it, so the record had that epoch once. If
    it was read after the answers of these members, it has been replaced by an older one.
    """
    return tuple(one for one in statuses if one.last_log_epoch > record.epoch)


def _leads_or_will(status: Status, record: Record) -> bool:
    """Return whether a holder is its epoch's master or can still become it without a restart."""
    if status.copy != record.holder or status.role is Role.FAILED:
        return False
    if status.role.is_live:
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
    """Return the actions for a group with a record: elect a master, renew the epoch, change the
    members, or complete the last election.
    """
    if is_master_lost:
        return elect(found, statuses, removing=removing)
    record = found.record
    if promises_beyond(record, statuses):
        return renew_epoch(found, statuses)
    planned = (
        retire(group, record, statuses, removing)
        or resize(group, record)
        or relieve(group, record, statuses, removing)
    )
    return (*complete(record, statuses), *planned)


def promises_beyond(record: Record, statuses: Statuses) -> int:
    """Return the highest promise of a potential follower above the record's epoch, or 0.

    Such a member was fenced for an election that did not take place, so it can never follow the
    current epoch again. The result is also 0 while the recorded master does not lead.
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
    """Return the voters that may win: a holder that an administrator fenced only if it is alone."""
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
