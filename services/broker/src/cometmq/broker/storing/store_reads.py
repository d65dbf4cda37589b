# SPDX-License-Identifier: Apache-2.0
"""Reads of the store that may block, and searches that read several times.

A search reads data that is in memory on the loop, and all other data on a thread. For all searches
together, the number of reads, their bytes and the time per turn of the loop are bounded. When a
bound is reached, searches continue in later turns, one at a time.

Accounts (or addresses) take turns, and so do the connections of each, on the loop and on the
thread, so that the searches of one do not delay another's; the long searches of one are finished
one after another. A read or search that waits too long is
refused. Those of a closed connection are dropped. `PartialResults` bounds the memory of searches
that have begun.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from time import thread_time
from typing import Any, Final, TypeVar

from cometmq.broker.storing.read_turns import (
    OWN,
    Deadlines,
    Jobs,
    PartialResults,
    Places,
    Request,
    Search,
    Step,
)
from cometmq.remoting.command import Call, Peer
from cometmq.remoting.errors import Overloaded, ServerError, SystemBusy
from cometmq.remoting.log import Log
from cometmq.remoting.transport.flow.fair_queue import FairQueue
from cometmq.remoting.transport.flow.turns import SLOW_S
from cometmq.remoting.transport.tasks import describe
from cometmq.remoting.types import Buffer
from cometmq.runtime.worker import Worker, error_of
from cometmq.store.reads import Exhausted, Lookup, Pause, SomeRead

T = TypeVar("T")

TURN_READS_MAX: Final = 32  # for all searches together: about 1 ms with testing the records
TURN_BYTES_MAX: Final = 1 << 20
TURN_S_MAX: Final = 0.003
"""CPU time of all searches per turn of the loop; the last step, of up to 3 ms, may exceed it."""
SEARCH_S_MAX: Final = 0.2
"""CPU time that a search with `may_end_early` may use in total."""
RUNNING_MAX: Final = 2  # on the thread: one that runs, and the next
WAITING_MAX: Final = 20_000
"""Maximum number of reads that wait for the thread, and of searches that wait for a turn. An
account or address gets at most half.
"""


class StoreReads:
    """The pending reads and searches of one store."""

    def __init__(self, worker: Worker, *, log: Log, turn_s_max: float | None = None) -> None:
        """Reads that may block run on `worker`, which has no other jobs."""
        self._worker = worker
        self._log = log
        self._loop = asyncio.get_running_loop()
        self.futures: set[asyncio.Future[Any]] = set()
        self.places = Places()
        self.is_refused = False
        """Whether new reads are refused, because the log is being truncated."""
        self.deadlines = Deadlines(self._loop, lambda: len(self.futures))
        self._partial = PartialResults()
        self._jobs = Jobs(WAITING_MAX, self._partial)
        self._running_count = 0
        self._waiting: FairQueue[Step] = FairQueue(WAITING_MAX)
        self._is_turn_known = False  # whether the end of this turn is arranged
        self._reads_left = TURN_READS_MAX
        self._bytes_left = TURN_BYTES_MAX
        self._turn_s_max = TURN_S_MAX if turn_s_max is None else turn_s_max
        self._left_s = self._turn_s_max
        self._step_began_s = 0.0

    def __len__(self) -> int:
        return len(self.futures)

    def read(self, call: Call[Any], job: Callable[[], T], done: Callable[[T], None]) -> None:
        """Run a job on the read thread, where it may block; pass its result to `done` on the loop.

        If the read fails, the call is answered with the error. Raise SystemBusy if too many reads
        are pending.
        """

        def failed(error: Exception) -> None:
            if isinstance(error, SystemBusy):
                call.fail(error)
                return
            self._log.warning("read.failed", code=call.code, error=describe(error))
            call.fail(ServerError(describe(error)))

        self._check_readable()
        self._run(Request(call, failed), job, done)

    def run(
        self, job: Callable[[], T], done: Callable[[T], None], failed: Callable[[Exception], None]
    ) -> None:
        """Run a job of the broker on the read thread, then call `done` or `failed` on the loop."""
        try:
            self._run(Request(None, failed, OWN), job, done)
        except SystemBusy as error:
            failed(error)

    def _run(self, request: Request, job: Callable[[], T], done: Callable[[T], None]) -> None:
        def ended(future: asyncio.Future[T]) -> None:
            if not self.deadlines.close(request) or future.cancelled():
                return
            error = error_of(future)
            if error is None:
                done(future.result())
            else:
                request.failed(error)

        self._submit(request, job).add_done_callback(ended)

    def look_up(
        self,
        lookup: Lookup[T],
        done: Callable[[T], None],
        failed: Callable[[Exception], None],
        *,
        call: Call[Any] | None = None,
        is_part_of_put: bool = False,
        may_end_early: bool = False,
    ) -> None:
        """Run a search; `done` is called on the loop, immediately if all its reads are in memory.

        `failed` receives the error of a read, or SystemBusy if too many reads are
        pending or the search takes too long.

        - `call`: the search is for this request; if its connection closes, the search ends without
          an answer.
        - `is_part_of_put`: the search reads a single message, and its put is limited, so the search
          does not count towards the bounds of a turn.
        - `may_end_early`: a search that has used SEARCH_S_MAX gets `Exhausted` instead of a read,
          and can return a partial result.
        """
        search = Search(
            call,
            failed,
            lookup=lookup,
            done=done,
            is_part_of_put=is_part_of_put,
            may_end_early=may_end_early,
        )
        self._advance(search, lambda: next(lookup))

    def drop(self, peer: Peer) -> None:
        """Drop the reads and searches of a closed connection."""
        long = self.places.forget(peer)
        if long is not None and self.deadlines.close(long):
            long.end()  # its result so far is freed now, its place when its turn comes
            self._release(long)
        for request, _, future in self._jobs.take(peer):
            self._abandon(request, future)
        for search, _, future in self._waiting.take(peer):
            self._abandon(search, future)
        for request, future in self._partial.take(peer):
            self._abandon(request, future)

    def _abandon(self, request: Request, future: asyncio.Future[Any]) -> None:
        if self.deadlines.close(request):
            request.end()
        self._release(request)
        future.cancel()

    def _release(self, request: Request) -> None:
        """Forget the partial result of a request that has ended, and let others go on."""
        if isinstance(request, Search) and self._partial.end(request):
            self._has_share()
            self._start()

    def _advance(self, search: Search, step: Callable[[], SomeRead]) -> None:
        """Continue until the search ends, waits for the disk, or exceeds the turn's bounds."""
        self._step_began_s = thread_time()
        try:
            self._check_readable()
            self._go_on(search, step)
        except StopIteration as end:
            found = end.value
        except Exception as error:  # noqa: BLE001  # like a job's error: its caller must get it
            self.deadlines.close(search)
            self._release(search)
            search.failed(error)
            return
        else:
            return
        self._charge(search)
        self.deadlines.close(search)
        self._release(search)
        search.done(found)

    def _go_on(self, search: Search, step: Callable[[], SomeRead]) -> None:
        lookup = search.lookup
        read = step()
        while True:
            self._charge(search)
            if isinstance(read, Pause):
                self._partial.hold(search, read.held_bytes)
                if not search.may_end_early:
                    self.deadlines.close(search)  # a part is done: the next has its own limit
            if not search.is_part_of_put and (
                self._partial.lets_wait(search) or not self._has_share()
            ):
                self._postpone(search, read)
                return
            if search.may_end_early and search.spent_s > SEARCH_S_MAX:
                read = lookup.throw(Exhausted())
            cached = read.cached()
            if cached is None:
                future = self._submit(search, read.load)
                future.add_done_callback(partial(self._loaded, search))
                return
            if not search.is_part_of_put:
                self._reads_left -= 1
                self._bytes_left -= len(cached)
            read = lookup.send(cached)

    def _charge(self, search: Search) -> None:
        """Count the CPU time of a step, also for the connection that asked; elapsed time would end
        searches early on a busy machine.

        Reading the clock takes 0.4 us, a step about 20 us.
        """
        if search.is_part_of_put:
            return
        began_s, self._step_began_s = self._step_began_s, thread_time()
        self._left_s -= self._step_began_s - began_s
        search.spent_s += self._step_began_s - began_s
        if search.peer is not None and search.spent_s - search.charged_s > SLOW_S:
            search.peer.charge(search.spent_s - search.charged_s)
            search.charged_s = search.spent_s

    def _loaded(self, search: Search, future: asyncio.Future[Buffer]) -> None:
        if search.is_over or self._is_abandoned(search):
            self._release(search)
            return
        error = error_of(future)
        if error is not None:
            self.deadlines.close(search)
            search.lookup.close()
            self._release(search)
            search.failed(error)
        else:
            self._advance(search, partial(search.lookup.send, future.result()))

    def _is_abandoned(self, request: Request) -> bool:
        """Return whether the peer of a request has disconnected; if so, end the request."""
        if request.peer is None or request.peer.is_open:
            return False
        if self.deadlines.close(request):
            request.end()
        return True

    def _submit(self, request: Request, job: Callable[[], T]) -> asyncio.Future[T]:
        """Run a job on the thread when it is the requester's turn."""
        self._check_readable()
        future: asyncio.Future[T] = self._loop.create_future()
        if isinstance(request, Search):
            request.cold_count += 1
        requester, is_first = self.places.of(request)
        if not self._jobs.put(requester, (request, job, future), is_first=is_first):
            raise SystemBusy(
                f"[OVERLOAD]too many cold reads, {len(self._jobs)} are pending: try again later"
            )
        self._note(future)
        self.deadlines.begin(request)
        self._start()
        return future

    def _start(self) -> None:
        """Pass up to RUNNING_MAX jobs to the thread, so that it is never idle."""
        while self._running_count < RUNNING_MAX and (next_job := self._jobs.pop()) is not None:
            request, job, future = next_job
            if request.is_over or self._is_abandoned(request):
                future.cancel()
                continue
            try:
                running = self._worker.submit(job)
            except Overloaded as error:
                future.set_exception(SystemBusy(f"[OVERLOAD]too many cold reads, {error}"))
                continue
            self._running_count += 1
            running.add_done_callback(partial(self._ran, future))

    def _ran(self, future: asyncio.Future[Any], running: asyncio.Future[Any]) -> None:
        self._running_count -= 1
        error = error_of(running)
        if error is None:
            future.set_result(running.result())
        else:
            future.set_exception(error)
        self._start()

    def _note(self, future: asyncio.Future[Any]) -> None:
        self.futures.add(future)
        future.add_done_callback(self._forget)

    def _forget(self, future: asyncio.Future[Any]) -> None:
        self.futures.discard(future)
        if not future.cancelled():
            future.exception()  # its request may be over: asyncio would report the error

    def _check_readable(self) -> None:
        if self.is_refused:
            raise SystemBusy("the log is being truncated; try again, or ask the master")

    def _has_share(self) -> bool:
        """Return whether one more read is within this turn's bounds."""
        # The first read of a turn arranges the reset, so an idle driver schedules nothing.
        if not self._is_turn_known:
            self._is_turn_known = True
            self._loop.call_soon(self._next_turn)
        return self._reads_left > 0 and self._bytes_left > 0 and self._left_s > 0

    def _postpone(self, search: Search, read: SomeRead) -> None:
        """Continue the search with this read in a later turn of the loop."""
        future: asyncio.Future[Any] = self._loop.create_future()
        step = search, read, future
        requester, is_first = self.places.of(search)
        if search is self._partial.lone:
            self._partial.step = step
        elif not self._waiting.put(requester, step, is_first=is_first):
            raise SystemBusy(
                f"[OVERLOAD]too many searches, {len(self._waiting)} are pending: try again later"
            )
        self._note(future)
        self.deadlines.begin(search)

    def _next_turn(self) -> None:
        """Reset the bounds, and continue postponed searches, in turn."""
        self._is_turn_known = False
        self._reads_left = TURN_READS_MAX
        self._bytes_left = TURN_BYTES_MAX
        self._left_s = self._turn_s_max
        while (step := self._next_step()) is not None:
            search, read, future = step
            if search.is_over or self._is_abandoned(search):
                self._release(search)
                future.cancel()
                continue
            future.set_result(None)
            self._advance(search, partial(_same, read))

    def _next_step(self) -> Step | None:
        """Remove and return the next step of a search; None if none may run in this turn."""
        lone = self._partial
        if lone.lone is None:
            return self._waiting.pop() if self._waiting and self._has_share() else None
        if lone.step is None or not self._has_share():
            return None
        step, lone.step = lone.step, None
        return step


def _same(read: SomeRead) -> SomeRead:
    return read
