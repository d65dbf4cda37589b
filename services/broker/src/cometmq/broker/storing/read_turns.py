# SPDX-License-Identifier: Apache-2.0
"""Says which read or search of the store goes on next: where each waits for its turn, and which one
is finished first, so that the results of incomplete searches take little memory.

Searches that take turns all keep what they have found so far: a thousand lists of 10,000 entries
would take 700 MB before the first one is complete. While partial results take more than
HELD_BYTES_MAX, one search is finished before any other goes on.
"""

from asyncio import Future
from collections.abc import Callable
from inspect import GEN_CLOSED, getgeneratorstate
from typing import Any, Final

from cometmq.broker.storing.read_deadlines import Request, Search
from cometmq.remoting.command import Call, Peer
from cometmq.remoting.transport.flow.fair_queue import FairQueue, Requester
from cometmq.store.reads import SomeRead


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
