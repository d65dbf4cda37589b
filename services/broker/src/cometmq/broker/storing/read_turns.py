# SPDX-License-Identifier: Apache-2.0
"""Pending reads and searches of the store: how long each may wait, and which one goes on next.

Searches that take turns all keep what they have found so far: a thousand lists of 10,000 entries
would take 700 MB before the first one is complete. While partial results take more than
HELD_BYTES_MAX, one search is finished before any other goes on.
"""

import asyncio
from asyncio import Future
from collections.abc import Callable
from dataclasses import dataclass
from inspect import GEN_CLOSED, getgeneratorstate
from typing import Any, Final

from cometmq.remoting import remarks
from cometmq.remoting.command import Call, Peer
from cometmq.remoting.errors import SystemBusy
from cometmq.remoting.transport.flow.fair_queue import FairQueue, Requester
from cometmq.store.reads import Exhausted, Lookup, SomeRead

WAIT_MS_MAX: Final = 3_000
EXPIRE_S: Final = 0.25
TURN_EXPIRED_MAX: Final = 100
"""Requests refused per turn of the loop: about 2 ms. A flood of 2,000 expires at once."""

REFUSED_S: Final = 0.005
"""What a refused request is charged as: a connection that asks for more than it has turns for is
served after the others.
"""

LONG_S: Final = 0.005
LONG_COUNT: Final = 100
"""A search is long once it has taken this processor time, or this number of reads on the thread."""

PUTS: Final = Requester("puts")  # of searches that are parts of puts
OWN: Final = Requester("broker")  # of searches that the broker itself needs


@dataclass(slots=True, eq=False)
class Request:
    """A read or search; if `requester` is None, the call tells it: only one that waits needs it."""

    call: Call[Any] | None
    failed: Callable[[Exception], None]
    requester: Requester | None = None
    since_s: float = 0.0  # when it began to wait
    is_over: bool = False

    @property
    def peer(self) -> Peer | None:
        return None if self.call is None else self.call.peer

    def end(self) -> None:
        self.is_over = True


@dataclass(slots=True, eq=False, kw_only=True)
class Search(Request):
    lookup: Lookup[Any]
    done: Callable[[Any], None]
    is_part_of_put: bool
    may_end_early: bool
    spent_s: float = 0.0
    charged_s: float = 0.0
    cold_count: int = 0
    """Number of its reads on the thread."""
    place: Requester | None = None
    """Where it waited last. It goes on before those that wait there, too: if they took turns, a
    flood of them would end all at once, late. Those with `may_end_early` do: they may be long.
    """
    held_bytes: int = 0
    """Memory of the result so far, as the search has last reported it."""

    def __post_init__(self) -> None:
        if self.is_part_of_put:
            self.requester = PUTS
        elif self.call is None:
            self.requester = OWN

    @property
    def is_long(self) -> bool:
        """Whether it has taken so long that others of its owner should not wait for its end."""
        took_long = self.spent_s >= LONG_S or self.cold_count >= LONG_COUNT
        return took_long and not (self.may_end_early or self.is_part_of_put)

    def end(self) -> None:
        self.is_over = True
        self.lookup.close()


class Deadlines:
    """Refuses peers' reads and searches that wait for too long."""

    def __init__(self, loop: asyncio.AbstractEventLoop, count: Callable[[], int]) -> None:
        """`count` returns the number of waiting requests, for the text of a refusal."""
        self._loop = loop
        self._count = count
        self.wait_ms_max = WAIT_MS_MAX
        """How long a request may wait before it is refused."""
        self.expired_count = 0
        """Number of requests refused because they waited too long."""
        self._open: dict[Request, None] = {}  # the oldest first
        self._expiry: asyncio.TimerHandle | None = None

    @property
    def wait_s_max(self) -> float:
        """`wait_ms_max` in seconds."""
        return self.wait_ms_max / 1000

    def left_s(self, waited_ms: int) -> float:
        """Return how much longer a request may wait that has waited for `waited_ms`."""
        return max(0, self.wait_ms_max - waited_ms) / 1000

    def expired(self, in_queue: int, waited_ms: int | None = None) -> SystemBusy:
        """Count a request that has waited too long, and return its refusal."""
        self.expired_count += 1
        waited_ms = self.wait_ms_max if waited_ms is None else waited_ms
        return SystemBusy(remarks.queue_timeout(in_queue=in_queue, waited_ms=waited_ms))

    def begin(self, request: Request) -> None:
        """Start the time limit of a request, if a peer has made it."""
        if request.peer is None or request in self._open:
            return
        request.since_s = self._loop.time()
        self._open[request] = None
        self._expire_later(EXPIRE_S)

    def close(self, request: Request) -> bool:
        """End the time limit; return False if the request has already ended."""
        self._open.pop(request, None)
        return not request.is_over

    def _expire(self) -> None:
        """Refuse the requests that have waited too long."""
        self._expiry = None
        now_s = self._loop.time()
        for number, request in enumerate(list(self._open)):
            waited_ms = int((now_s - request.since_s) * 1000)
            if waited_ms < self.wait_ms_max:
                break
            if number == TURN_EXPIRED_MAX:
                self._expire_later(0)
                return
            if request not in self._open or self._ends_early(request):
                continue
            del self._open[request]
            if request.peer is not None:
                request.peer.charge(REFUSED_S)
            request.end()
            request.failed(self.expired(self._count(), waited_ms))
        if self._open:
            self._expire_later(EXPIRE_S)

    def _expire_later(self, after_s: float) -> None:
        if self._expiry is None:
            self._expiry = self._loop.call_later(after_s, self._expire)

    def _ends_early(self, request: Request) -> bool:
        """Complete a search with its partial result; return False if it has none."""
        if not isinstance(request, Search) or not request.may_end_early:
            return False
        try:
            request.lookup.throw(Exhausted())
        except StopIteration as end:
            found = end.value
        except Exception:  # noqa: BLE001  # it cannot end here, and is refused
            return False
        else:
            return False
        self.close(request)
        request.is_over = True
        request.done(found)
        return True


class Places:
    """Says where reads and searches wait.

    An owner's connections share a place for their long searches, one for each connection. The
    searches there are finished one after another: if they took turns, all would be refused in the
    end, and none answered. This place takes turns with the connections, so short searches do not
    wait for long ones.
    """

    def __init__(self) -> None:
        self.requester_of: Callable[[Call[Any]], Requester] = _connection_of
        """Returns who takes turns with others while a request waits."""
        self._long: dict[Peer, Search] = {}
        """The last search of each connection that waited in the place of its owner."""

    def of(self, request: Request) -> tuple[Requester, bool]:
        """Return where a request waits, and whether it goes on before those that wait there."""
        requester = self._requester(request)
        if not isinstance(request, Search):
            return requester, False
        if request.is_long and self._is_first_long(request):
            requester = Requester(requester.owner)
        is_first = requester == request.place
        request.place = None if request.may_end_early else requester
        return requester, is_first

    def forget(self, peer: Peer) -> Search | None:
        """Forget a closed connection; return its last search in the place of its owner."""
        return self._long.pop(peer, None)

    def _requester(self, request: Request) -> Requester:
        if request.requester is None:
            assert request.call is not None
            request.requester = self.requester_of(request.call)
        return request.requester

    def _is_first_long(self, search: Search) -> bool:
        """Return whether no earlier long search of the same connection goes on."""
        if search.peer is None:
            return False
        first = self._long.setdefault(search.peer, search)
        if getgeneratorstate(first.lookup) == GEN_CLOSED:
            first = self._long[search.peer] = search
        return first is search


def _connection_of(call: Call[Any]) -> Requester:
    return Requester(call.peer, call.peer)


HELD_BYTES_MAX: Final = 32 << 20
"""The search that goes on alone may add its own result, up to 16 MiB."""

Step = tuple[Search, SomeRead, Future[Any]]
"""A search that waits for a turn of the loop to continue with a read."""
Job = tuple[Request, Callable[[], Any], Future[Any]]
"""A read that waits for the thread."""


class PartialResults:
    """Counts the memory of partial results, and knows the search to be finished first."""

    __slots__ = ("held_bytes", "job", "lone", "step")

    def __init__(self) -> None:
        self.held_bytes = 0
        self.lone: Search | None = None
        """The search to be finished first; None while there is enough memory."""
        self.step: Step | None = None
        """The next step of this search, if it waits for a turn."""
        self.job: Job | None = None
        """The read of this search, if it waits for the thread."""

    def hold(self, search: Search, held_bytes: int) -> None:
        """Count the memory of a search's result so far."""
        self.held_bytes += held_bytes - search.held_bytes
        search.held_bytes = held_bytes

    def choose(self, search: Search) -> None:
        """Choose the search to be finished first, if partial results take too much memory.

        Pulls with filters (`may_end_early`) hold at most 256 KiB and may search for long, so the
        others do not wait for them.
        """
        is_above = self.held_bytes > HELD_BYTES_MAX
        if is_above and self.lone is None and not search.may_end_early:
            self.lone = search

    def lets_wait(self, search: Search) -> bool:
        """Return whether a search must wait for the end of another one; see `choose`."""
        self.choose(search)
        return self.lone is not None and self.lone is not search

    def end(self, search: Search) -> bool:
        """Forget the result of a search that has ended; return whether the others may go on now."""
        self.hold(search, 0)
        if self.lone is not search:
            return False
        self.lone = self.step = self.job = None
        return True

    def take(self, peer: Peer) -> list[tuple[Request, Future[Any]]]:
        """Remove and return what waits for the lone search, if this connection asked for it."""
        if self.lone is None or self.lone.peer is not peer:
            return []
        slots = (self.step, self.job)
        self.step = self.job = None
        return [(slot[0], slot[2]) for slot in slots if slot is not None]


class Jobs:
    """The reads that wait for the thread; reads of searches and other reads alternate.

    The others are answered at once, so they hold no partial result and need not wait for a search.
    """

    __slots__ = ("_of_searches", "_others", "_partial", "_prefers_searches")

    def __init__(self, room: int, partial: PartialResults) -> None:
        self._others: FairQueue[Job] = FairQueue(room)
        self._of_searches: FairQueue[Job] = FairQueue(room)
        self._partial = partial
        self._prefers_searches = False

    def __len__(self) -> int:
        return len(self._others) + len(self._of_searches) + (self._partial.job is not None)

    def put(self, requester: Requester, job: Job, *, is_first: bool) -> bool:
        """Add a read, as `FairQueue.put` does; return False if the requester has no room."""
        request = job[0]
        if not isinstance(request, Search) or request.is_part_of_put:
            return self._others.put(requester, job)
        if self._partial.lone is request:
            self._partial.job = job
            return True
        return self._of_searches.put(requester, job, is_first=is_first)

    def pop(self) -> Job | None:
        """Remove and return the next read; None if none may run now."""
        partial = self._partial
        if partial.job is not None:
            job, partial.job = partial.job, None
            return job
        self._prefers_searches = not self._prefers_searches
        may_search = bool(self._of_searches) and partial.lone is None
        if may_search and (self._prefers_searches or not self._others):
            return self._pop_search()
        return self._others.pop() if self._others else None

    def _pop_search(self) -> Job:
        job = self._of_searches.pop()
        search = job[0]
        assert isinstance(search, Search)
        self._partial.choose(search)  # before the read adds to its result
        return job

    def take(self, peer: Peer) -> list[Job]:
        """Remove and return all reads of a connection."""
        return self._others.take(peer) + self._of_searches.take(peer)
