# SPDX-License-Identifier: Apache-2.0
"""Requests with large answers that wait until the budget of unread output has room for them.

Accounts (or addresses) take turns, one request each, and so do the connections of each, so many
waiting requests delay those of another account by one answer. A turn of the loop builds a bounded
number of bytes in a bounded time, so sends do not wait for all answers for which there is room
again. Each connection may have up to WAITING_MAX requests here; its further requests wait as
received bytes, which take less memory (`Intake`).
"""

import asyncio
from collections import deque
from collections.abc import Callable
from time import thread_time
from typing import Final

from cometmq.remoting.transport.flow.budget import UnsentBudget
from cometmq.remoting.transport.flow.connected import NO_ROOM, Connected
from cometmq.remoting.transport.flow.fair_queue import FairQueue, Requester
from cometmq.remoting.transport.flow.places import requester_of
from cometmq.remoting.transport.flow.turns import VISITS_PER_TURN

Work = Callable[[], None]

WAITING_MAX: Final = 8
"""Requests of one connection that wait here before the server stops serving the connection."""
_TURN_COUNT: Final = 64
_TURN_BYTES: Final = 1 << 20
_TURN_S: Final = 0.005
_PAUSES_S: Final = (0.01, 0.05)


class _Waiting:
    """The waiting requests of one connection."""

    __slots__ = ("requester", "works")

    def __init__(self, requester: Requester) -> None:
        self.requester = requester  # as it was when the first request began to wait
        self.works: deque[Work] = deque()


class Room:
    """Serves the waiting requests of one server when there is room, in turn."""

    def __init__(self, budget: UnsentBudget, loop: asyncio.AbstractEventLoop) -> None:
        self._budget = budget
        self._loop = loop
        self._waiting: dict[Connected, _Waiting] = {}
        self._turns: FairQueue[Connected] = FairQueue()  # each waiting connection once
        self._timer: asyncio.Handle | None = None
        self._pause_s = _PAUSES_S[0]
        self._measure_s = 0.0
        self._served: Connected | None = None

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @property
    def count(self) -> int:
        """The number of waiting requests."""
        return sum(len(waiting.works) for waiting in self._waiting.values())

    def has(self, peer: Connected) -> bool:
        """Return whether requests of a connection wait here."""
        return peer in self._waiting

    def precedes(self, peer: Connected) -> bool:
        """Return whether a new request of the connection must wait behind earlier ones: some wait
        here, and none of them is being served.
        """
        return peer in self._waiting and peer is not self._served

    def count_of(self, peer: Connected) -> int:
        """Return how many requests of a connection wait here."""
        waiting = self._waiting.get(peer)
        return 0 if waiting is None else len(waiting.works)

    def wait(self, peer: Connected, work: Work) -> None:
        """Call `work` once there is room for an answer, unless the connection ends first."""
        waiting = self._waiting.get(peer)
        if waiting is None:
            waiting = self._waiting[peer] = _Waiting(requester_of(peer))
            self._turns.put(waiting.requester, peer)
        waiting.works.append(work)
        self._budget.is_wanted = True
        if self._timer is None:
            # If there is room for all, the request waits only for the next turn of the loop.
            is_full = self._budget.left <= self._budget.reserved_bytes
            self._timer = self._loop.call_later(_PAUSES_S[0] if is_full else 0, self._serve)

    def drop(self, peer: Connected) -> None:
        """Forget the requests of a closed connection."""
        waiting = self._waiting.pop(peer, None)
        if waiting is not None:
            self._turns.take_of(waiting.requester)
        self._budget.is_wanted = bool(self._waiting)

    def _serve(self) -> None:
        """Serve one request of each connection that has room."""
        budget, now_s = self._budget, self._loop.time()
        self._timer = None
        if now_s >= self._measure_s:
            # Between measurements, the budget knows only what is written, not what is read.
            budget.measure(int(now_s * 1000))
            self._measure_s = now_s + _PAUSES_S[0]
        passed: list[Connected] = []
        count = 0
        try:
            count = self._serve_some(passed)
        finally:
            budget.is_wanted = bool(self._waiting)
            self._queue(passed)
            is_part = len(passed) == VISITS_PER_TURN  # there are too many to visit all
            slower_s = min(self._pause_s * 2, _PAUSES_S[1])
            self._pause_s = _PAUSES_S[0] if count or is_part else slower_s
            if self._waiting and self._timer is None:
                pause_s = 0 if count else self._pause_s
                self._timer = self._loop.call_later(pause_s, self._serve)

    def _serve_some(self, passed: list[Connected]) -> int:
        """Serve requests; return how many were served, and append connections that have no room to
        `passed`.
        """
        budget, end_s = self._budget, thread_time() + _TURN_S
        count, last = 0, budget.turn_left - _TURN_BYTES
        for _ in range(min(len(self._turns), VISITS_PER_TURN)):
            if budget.left <= 0 or budget.turn_left <= max(0, last) or count >= _TURN_COUNT:
                break
            if count and thread_time() > end_s:
                break
            peer = self._turns.pop()
            if peer.may_build:
                count += 1
                self._serve_one(peer)
            else:
                passed.append(peer)
        return count

    def _queue(self, passed: list[Connected]) -> None:
        """Queue the connections that had no room again, unless they have ended."""
        for peer in passed:
            waiting = self._waiting.get(peer)
            if waiting is not None:
                self._turns.put(waiting.requester, peer)

    def _serve_one(self, peer: Connected) -> None:
        waiting = self._waiting[peer]
        work = waiting.works.popleft()
        if waiting.works:
            self._turns.put(waiting.requester, peer)  # behind all others
        else:
            del self._waiting[peer]
        self._served = peer
        try:
            work()
        finally:
            self._served = None
        if peer not in self._waiting:
            peer.intake.resume_from(NO_ROOM)
