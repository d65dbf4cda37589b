# SPDX-License-Identifier: Apache-2.0
"""The interface between the control API and the group member that it controls."""

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple, Protocol

import msgspec

from cometmq.ha.actions import Status
from cometmq.ha.orders import Order
from cometmq.remoting.errors import CometError


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A member's answer to GetStatus: facts that elections need, and details for administrators."""

    group: str
    status: Status
    master: int | None = None
    """The ordinal of the master that this member follows."""
    confirm_offset: int = 0
    record_uid: str = ""
    """The uid of the record when the member last read it; empty if there was no record."""
    version: str = ""
    fault: str = ""
    """Why the member cannot serve clients as its role requires; empty if it can."""
    group_keys: tuple[str, ...] = ()
    """Fingerprints of the group's keys that the member accepts; it proves itself with the first
    one. Empty in answers without a proof.
    """
    electors: int | None = None
    """The number of electors that watch the member; None if that is unknown."""
    risk: str = ""
    """Why programs without the group's key can pose as members on the replication
    port; empty if they cannot.
    """


def lasting(report: Report) -> Report:
    """Return a report without the figures that change with each message, to compare two reports."""
    status = msgspec.structs.replace(
        report.status, last_log_epoch=0, max_offset=0, tables=0, lag_bytes=0
    )
    return msgspec.structs.replace(report, status=status, confirm_offset=0)


class ConfigChange(msgspec.Struct, frozen=True):
    """The outcome of a settings change, by setting name."""

    applied: tuple[str, ...] = ()
    needs_restart: tuple[str, ...] = ()
    """Saved settings that take effect at the next start."""


class Controlled(Protocol):
    """A member of a broker group, as seen by its control server.

    An order that does not fit the member's state raises `cometmq.ha.member.OrderRefused`; invalid
    values raise SettingsError. In both cases nothing has changed. Orders are not cancelled if the
    caller disconnects.
    """

    def report(self) -> Report:
        """Return the current state.

        The member must save `status.promised` before it reads the offsets in the report. From then
        on, no master of a lower epoch extends this log, and electors rely on that.
        """

    async def changed(self) -> None:
        """Wait until the member has completed an event, after which its role, epoch and promise may
        be different.
        """

    async def obey(self, order: Order) -> None:
        """Carry out an order; `cometmq.ha.orders` says what each kind does, and when it is done."""

    async def update_config(self, changes: Mapping[str, str]) -> ConfigChange:
        """Change all of these settings or none, and save them if the settings file is writable."""


class Target(NamedTuple):
    """The member to which a request is addressed."""

    group: str
    ordinal: int

    def __str__(self) -> str:
        """Return the name that error messages use."""
        return f"broker {self.ordinal} of group {self.group!r}"


class Reason(StrEnum):
    """Reasons for refusing a request, in addition to `cometmq.ha.member.OrderRefusal`."""

    WRONG_MEMBER = "WRONG_MEMBER"
    INVALID_CONFIG = "INVALID_CONFIG"
    UNPROVEN = "UNPROVEN"
    TOO_MANY_CALLS = "TOO_MANY_CALLS"


class MemberUnreachable(CometError):
    """A member did not answer; it may have received the request."""


class MemberUnproven(MemberUnreachable):
    """The member and this program do not prove to each other that they know the group's key."""


class WrongMember(CometError):
    """A different member answers at this address."""
