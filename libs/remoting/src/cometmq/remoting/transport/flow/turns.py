# SPDX-License-Identifier: Apache-2.0
"""The order in which connections get the loop; does no I/O itself.

All that waits for a later turn of the loop waits in a queue of one of the kinds below. In each
turn, each kind gets a limited number or time, and serves at least one connection, so that none
starves. In each queue, accounts (or addresses) take turns.

Ends
    Ending a connection takes about 0.1 ms, and thousands may end in the same turn, because of a
    stranger or a network device; at once, 15,000 of them would hold up all other connections for
    more than a second.

Handshakes
    A signature with an RSA key takes about a millisecond. While a handshake waits, nothing more is
    read from its connection.

Requests
    A limit on the number of requests served in a row does not protect other connections from
    requests that take long: twenty connections with one request of 100 ms each would occupy the
    loop for two seconds. Serving is therefore timed. A connection whose requests repeatedly take
    long is served only from a queue. When a turn has taken long, all bytes that arrive in the same
    turn wait in the queues, by the rank of their connections: KNOWN (fast ones) first, then NEW,
    then SLOW. Accounts take turns because the system may interrupt the program while it serves a
    fast connection, which then counts as slow, and would wait for each of a flood's connections.
    While a slow connection takes long, fewer of its requests are served in a row.

    Work that requests stage for later, above all a commit, is charged to the connections afterwards
    (`Hub.charge`), because it runs after their requests have returned; so are searches
    (`Peer.charge`), and the later steps of slow handlers (`Timed`).

    While connections wait, only processor time counts: on a busy machine, the system interrupts
    fast requests, too.

Visits
    A visit of a connection takes 1 to 2 us of processor time, so one look at the 20,000 connections
    of a broker would hold the loop for 40 ms (`Walk`).

Starts
    Creating a task for a slow handler takes little time, but its first step may take milliseconds.
    The number of handlers that may start in a turn doubles while turns are short, and halves when
    they are long. However long the turns take, at least one handler starts after each pause of
    50 ms; one that has waited for WAIT_S_MAX is refused. With one queue for all, an account that
    had 1,800 handlers of 2 ms waiting delayed another's answers by 8 s.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Generator, Iterator
from functools import partial
from itertools import islice
from math import inf
from time import monotonic, thread_time
from typing import Any, Final, Generic, TypeVar

from cometmq.remoting import remarks
from cometmq.remoting.errors import SystemBusy
from cometmq.remoting.transport.flow.connected import Connected
from cometmq.remoting.transport.flow.fair_queue import FairQueue, Requester
from cometmq.remoting.transport.flow.places import requester_of

KNOWN: Final = 0
"""The rank of connections whose requests took little time."""
NEW: Final = 1
"""The rank of connections about which nothing is known."""
SLOW: Final = 2
"""The rank of connections whose requests take long."""
ENDS: Final = 3
HANDSHAKES: Final = 4
_FAULTS: Final = (
    *("waiting requests cannot be served",) * 3,
    "a connection cannot be ended",
    "a handshake cannot be continued",
)

ENDS_PER_TURN: Final = 16
_PARTS: Final = 32  # a turn ends 1/32 of what waits or more; a flood adds less in that time
_IN_ORDER: Final = Requester(None)
_HANDSHAKES_S: Final = 0.005
"""The time for handshakes in one turn of the loop; the last one may end later."""

SLICE_S: Final = 0.002
"""How long the requests of one connection are served in a row; the last one may end later."""
SLOW_S: Final = 0.001
"""A connection that is served for longer than this in a row counts as slower than before."""
_SLOW_FROM: Final = 3
"""The slowness (see `Pace`) from which on a connection waits in the queue of slow ones."""
_SLOWNESS_MAX: Final = 8
_LONG_TURNS: Final = 8  # connections that may use full turns at the same time
_CALLS_MIN: Final = 16  # smaller portions cost more than they gain
_DIVISOR_MAX: Final = 1 << 10
_TURN_S: Final = 0.005
"""How long waiting requests are served in one turn of the loop; the last one may end later."""
_LONG_S: Final = 0.02
"""A turn that has spent more time on long requests starts no further ones."""
BRIEF_S: Final = 0.0002
"""Serving received bytes for longer than this counts towards `_BUSY_S`. Counting every request
would cost 1 % of the time of those that take a tenth of a millisecond.
"""
_BUSY_S: Final = 0.01
"""After this time, all bytes that arrive in the same turn wait in the queues, where accounts take
turns: otherwise, an account would be served as often as it has connections.
"""

WAIT_S_MAX: Final = 3.0
_RATE_MAX: Final = 256
_SHORT_TURN_S: Final = 0.005
_LONG_TURN_S: Final = 0.010
_PAUSE_S: Final = 0.050
"""One handler starts after this pause, however long the turns are."""


class NextTurn(ABC):
    """Runs its work once in the next turn of the loop, however often it was scheduled."""

    __slots__ = ("_is_scheduled", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._is_scheduled = False

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._begin)

    def _begin(self) -> None:
        self._is_scheduled = False
        self._run()

    @abstractmethod
    def _run(self) -> None:
        """Do a limited part of the work; schedule the rest."""

    def _guard(self, peer: Connected, step: Callable[[], None], fault: str) -> None:
        """Serve a connection; if that fails, report the fault and end the connection."""
        try:
            step()
        except Exception as error:  # noqa: BLE001  # the other connections must get their turn
            self._loop.call_exception_handler({"message": fault, "exception": error})
            peer.abort()


class Pace:
    """Tracks whether serving a connection takes long.

    `_slowness` grows with each long time and falls with each short one; it determines the rank.
    """

    __slots__ = ("_slowness", "divisor", "is_steady", "rank")

    def __init__(self) -> None:
        self._slowness = 0
        self.rank = NEW
        self.is_steady = False
        """Whether noting a further short time would change nothing, so that callers need not call
        `note`.
        """
        self.divisor = 1
        """The number of requests that are served in a row is divided by this."""

    def note(self, spent_s: float, count: int) -> bool:
        """Note how long it took to serve `count` requests, or frames of this size; return whether
        that is long.

        One long time of less than `_LONG_S` does not make a connection SLOW, because the system may
        have interrupted the program.
        """
        if spent_s > SLOW_S:
            self.is_steady = False
            is_long = spent_s > _LONG_S
            self._slowness = min(self._slowness + (3 if is_long else 2), _SLOWNESS_MAX)
            if self._slowness >= _SLOW_FROM:
                self.rank = SLOW
                # Faster than it is halved below: a short time may precede each long one.
                self.divisor = min(self.divisor * (16 if is_long else 4), _DIVISOR_MAX)
            return True
        if count:
            if self._slowness:
                self._slowness -= 1
            if self.divisor > 1:
                self.divisor //= 2
            if self._slowness < _SLOW_FROM:
                self.rank = KNOWN
            self.is_steady = not self._slowness and self.divisor == 1
        return False


class Turns(NextTurn):
    """The queues of one server or client."""

    __slots__ = (
        "_admitted_s",
        "_behind_count",
        "_busy_s",
        "_calls_most",
        "_count",
        "_ends_left",
        "_known_s",
        "_queues",
        "_shaken_s",
        "_spent_s",
        "_start_rate",
        "_started_s",
        "_starting",
        "_starts_left",
        "asking_much",
        "calls_max",
        "clock",
        "is_long",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, calls_max: int) -> None:
        super().__init__(loop)
        self._calls_most = calls_max
        self.calls_max = calls_max
        """How many requests of one connection may currently be served in a row."""
        self._behind_count = 0
        self._queues: tuple[FairQueue[tuple[Connected, Callable[[], None]]], ...] = tuple(
            FairQueue() for _ in _FAULTS
        )
        self._spent_s = self._busy_s = self._shaken_s = self._started_s = 0.0
        self._count = 0  # of all queues
        self._starting: FairQueue[asyncio.Future[None]] = FairQueue()
        self._ends_left = ENDS_PER_TURN
        self._start_rate = self._starts_left = 16
        self._admitted_s: float | None = None  # when handlers first asked to start in this turn
        self._known_s = 0.0  # the processor time of this thread when it was read last
        self.clock: Callable[[], float] = monotonic
        """Measures how long received bytes are served. While connections wait, it is the processor
        time of this thread, which takes a microsecond to read.
        """
        self.asking_much = 0
        """How many connections of a client are not read, because their servers ask too much."""
        self.is_long = False
        """Whether this turn of the loop has already spent too much time on requests."""

    def fell_behind(self, count: int) -> None:
        """Add `count`, 1 or -1, to the number of connections that have a backlog.

        The number determines how many requests of a connection are served in the next turn of the
        loop. A few connections with a backlog may take long turns. Many of them share the same
        total, so a connection without a backlog never waits for many long turns.
        """
        self._behind_count += count
        most = self._calls_most
        share = most * _LONG_TURNS // max(_LONG_TURNS, self._behind_count)
        self.calls_max = max(share, min(most, _CALLS_MIN))

    def add(self, kind: int, peer: Connected, step: Callable[[], None]) -> None:
        """Call `step` in a later turn of the loop; if it raises an exception, the connection ends.

        A KNOWN, NEW or SLOW connection catches up.
        """
        self._queues[kind].put(_IN_ORDER if kind == ENDS else requester_of(peer), (peer, step))
        self._count += 1
        self._schedule()

    def end(self, peer: Connected, step: Callable[[], None]) -> None:
        """End a connection: the first ones of this turn of the loop now, the others later."""
        if self._ends_left > 0:
            self._ends_left -= 1
            self._schedule()
            step()
        else:
            self.add(ENDS, peer, step)

    @property
    def may_shake(self) -> bool:
        """Whether a handshake may continue now: there is time left in this turn, and no other
        waits.
        """
        return self._shaken_s < _HANDSHAKES_S and not self._queues[HANDSHAKES]

    def note_shaken(self, spent_s: float) -> None:
        """Count the time that a handshake has taken."""
        self._shaken_s += spent_s
        self._schedule()

    async def admitted(self, peer: Connected) -> None:
        """Wait until a slow handler of the peer may start; raise SystemBusy if that takes too
        long.
        """
        if self._admitted_s is None:
            self._measure_starts()
        if self._starts_left > 0 and not self._starting:
            self._starts_left -= 1
            return
        future: asyncio.Future[None] = self._loop.create_future()
        self._starting.put(requester_of(peer), future)
        try:
            async with asyncio.timeout(WAIT_S_MAX):
                await future
        except TimeoutError:
            waited_ms, count = int(WAIT_S_MAX * 1000), len(self._starting)
            raise SystemBusy(remarks.queue_timeout(in_queue=count, waited_ms=waited_ms)) from None

    def _measure_starts(self) -> None:
        """Call `_start_some` after the first steps of the handlers that may start now."""
        self._admitted_s = thread_time()
        self._loop.call_soon(self._start_some)

    def _start_some(self) -> None:
        assert self._admitted_s is not None
        turn_s, self._admitted_s = thread_time() - self._admitted_s, None
        if turn_s > _LONG_TURN_S:
            self._start_rate //= 2
        elif turn_s < _SHORT_TURN_S:
            self._start_rate = min(max(1, self._start_rate * 2), _RATE_MAX)
        self._starts_left = self._start_rate
        if not self._starting:
            return
        now_s = monotonic()
        if not self._starts_left and now_s - self._started_s > _PAUSE_S:
            self._starts_left = 1
        while self._starts_left > 0 and self._starting:
            future = self._starting.pop()
            if not future.done():  # the task may have been cancelled
                future.set_result(None)
                self._starts_left -= 1
                self._started_s = now_s
        self._measure_starts()

    def worked(self, spent_s: float) -> float:
        """Return how much of a time that has just passed the program has worked, at most as much as
        since the last call; call this only after a time that seems long.
        """
        before_s, self._known_s = self._known_s, thread_time()
        return min(spent_s, self._known_s - before_s)

    def note(self, spent_s: float) -> None:
        """Count time that this turn has spent on a connection with long requests."""
        self._spent_s += spent_s
        self.is_long = self.is_long or self._spent_s > _LONG_S
        self._schedule()

    def spend(self, spent_s: float) -> None:
        """Count time that this turn has spent on received bytes, if it is more than `BRIEF_S`."""
        self._busy_s += spent_s
        self.is_long = self.is_long or self._busy_s > _BUSY_S
        self._schedule()

    def _run(self) -> None:
        self._known_s = thread_time()
        self._shaken_s = 0.0
        self._ends_left = ENDS_PER_TURN
        if self._count:
            self._serve_all()
        self._spent_s = self._busy_s = 0.0
        self.is_long = False
        is_waiting = self._count and any(self._queues[:3])
        self.clock = thread_time if is_waiting else monotonic
        if self._count:
            self._schedule()

    def _serve_all(self) -> None:
        ends = max(ENDS_PER_TURN, len(self._queues[ENDS]) // _PARTS)
        self._ends_left -= self._serve(ENDS, inf, ends)
        self._serve(HANDSHAKES, thread_time() + _HANDSHAKES_S)
        end_s = thread_time() + _TURN_S - self._spent_s
        for rank in (KNOWN, NEW, SLOW):
            self._serve(rank, end_s)

    def _serve(self, kind: int, end_s: float, most: int | None = None) -> int:
        """Take steps of a kind, at least one if any waits; return how many."""
        queue = self._queues[kind]
        count = min(len(queue), len(queue) if most is None else most)
        for number in range(1, count + 1):
            peer, step = queue.pop()
            self._count -= 1
            self._guard(peer, step, _FAULTS[kind])
            if thread_time() > end_s:
                return number
        return count


T = TypeVar("T")


class Timed(Generic[T]):
    """Slow work whose time is reported whenever it adds up to `SLOW_S`."""

    __slots__ = ("_charge", "_spent_s", "_work")

    def __init__(self, work: Awaitable[T], charge: Callable[[float], None]) -> None:
        self._work = work
        self._charge = charge
        self._spent_s = 0.0

    def __await__(self) -> Generator[Any, Any, T]:
        steps = self._work.__await__()
        error: BaseException | None = None
        while True:
            began_s = thread_time()
            try:
                waits_for = next(steps) if error is None else steps.throw(error)
            except StopIteration as end:
                result: T = end.value
                return result
            finally:
                error = None
                self._note(thread_time() - began_s)
            try:
                yield waits_for
            except BaseException as thrown:  # noqa: BLE001  # the work handles it
                error = thrown

    def _note(self, spent_s: float) -> None:
        self._spent_s += spent_s
        if self._spent_s > SLOW_S:
            self._charge(self._spent_s)
            self._spent_s = 0.0


VISITS_PER_TURN: Final = 1_000
CLOSED_PER_TURN: Final = 200
"""Number of connections that are closed in one turn of the loop: 5 ms."""


class Walk(NextTurn):
    """Visits the connections that exist when it begins, and that have not ended since."""

    __slots__ = ("_done", "_left", "_peers", "_visit")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        peers: Collection[Connected],
        visit: Callable[[Connected], None],
        done: Callable[[], None] = lambda: None,
    ) -> None:
        """Visit `peers`, the collection of live connections; call `done` after the last visit."""
        super().__init__(loop)
        self._peers = peers
        self._visit = visit
        self._done = done
        self._left: Iterator[Connected] | None = None

    def begin(self) -> None:
        """Begin a walk, unless one is running."""
        if self._left is None:
            self._left = iter(tuple(self._peers))
            self._run()

    def _run(self) -> None:
        assert self._left is not None
        count = 0
        for peer in islice(self._left, VISITS_PER_TURN):
            count += 1
            if peer in self._peers:
                self._guard(peer, partial(self._visit, peer), "a connection cannot be checked")
        if count == VISITS_PER_TURN:
            self._schedule()
        else:
            self._left = None
            self._done()
