# SPDX-License-Identifier: Apache-2.0
"""Reads of the store that may block, and searches that read several times.

Searches read data in memory on the loop. The number of reads per turn is bounded for all searches
together; searches above the bound continue in later turns, one at a time.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from cometmq.remoting.command import Call, Peer
from cometmq.remoting.errors import Overloaded, ServerError, SystemBusy
from cometmq.remoting.log import Log
from cometmq.remoting.transport.tasks import describe
from cometmq.remoting.types import Buffer
from cometmq.runtime.worker import Worker, error_of
from cometmq.store.reads import Lookup

T = TypeVar("T")

TURN_READS_MAX: Final = 32  # for all searches together: about 1 ms with testing the records
TURN_BYTES_MAX: Final = 1 << 20


class _Search(NamedTuple):
    lookup: Lookup[Any]
    done: Callable[[Any], None]
    failed: Callable[[Exception], None]
    peer: Peer | None
    is_part_of_put: bool


class StoreReads:
    """The reads of one store that are under way."""

    def __init__(self, worker: Worker, *, log: Log) -> None:
        """Reads that may block run on `worker`."""
        self._worker = worker
        self._log = log
        self._loop = asyncio.get_running_loop()
        self.futures: set[asyncio.Future[Any]] = set()
        self.is_refused = False
        """Whether new reads are refused, because the log is being truncated."""
        self._waiting: deque[tuple[_Search, Buffer, asyncio.Future[Any]]] = deque()
        self._reads_left = TURN_READS_MAX
        self._bytes_left = TURN_BYTES_MAX

    def __len__(self) -> int:
        return len(self.futures)

    def read(self, call: Call[Any], job: Callable[[], T], done: Callable[[T], None]) -> None:
        """Run a job on the read thread, where it may block; pass its result to `done` on the loop.

        If the read fails, the call is answered with the error. Raise SystemBusy if too many reads
        are pending.
        """
        future = self._submit(job)
        self.futures.add(future)
        future.add_done_callback(self.futures.discard)
        future.add_done_callback(partial(self._read, call, done))

    def _read(self, call: Call[Any], done: Callable[[T], None], future: asyncio.Future[T]) -> None:
        error = error_of(future)
        if error is None:
            done(future.result())
            return
        self._log.warning("read.failed", code=call.code, error=describe(error))
        call.fail(ServerError(describe(error)))

    def run(
        self, job: Callable[[], T], done: Callable[[T], None], failed: Callable[[Exception], None]
    ) -> None:
        """Run a job of the broker on the read thread, then call `done` or `failed` on the loop."""

        def ended(future: asyncio.Future[T]) -> None:
            error = error_of(future)
            if error is None:
                done(future.result())
            else:
                failed(error)

        try:
            future = self._submit(job)
        except SystemBusy as error:
            failed(error)
            return
        self.futures.add(future)
        future.add_done_callback(self.futures.discard)
        future.add_done_callback(ended)

    def look_up(
        self,
        lookup: Lookup[T],
        done: Callable[[T], None],
        failed: Callable[[Exception], None],
        *,
        peer: Peer | None = None,
        is_part_of_put: bool = False,
    ) -> None:
        """Run a search; `done` is called on the loop, immediately if all its reads are in memory.

        A search for a `peer` ends silently if its connection closes. `failed` receives the error of
        a read, or SystemBusy if too many reads are pending. A search that is part of a put reads a
        single message and is limited like a put, so it does not count towards the turn's bound.
        """
        self._advance(_Search(lookup, done, failed, peer, is_part_of_put), None)

    def _advance(self, search: _Search, data: Buffer | None) -> None:
        """Continue until the search ends, waits for the disk, or exceeds the turn's bound."""
        lookup = search.lookup
        try:
            self._check_readable()
            read = next(lookup) if data is None else lookup.send(data)
            cached = read.cached()
            while cached is not None and (search.is_part_of_put or self._has_share(len(cached))):
                read = lookup.send(cached)
                cached = read.cached()
            future: asyncio.Future[Any]
            if cached is not None:
                future = self._postpone(search, cached)
            else:
                future = self._submit(read.load)
                future.add_done_callback(partial(self._advanced, search))
        except StopIteration as end:
            found = end.value
        except Exception as error:  # noqa: BLE001  # like a job's error: its caller must get it
            search.failed(error)
            return
        else:
            self.futures.add(future)
            future.add_done_callback(self.futures.discard)
            return
        search.done(found)

    def _advanced(self, search: _Search, future: asyncio.Future[Buffer]) -> None:
        if _is_abandoned(search):
            future.exception()  # mark the error as retrieved: asyncio would report it
            return
        error = error_of(future)
        if error is not None:
            search.lookup.close()
            search.failed(error)
        else:
            self._advance(search, future.result())

    def _submit(self, job: Callable[[], T]) -> asyncio.Future[T]:
        self._check_readable()
        try:
            return self._worker.submit(job)
        except Overloaded as error:
            raise SystemBusy(f"[OVERLOAD]too many cold reads, {error}") from error

    def _check_readable(self) -> None:
        if self.is_refused:
            raise SystemBusy("the log is being truncated; try again, or ask the master")

    def _has_share(self, size: int) -> bool:
        """Count one read towards this turn's bound; return False if the bound is reached."""
        # The first read of a turn arranges the reset, so an idle driver schedules nothing.
        if self._reads_left == TURN_READS_MAX:
            self._loop.call_soon(self._next_turn)
        if self._reads_left <= 0 or self._bytes_left <= 0:
            return False
        self._reads_left -= 1
        self._bytes_left -= size
        return True

    def _postpone(self, search: _Search, data: Buffer) -> asyncio.Future[Any]:
        """Continue the search with these bytes in a later turn of the loop."""
        future: asyncio.Future[Any] = self._loop.create_future()
        self._waiting.append((search, data, future))
        return future

    def _next_turn(self) -> None:
        """Reset the bound, and continue the search that has been postponed the longest."""
        self._bytes_left = TURN_BYTES_MAX
        if not self._waiting:
            self._reads_left = TURN_READS_MAX
            return
        self._reads_left = TURN_READS_MAX - 1  # the continued search already has its first read
        self._loop.call_soon(self._next_turn)
        search, data, future = self._waiting.popleft()
        future.set_result(None)
        if not _is_abandoned(search):
            self._advance(search, data)


def _is_abandoned(search: _Search) -> bool:
    """Return whether the peer of a search has disconnected; if so, end the search."""
    if search.peer is None or search.peer.is_open:
        return False
    search.lookup.close()
    return True
