# SPDX-License-Identifier: Apache-2.0
"""An elector's view of a broker group, and the actions that it can take: plain values.

The modules `election`, `planned` and `missing_record` decide which actions are taken.
"""

from enum import StrEnum
from typing import Generic, TypeVar

import msgspec

from cometmq.ha.orders import Order
from cometmq.ha.record import Copy, Record, Versioned
from cometmq.ha.role import Role
from cometmq.ha.state import Standing
from cometmq.remoting.errors import SettingsError

Told_co = TypeVar("Told_co", bound=Order, covariant=True)


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
    """The epoch of the master that the member's tables come from."""
    tables: int = 0
    """Number of table changes made in that epoch that the tables contain."""
    standing: Standing = Standing.NEW
    has_lost_master: bool = False
    """The member follows a master but has not heard from it for a while."""
    lag_bytes: int = 0
    """Bytes by which the member's log lags behind its master's; for planned switchovers."""
    is_full: bool = False
    """The member's disk is full or refuses writes."""
    has_room: bool = False
    """The member's disk has enough room to become master in place of one whose disk is full."""
    last_in_sync: tuple[Copy, ...] = ()
    """The in-sync set in the record that the member saw last; that record may have been deleted."""


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration of a broker group."""

    name: str
    ordinals: tuple[int, ...]
    """The ordinals of all brokers that should exist."""
    min_in_sync: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.min_in_sync <= self.copies:
            raise SettingsError(
                f"minInSync is {self.min_in_sync}, but group {self.name!r} has {self.copies}"
                " copies: give it a value from 1 to the number of copies"
            )

    @property
    def copies(self) -> int:
        """The number of copies that the group should have."""
        return len(self.ordinals)


class Elect(msgspec.Struct, frozen=True):
    """Replace `base` with `record`; the elector then reads the record and decides again."""

    base: Versioned
    record: Record


class Create(msgspec.Struct, frozen=True):
    """Create the record; the elector then reads the record and decides again."""

    record: Record


class Tell(msgspec.Struct, Generic[Told_co], frozen=True):
    """Give a member an order."""

    ordinal: int
    order: Told_co


class Blocked(StrEnum):
    """Reasons why the elector must wait, as shown in events and conditions."""

    NO_CANDIDATE = "NoCandidate"
    MEMBERS_MISSING = "MembersMissing"
    SUSPECT_COPY = "SuspectCopy"
    NO_PROVEN_COPY = "NoProvenCopy"
    COPY_LEFT_OUT = "CopyLeftOut"
    NO_MASTER = "NoMaster"
    TARGET_UNFIT = "TargetUnfit"
    TOO_FEW_IN_SYNC = "TooFewInSync"
    WRONG_GROUP = "WrongGroup"
    RECORD_ELSEWHERE = "RecordElsewhere"
    RECORD_OLD = "RecordOld"


class Wait(msgspec.Struct, frozen=True):
    """The elector can do nothing until a condition is met; `text` names it."""

    reason: Blocked
    text: str


Action = Elect | Create | Tell[Order] | Wait
Actions = tuple[Action, ...]
Statuses = tuple[Status, ...]


def leads(status: Status, record: Record) -> bool:
    """Return whether a member is the master that the record names: this copy, in this epoch."""
    is_named = (status.copy, status.epoch) == (record.holder, record.epoch)
    return is_named and status.role.is_leading


def status_of(statuses: Statuses, ordinal: int) -> Status | None:
    """Return a member's status, or None if it did not answer."""
    return next((one for one in statuses if one.copy.ordinal == ordinal), None)
