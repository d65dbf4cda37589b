# SPDX-License-Identifier: Apache-2.0
"""One group member as the elector sees it: its last status, and how long it has been silent."""

from collections.abc import AsyncIterator
from typing import Protocol

from cometmq.control.member import Report
from cometmq.ha.actions import Status
from cometmq.remoting.errors import CometError
from cometmq.remoting.log import Log


class Link(Protocol):
    """The calls of `cometmq.control.client.MemberClient` that an elector makes."""

    async def status(self, *, timeout_ms: int) -> Report: ...

    def watch(self, *, interval_ms: int, silence_ms: int) -> AsyncIterator[Report]: ...

    async def is_refusing(self) -> bool: ...

    async def promote(self, epoch: int) -> Report: ...

    async def follow(self, epoch: int, master: int) -> Report: ...

    async def fence(self, epoch: int) -> Report: ...

    async def hand_over(self, successor: int, *, leaves: bool) -> Report: ...

    async def drop(self, ordinal: int) -> Report: ...

    async def resize(self, copies: int) -> Report: ...


class Member:
    def __init__(self, ordinal: int, link: Link, *, log: Log) -> None:
        self.ordinal = ordinal
        self.link = link
        self.report: Report | None = None
        """The answer of this round."""
        self.fault = "has not been asked yet"
        """Why the member did not answer; empty if it did."""
        self.silent_since_ms: int | None = None
        self.given: tuple[object, ...] = ()
        """The last order and its outcome, so that repetitions are not logged."""
        self._is_logged = False
        self._log = log

    @property
    def status(self) -> Status | None:
        return None if self.report is None else self.report.status

    def unheard_ms(self, now_ms: int) -> int:
        """Return the time since the first unanswered request."""
        return 0 if self.silent_since_ms is None else now_ms - self.silent_since_ms

    async def ask(self, *, timeout_ms: int, now_ms: int) -> None:
        """Ask for the status; a member that does not answer has no status in this round."""
        try:
            self.report = await self.link.status(timeout_ms=timeout_ms)
        except CometError as error:
            self.report = None
            self.fault = str(error)
            if self.silent_since_ms is None:
                self.silent_since_ms = now_ms
            if not self._is_logged:
                self._is_logged = True
                self._log.warning("member.silent", ordinal=self.ordinal, error=self.fault)
            return
        self.fault = ""
        self.silent_since_ms = None
        if self._is_logged:
            self._is_logged = False
            self._log.info(
                "member.answers", ordinal=self.ordinal, role=str(self.report.status.role)
            )
