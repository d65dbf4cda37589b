# SPDX-License-Identifier: Apache-2.0
"""The interface between the control API and the group member that it controls."""

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Final, NamedTuple, Protocol

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
    """Fingerprints of the accepted keys, the own one first; empty in answers without a proof."""
    electors: int | None = None
    """The number of electors that watch the member; None if that is unknown."""
    risk: str = ""
    """Why programs without the group's key can pose as members; empty if they cannot."""


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

    An order that does not fit raises OrderRefused, an invalid value SettingsError; nothing has
    changed then. Orders are not cancelled if the caller disconnects.
    """

    def report(self) -> Report:
        """Return the current state; `status.promised` was saved before the offsets were read.

        Electors rely on that: from then on, no master of a lower epoch extends this log.
        """

    async def changed(self) -> None:
        """Wait until the member has completed an event, which may change its role and epoch."""

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


ELECTOR_KEY: Final = "cometmq-elector"
"""The key in the metadata of a call; the value is a random id and the interval in ms."""
SILENCE_MS: Final = 5_000
INTERVALS: Final = 3
"""An elector is gone once it has been silent for SILENCE_MS, or for this many of its intervals."""
FIRST_MS: Final = 3_000
"""For this time after its start, a member cannot know whether there is an elector."""
ELECTORS_MAX: Final = 32
INTERVAL_MS_MAX: Final = 60_000


def elector_mark(name: str, interval_ms: int) -> str:
    """Return the metadata value of an elector's calls."""
    return f"{name};{interval_ms}"


class Electors:
    """The electors that have called a member lately."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        """`now_ms` reads a monotonic clock."""
        self._now_ms = now_ms
        self._started_ms = now_ms()
        self._until_ms: dict[str, int] = {}
        """When each elector counts as gone, by its id."""

    def heard(self, mark: str) -> None:
        """Note a call of an elector; ignore a malformed mark."""
        name, _, interval = mark.partition(";")
        if not (interval.isascii() and interval.isdecimal()) or len(interval) > 6:
            return
        silence_ms = max(SILENCE_MS, INTERVALS * min(int(interval), INTERVAL_MS_MAX))
        self._until_ms.pop(name, None)
        self._until_ms[name] = self._now_ms() + silence_ms
        while len(self._until_ms) > ELECTORS_MAX:
            del self._until_ms[next(iter(self._until_ms))]

    @property
    def count(self) -> int | None:
        """The number of electors; None while the member has run for too short a time to know."""
        now_ms = self._now_ms()
        count = sum(until_ms > now_ms for until_ms in self._until_ms.values())
        return None if not count and now_ms - self._started_ms < FIRST_MS else count
