# SPDX-License-Identifier: Apache-2.0
"""Limits the processor time that strangers may take at a control port.

A connection is a stranger's until one of its calls is admitted. Sending costs a stranger nothing,
but every connection, and every piece of what it sends, costs this process up to a millisecond. So
strangers wait for turns, which share a budget; what they send meanwhile waits in the kernel.

There are two budgets: one for hosts that have used less than LITTLE_S lately, one for all others.
In each, hosts of admitted callers are served first, then those that have used the least time. An
elector that reconnects therefore does not wait for floods from other hosts. Of one host's
connections, the newest is served first, because those of a flood are soon old.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from cometmq.remoting.transport.flow.places import Guest, host_of

SHARE: Final = 0.02
"""The share of one processor's time that each of the two budgets has."""
ENTRY_SHARE: Final = 0.01
"""The share for accepting connections of hosts that have used more than LITTLE_S."""
BURST_S: Final = 0.02
"""The most that an unused budget accumulates."""
LITTLE_S: Final = 0.1
"""A host that has used more processor time shares the budget of floods. About 50 connections of an
elector use this much.
"""
FADE_S: Final = 10.0
"""Half of the time that a host has used is forgotten after this time."""
_TRACE_S: Final = 0.0001
"""A host that has used less is forgotten, which bounds the number of remembered hosts."""
_TICK_S: Final = 0.001
HOSTS_MAX: Final = 64
"""Number of hosts of admitted callers that are remembered."""


class Visitor(Guest, Protocol):
    """A connection that waits for turns."""

    number: int
    """Set by `Pace`; later connections have higher ones."""


class Budget:
    """Processor time that accrues at a constant rate; the last turn may overdraw it."""

    def __init__(self, share: float, now_s: Callable[[], float]) -> None:
        self._share = share
        self._now_s = now_s
        self._left_s = BURST_S
        self._at_s = now_s()
        self.is_due = False
        """Whether a timer is set that gives turns again after the pause."""

    @property
    def pause_s(self) -> float:
        """Return how long to wait until the budget has time left; 0 if it has."""
        now_s = self._now_s()
        self._left_s = min(self._left_s + (now_s - self._at_s) * self._share, BURST_S)
        self._at_s = now_s
        return 0.0 if self._left_s >= 0 else max(-self._left_s / self._share, _TICK_S)

    def take(self, cost_s: float) -> None:
        """Count used time; a negative cost gives time back."""
        self._left_s -= cost_s


class _Waiter(NamedTuple):
    cost_s: float
    turn: asyncio.Future[None]


class Pace:
    """Gives turns to the strangers at one port, from shared budgets of processor time."""

    def __init__(
        self, now_s: Callable[[], float], call_later: Callable[[float, Callable[[], None]], Any]
    ) -> None:
        self._now_s = now_s
        self._call_later = call_later
        self._few = Budget(SHARE, now_s)
        self._crowd = Budget(SHARE, now_s)
        self._entries = Budget(ENTRY_SHARE, now_s)
        self._spent_s: dict[bytes, float] = {}
        self._faded_s = now_s()
        self._known: dict[bytes, None] = {}
        self._count = 0
        self._waiting: dict[bytes, dict[Visitor, _Waiter]] = {}

    def may_enter(self, guest: Visitor, cost_s: float) -> bool:
        """Count the cost of accepting a connection; return False if it must be closed at once."""
        host = host_of(guest)
        if not self._has_taken_little(host):
            if self._entries.pause_s:
                return False
            self._entries.take(cost_s)
        self._note(host, cost_s)
        self._count += 1
        guest.number = self._count
        return True

    def note_known(self, guest: Visitor) -> None:
        """Remember the host of an admitted caller."""
        host = host_of(guest)
        self._known.pop(host, None)
        self._known[host] = None
        if len(self._known) > HOSTS_MAX:
            del self._known[next(iter(self._known))]

    def note_calls(self, count: int, cost_s: float) -> None:
        """Count the cost of calls, which may be strangers'; a `count` of -1 takes back one that was
        admitted.
        """
        self._crowd.take(count * cost_s)

    async def turn(self, guest: Visitor, cost_s: float) -> None:
        """Wait for a turn of a connection that takes this much processor time."""
        host, waiter = host_of(guest), _Waiter(cost_s, asyncio.get_running_loop().create_future())
        self._waiting.setdefault(host, {})[guest] = waiter
        self._serve()
        try:
            await waiter.turn
        finally:
            self._pop(host, guest)

    def _pop(self, host: bytes, guest: Visitor) -> None:
        house = self._waiting.get(host, {})
        if house.pop(guest, None) and not house:
            del self._waiting[host]

    def _serve(self) -> None:
        """Give turns while a budget has time left; run again when it has some."""
        for budget, is_little in ((self._few, True), (self._crowd, False)):
            while not (pause_s := budget.pause_s):
                host = self._first(is_little=is_little)
                if host is None:
                    break
                house = self._waiting[host]
                guest = max(house, key=_number)
                waiter = house[guest]
                self._pop(host, guest)
                if waiter.turn.done():  # its connection has just ended
                    continue
                budget.take(waiter.cost_s)
                self._note(host, waiter.cost_s)
                waiter.turn.set_result(None)
            if pause_s and self._waiting and not budget.is_due:
                budget.is_due = True
                self._call_later(pause_s, partial(self._serve_again, budget))

    def _serve_again(self, budget: Budget) -> None:
        budget.is_due = False
        self._serve()

    def _first(self, *, is_little: bool) -> bytes | None:
        mine = (host for host in self._waiting if self._has_taken_little(host) is is_little)
        return min(mine, key=self._rank, default=None)

    def _rank(self, host: bytes) -> tuple[bool, float]:
        return host not in self._known, self._spent_s.get(host, 0.0)

    def _has_taken_little(self, host: bytes) -> bool:
        return self._spent_s.get(host, 0.0) < LITTLE_S

    def _note(self, host: bytes, cost_s: float) -> None:
        now_s = self._now_s()
        if now_s - self._faded_s >= FADE_S:
            part = 0.5 ** ((now_s - self._faded_s) / FADE_S)
            self._faded_s = now_s
            faded = ((one, spent_s * part) for one, spent_s in self._spent_s.items())
            self._spent_s = {one: spent_s for one, spent_s in faded if spent_s > _TRACE_S}
        self._spent_s[host] = self._spent_s.get(host, 0.0) + cost_s


def _number(guest: Visitor) -> int:
    return guest.number
