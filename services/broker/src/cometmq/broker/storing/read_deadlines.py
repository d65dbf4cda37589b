# SPDX-License-Identifier: Apache-2.0
"""Pending reads and searches of the store, and the time limit of those that a peer has
requested.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final

from cometmq.remoting import remarks
from cometmq.remoting.command import Call, Peer
from cometmq.remoting.errors import SystemBusy
from cometmq.remoting.transport.flow.fair_queue import Requester
from cometmq.store.reads import Exhausted, Lookup

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


class Request:
    __slots__ = ("call", "failed", "is_over", "peer", "requester", "since_s")

    def __init__(
        self,
        call: Call[Any] | None,
        failed: Callable[[Exception], None],
        requester: Requester | None = None,
    ) -> None:
        """If `requester` is None, the call tells it: only a request that waits needs it."""
        self.call = call
        self.peer: Peer | None = None if call is None else call.peer
        self.failed = failed
        self.requester = requester
        self.since_s = 0.0  # when it began to wait
        self.is_over = False

    def end(self) -> None:
        self.is_over = True


class Search(Request):
    __slots__ = (
        "charged_s", "cold_count", "done", "held_bytes", "is_part_of_put", "lookup",
        "may_end_early", "place", "spent_s",
    )  # fmt: skip

    def __init__(
        self,
        lookup: Lookup[Any],
        done: Callable[[Any], None],
        failed: Callable[[Exception], None],
        call: Call[Any] | None,
        *,
        is_part_of_put: bool,
        may_end_early: bool,
    ) -> None:
        super().__init__(call, failed, PUTS if is_part_of_put else OWN if call is None else None)
        self.lookup = lookup
        self.done = done
        self.is_part_of_put = is_part_of_put
        self.may_end_early = may_end_early
        self.spent_s = self.charged_s = 0.0
        self.cold_count = 0
        """Number of its reads on the thread."""
        self.place: Requester | None = None
        """Where it waited last. It goes on before those that wait there, too: if they took turns, a
        flood of them would end all at once, late. Those with `may_end_early` do: they may be long.
        """
        self.held_bytes = 0
        """Memory of the result so far, as the search has last reported it."""

    @property
    def is_long(self) -> bool:
        """Whether it has taken so long that others of its owner should not wait for its end."""
        took_long = self.spent_s >= LONG_S or self.cold_count >= LONG_COUNT
        return took_long and not (self.may_end_early or self.is_part_of_put)

    def end(self) -> None:
        super().end()
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
