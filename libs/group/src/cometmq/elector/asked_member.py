# SPDX-License-Identifier: Apache-2.0
"""Asks the members of a group for their status, and gives them orders; keeps the answers and when
each last answered.

A member is silent if it did not answer its last request. A probe is a request to a silent member
that no round waits for.

Members also push their status, at intervals and after changes. A pushed status may be older than
the record, so electors decide by it only that there is nothing to do.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Final, Protocol

from cometmq.control.controlled import Report
from cometmq.elector.metrics import ElectorStats
from cometmq.ha.actions import Status, Statuses, Tell
from cometmq.ha.member import OrderRefusal, OrderRefused
from cometmq.ha.orders import Order
from cometmq.remoting.errors import CometError
from cometmq.remoting.log import Log
from cometmq.remoting.transport.tasks import TaskSet

ASK_INTERVALS: Final = 4
"""Members are asked after this many intervals in any case. A member counts the electors that ask
it: that it can still write to the connection of an elector does not prove that this elector lives.
"""
PUSH_LATE_MS: Final = 100


class Link(Protocol):
    """The calls of `cometmq.control.client.MemberClient` that an elector makes."""

    async def status(self, *, timeout_ms: int) -> Report: ...

    def watch(self, *, interval_ms: int, silence_ms: int) -> AsyncIterator[Report]: ...

    async def is_refusing(self) -> bool: ...

    async def order(self, order: Order) -> Report: ...


class AskedMember:
    def __init__(self, ordinal: int, link: Link, *, log: Log) -> None:
        self.ordinal = ordinal
        self.link = link
        self.report: Report | None = None
        self.fault = "has not been asked yet"
        """Why the member did not answer; empty if it did."""
        self.is_silent = False
        self.is_gone = False
        """Whether the member is silent, and its host refuses connections: the process has ended."""
        self.given: tuple[object, ...] = ()
        """The last order, its outcome and error: the order sender logs only changes."""
        self.pushed: Report | None = None
        """The last status that the member pushed over its open stream; None without a stream."""
        self.heard_ms: int | None = None
        """When the last answered request was sent, or the last status was pushed."""
        self._log = log

    @property
    def status(self) -> Status | None:
        return None if self.report is None else self.report.status

    def unheard_ms(self, now_ms: int) -> int:
        """Return the time since the member was last heard, or first asked if it never was."""
        return 0 if self.heard_ms is None else now_ms - self.heard_ms

    def note_pushed(self, report: Report | None, now_ms: int) -> None:
        """Note a status that the member has pushed; None if its stream has ended."""
        self.pushed = report
        if report is not None:
            self.heard_ms = now_ms

    async def ask(self, *, timeout_ms: int, now_ms: int) -> None:
        """Ask for the status; a member that does not answer has no status in this round."""
        self.report = await self.probe(timeout_ms=timeout_ms, now_ms=now_ms)

    async def probe(self, *, timeout_ms: int, now_ms: int) -> Report | None:
        """Note whether the member answers, but leave `report` unchanged: the answer may be older
        than the record that the current round has read.
        """
        if self.heard_ms is None:
            self.heard_ms = now_ms
        try:
            report = await self.link.status(timeout_ms=timeout_ms)
        except CometError as error:
            self.fault = str(error)
            if not self.is_silent:
                self.is_silent = True
                self._log.warning("member.silent", ordinal=self.ordinal, error=self.fault)
            self.is_gone = await self.link.is_refusing()
            return None
        self.heard_ms, self.fault, self.is_gone = max(now_ms, self.heard_ms), "", False
        if self.is_silent:
            self.is_silent = False
            self._log.info("member.answers", ordinal=self.ordinal, role=str(report.status.role))
        return report


class AskedMembers:
    def __init__(
        self,
        links: Mapping[int, Link],
        *,
        interval_ms: int,
        push_ms: int,
        timeout_ms: int,
        now_ms: Callable[[], int],
        wake: asyncio.Event,
        log: Log,
    ) -> None:
        """`wake` is set when a probe finds that a silent member answers, or is or is no longer
        gone.
        """
        self.by_ordinal: Mapping[int, AskedMember] = {
            ordinal: AskedMember(ordinal, link, log=log) for ordinal, link in sorted(links.items())
        }
        self._interval_ms = interval_ms
        self._push_ms = push_ms
        self._asked_ms: int | None = None
        self._timeout_ms = timeout_ms
        self._now_ms = now_ms
        self._wake = wake
        self._probes = TaskSet(log)
        self._probed: set[int] = set()

    @property
    def statuses(self) -> Statuses:
        found = (member.status for member in self.by_ordinal.values())
        return tuple(one for one in found if one is not None)

    def take_pushed(self) -> bool:
        """Take the pushed statuses for answers; return False if it is time to ask."""
        now_ms = self._now_ms()
        oldest_ms = now_ms - self._push_ms - PUSH_LATE_MS
        asks_again = (
            self._asked_ms is None or now_ms - self._asked_ms >= ASK_INTERVALS * self._interval_ms
        )
        for member in self.by_ordinal.values():
            is_late = member.heard_ms is None or member.heard_ms < oldest_ms
            if asks_again or is_late or member.is_silent or member.pushed is None:
                return False
        for member in self.by_ordinal.values():
            member.report = member.pushed
        return True

    def next_late_ms(self, silent_ms: int) -> int | None:
        """Return when the next push is late, or a silent member was silent for `silent_ms`."""
        now_ms = self._now_ms()
        times = [
            member.heard_ms + (silent_ms if member.is_silent else self._push_ms + PUSH_LATE_MS + 1)
            for member in self.by_ordinal.values()
            if member.heard_ms is not None
        ]
        return min((one for one in times if one > now_ms), default=None)

    async def ask_all(self) -> None:
        """Ask each member for its status, and wait; silent members are only probed.

        A round that waited for them would take two timeouts, and delay the election of a master.
        """
        now_ms = self._asked_ms = self._now_ms()
        async with asyncio.TaskGroup() as group:
            for member in self.by_ordinal.values():
                if member.is_silent:
                    member.report = None
                    self._start_probe(member)
                else:
                    group.create_task(member.ask(timeout_ms=self._timeout_ms, now_ms=now_ms))

    async def close(self) -> None:
        await self._probes.close()

    def _start_probe(self, member: AskedMember) -> None:
        if member.ordinal not in self._probed:
            self._probed.add(member.ordinal)
            self._probes.spawn(self._probe(member), name=f"elector-probe-{member.ordinal}")

    async def _probe(self, member: AskedMember) -> None:
        """Probe a silent member once; set `wake` if its state has changed."""
        was_gone = member.is_gone
        try:
            await member.probe(timeout_ms=self._timeout_ms, now_ms=self._now_ms())
        finally:
            self._probed.discard(member.ordinal)
        if not member.is_silent or member.is_gone is not was_gone:
            self._wake.set()


class OrderSender:
    """Sends orders to members, and logs and counts their outcomes; the next round decides anew."""

    def __init__(self, members: Mapping[int, AskedMember], stats: ElectorStats, log: Log) -> None:
        self._members = members
        self._stats = stats
        self._log = log
        self._handovers = TaskSet(log)

    async def close(self) -> None:
        """Stop waiting for handovers, which the members still complete."""
        await self._handovers.close()

    def begin(self, action: Tell[Order]) -> None:
        """Send an order to hand over without waiting, unless another such order is unanswered."""

        async def hand_over() -> None:
            await self.give(action)

        if not len(self._handovers):  # the member would refuse another order
            self._handovers.spawn(hand_over(), name="elector-hand-over")

    async def give(self, action: Tell[Order]) -> OrderRefusal | None:
        """Send an order; return why the member refused it, None if it obeyed or did not answer."""
        ordinal, order = action.ordinal, action.order
        member = self._members.get(ordinal)
        if member is None:  # the settings lack a broker that the record names
            return None
        name, outcome, error, refused = type(order).__name__, "obeyed", "", None
        try:
            await member.link.order(order)
        except OrderRefused as refusal:
            outcome, error, refused = "refused", str(refusal), refusal.reason
        except CometError as failure:
            outcome, error = "unanswered", str(failure)
        self._stats.orders[name, outcome] += 1
        given = (order, outcome, error)
        if given != member.given:
            member.given = given
            facts = {"order": name, "ordinal": ordinal, "epoch": getattr(order, "epoch", None)}
            if error:
                self._log.warning("order.failed", **facts, outcome=outcome, error=error)
            else:
                self._log.info("order.obeyed", **facts)
        return refused
