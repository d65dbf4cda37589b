# SPDX-License-Identifier: Apache-2.0
"""Whether the master that a record names is lost, and why (pure); the caller keeps
a `Watched` between calls.
"""

from enum import StrEnum

import msgspec

from cometmq.ha.actions import Status, Statuses, status_of
from cometmq.ha.fencing import Timing
from cometmq.ha.record import Record, Versioned
from cometmq.ha.role import Role


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

    `is_gone`: its process has ended. `unheard_ms` counts from its last answer to the elector. A
    master that fails to renew is kept while its members follow it: only its own path to the record
    is broken. A new master's silence counts from the change of epoch, as nobody follows it yet.
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


def _leads_or_will(status: Status, record: Record) -> bool:
    """Return whether a holder is its epoch's master or can still become it without a restart."""
    if status.copy != record.holder or status.role is Role.FAILED:
        return False
    if status.role.is_live:
        return status.epoch == record.epoch
    return status.role is Role.RECOVERING or status.promised < record.epoch
