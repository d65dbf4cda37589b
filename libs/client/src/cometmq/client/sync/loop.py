# SPDX-License-Identifier: Apache-2.0
"""The event loop behind the blocking clients, and their common base."""

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import CancelledError, Future, InvalidStateError
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar
from weakref import WeakKeyDictionary

from cometmq.client.cluster.lifecycle import Client, unusable
from cometmq.client.errors import ClientStateError
from cometmq.remoting.transport.tasks import describe

LOOPS_WITH_SERVERS: Final["WeakKeyDictionary[asyncio.AbstractEventLoop, int]"] = WeakKeyDictionary()
"""Number of in-memory clusters in each event loop."""

T = TypeVar("T")

END_S: Final = 1
"""How long an interrupted caller waits for the end of its cancelled coroutine."""


class Call(Generic[T]):
    """Runs a coroutine on a loop; the caller may be interrupted by a signal handler at any point.

    The interruption may come before the coroutine begins, and after it has returned.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> None:
        self.future: Future[T] = Future()
        self._loop = loop
        self._work = work
        self._task: asyncio.Task[T] | None = None

    def begin(self) -> None:
        """Start the coroutine, without waiting."""
        self._loop.call_soon_threadsafe(self._begin)

    def abandon(self, undo: Callable[[T], object] | None) -> None:
        """Cancel the coroutine, and wait until it has ended, because an interrupted poll would
        refuse the next one.

        If it has returned nevertheless, call `undo` with its result on the loop.
        """
        if not self.future.done():
            self._loop.call_soon_threadsafe(self._cancel)
        with contextlib.suppress(Exception, CancelledError):
            found = self.future.result(END_S)
            if undo is not None:
                self._loop.call_soon_threadsafe(undo, found)

    def _begin(self) -> None:
        self._task = self._loop.create_task(self._work)
        self._task.add_done_callback(self._end)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
        else:  # the interruption came before `begin`
            self._work.close()
            self.future.cancel()

    def _end(self, task: asyncio.Task[T]) -> None:
        with contextlib.suppress(InvalidStateError):  # the loop has ended meanwhile
            if task.cancelled():
                self.future.cancel()
            elif (error := task.exception()) is not None:
                self.future.set_exception(error)
            else:
                self.future.set_result(task.result())


class LoopThread:
    """An event loop that runs in its own thread until the process ends.

    A KeyboardInterrupt on the loop, which only application code raises there, ends the loop: all
    waiting and later calls raise ClientStateError, because no answer can reach them.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._lock = threading.RLock()  # a signal handler may interrupt a call and make one
        self._waiting: set[Future[Any]] = set()
        self._end: BaseException | None = None
        self._thread = threading.Thread(target=self._serve, name="cometmq-client", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                self._loop.run_forever()
            except SystemExit:  # only one coroutine's error: its caller gets it
                continue
            except BaseException as error:  # noqa: BLE001  # the waiting threads report it
                return self._abandon(error)

    def _abandon(self, error: BaseException) -> None:
        """Fail all waiting calls, because the loop has ended."""
        with self._lock:
            self._end = error
            waiting, self._waiting = self._waiting, set()
        for future in waiting:
            with contextlib.suppress(InvalidStateError):  # its caller was interrupted just now
                future.set_exception(_ended(error))

    def run(self, work: Coroutine[Any, Any, T], *, undo: Callable[[T], object] | None = None) -> T:
        """Run a coroutine on the loop and wait.

        An interruption of the wait cancels the coroutine; if it has returned by then, `undo` is
        called with its result.
        """
        if threading.current_thread() is self._thread:
            work.close()
            raise ClientStateError(
                "a hook or coroutine function called a blocking client, and would wait for "
                "itself: use a plain function as listener, which runs on another thread"
            )
        if _running_loop() in LOOPS_WITH_SERVERS:
            work.close()
            raise ClientStateError(
                "a blocking client was called in the event loop of its MemoryCluster, which could "
                "not answer meanwhile: use `with MemoryCluster()` instead of `async with`, or call "
                "the client with `await asyncio.to_thread(...)`"
            )
        with self._lock:
            if self._end is not None:
                work.close()
                raise _ended(self._end)
            call = Call(self._loop, work)
            self._waiting.add(call.future)
        try:
            call.begin()
            try:
                return call.future.result()
            finally:
                with self._lock:
                    self._waiting.discard(call.future)
        except BaseException:
            call.abandon(undo)
            raise

    def soon(self, function: Callable[[], object]) -> None:
        """Schedule a call on the loop without waiting.

        Meant for signal handlers: the interrupted code may hold a lock that the loop needs to
        proceed.
        """
        if self._end is not None:
            raise _ended(self._end)
        self._loop.call_soon_threadsafe(function)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _ended(error: BaseException) -> ClientStateError:
    ended = ClientStateError(
        "the blocking clients of this process have ended, because a function that they called "
        f"raised {describe(error)}: start a new process, and raise subclasses of Exception"
    )
    ended.__cause__ = error
    return ended


_LOOPS: Final[dict[int, LoopThread]] = {}
_LOOPS_LOCK: Final = threading.RLock()
# If a different thread held it during a fork, it would remain locked in the child.
os.register_at_fork(
    before=_LOOPS_LOCK.acquire,
    after_in_parent=_LOOPS_LOCK.release,
    after_in_child=_LOOPS_LOCK.release,
)


def loop_thread() -> LoopThread:
    """Return the loop of this process; a forked child gets its own."""
    with _LOOPS_LOCK:
        process_id = os.getpid()
        found = _LOOPS.get(process_id)
        if found is None:
            found = _LOOPS[process_id] = LoopThread()
        return found


class Blocking:
    """The base of all blocking objects, each of which runs an asynchronous one on the loop."""

    _inner: Any

    @classmethod
    def around(cls, inner: Any) -> Self:
        """Wrap an existing asynchronous object."""
        made = cls.__new__(cls)
        made._inner = inner  # noqa: SLF001  # of its own class
        return made

    @staticmethod
    def _run(work: Coroutine[Any, Any, T], *, undo: Callable[[T], object] | None = None) -> T:
        return loop_thread().run(work, undo=undo)

    def _on_loop(self, function: Callable[[], T]) -> T:
        """Call a plain function on the loop, because it touches the loop's state."""

        async def call() -> T:
            return function()

        return self._run(call())

    def _iterate(
        self, items: AsyncIterator[T], *, undo: Callable[[T | None], object] | None = None
    ) -> Iterator[T]:
        return _Iteration(items, undo)


class _Iteration(Iterator[T]):
    """Iterates on the loop; like `Steps`, it goes on after a step that raised."""

    def __init__(self, items: AsyncIterator[T], undo: Callable[[T | None], object] | None) -> None:
        self._items = items
        self._undo = undo

    def __next__(self) -> T:
        async def following() -> T | None:
            return await anext(self._items, None)

        found = loop_thread().run(following(), undo=self._undo)
        if found is None:
            raise StopIteration
        return found


class Lifecycle(Blocking):
    """The base of what `with` starts and closes."""

    def start(self) -> None:
        """Start the client; it can be started only once."""
        self._run(self._inner.start())

    def close(self) -> None:
        """Close the client once the calls in flight have ended.

        Raise ClientStateError if called from a listener: `close` would wait for it and deadlock.
        """
        self._inner.check_outside_calls()
        self._run(self._inner.close())

    def __enter__(self) -> Self:
        self._run(self._inner.__aenter__())
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._inner.check_outside_calls()
        self._run(self._inner.__aexit__(exc_type, exc, traceback))

    async def __aenter__(self) -> Self:
        """Raise an error that asks for `with` instead of `async with`."""
        raise TypeError(
            "a client of cometmq.client.sync is started by `with`; for `async with`, use the class "
            "of the same name in cometmq.client"
        )

    async def __aexit__(self, *_: object) -> None:
        """Do nothing; Python looks this method up before it calls `__aenter__`."""


class SyncClient(Lifecycle):
    """The base of all blocking clients."""

    _inner: Client

    @property
    def client_id(self) -> str:
        """The id under which brokers know this client."""
        return self._inner.client_id

    @property
    def is_running(self) -> bool:
        """Whether the client has started and is not closed."""
        return self._inner.is_running

    def use_namesrv(self, addresses: str) -> None:
        """Switch to these name servers: `host:port;host:port`."""
        self._on_loop(lambda: self._inner.use_namesrv(addresses))

    def _soon(self, function: Callable[[], object]) -> None:
        """Schedule a call on the loop of a running client without waiting.

        Meant for signal handlers, which may interrupt a call that holds a lock needed by the loop.
        """
        if not self._inner.is_running:
            raise ClientStateError(unusable(self._inner.KIND, self._inner.state))
        loop_thread().soon(function)
