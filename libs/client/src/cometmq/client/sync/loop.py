# SPDX-License-Identifier: Apache-2.0
"""The event loop behind the synchronous clients, and what these have in common."""

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar

from cometmq.client.admin.of_client import ClientAdmin
from cometmq.client.cluster.lifecycle import Client
from cometmq.client.errors import ClientStateError

T = TypeVar("T")
ClientT = TypeVar("ClientT", bound=Client)


class LoopThread:
    """An event loop on a thread of its own, until the process ends."""

    def __init__(self) -> None:
        """Start the thread."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="cometmq-client", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                self._loop.run_forever()
            except SystemExit:  # of one coroutine: who waits for it gets it, and all others go on
                continue

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run work on the loop and wait for it; an interrupted wait cancels it."""
        if threading.current_thread() is self._thread:
            work.close()
            raise ClientStateError("a listener on the loop must not call the sync facade")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def soon(self, function: Callable[[], object]) -> None:
        """Have a function called on the loop, without waiting for it.

        For signals: who is interrupted may hold what the loop needs to go on.
        """
        self._loop.call_soon_threadsafe(function)


_LOOPS: Final[dict[int, LoopThread]] = {}
_LOOPS_LOCK: Final = threading.RLock()
# Held by another thread at a fork it would stay so in the child.
os.register_at_fork(
    before=_LOOPS_LOCK.acquire,
    after_in_parent=_LOOPS_LOCK.release,
    after_in_child=_LOOPS_LOCK.release,
)


def loop_thread() -> LoopThread:
    """Return the loop of this process; a child after a fork gets its own."""
    with _LOOPS_LOCK:
        process_id = os.getpid()
        found = _LOOPS.get(process_id)
        if found is None:
            found = _LOOPS[process_id] = LoopThread()
        return found


class SyncClient(Generic[ClientT]):
    """What all clients have: a life, and calls that wait."""

    def __init__(self, inner: ClientT) -> None:
        """Stand before an asynchronous client."""
        self._inner = inner

    @property
    def client_id(self) -> str:
        """The name under which brokers know this client."""
        return self._inner.client_id

    @property
    def is_running(self) -> bool:
        """Whether the client has started and is not closed."""
        return self._inner.is_running

    def use_namesrv(self, addresses: str) -> None:
        """Ask these name servers from now on: `host:port;host:port`."""
        self._on_loop(lambda: self._inner.use_namesrv(addresses))

    def start(self) -> None:
        """Start; a client starts once."""
        self._run(self._inner.start())

    def close(self) -> None:
        """Let what is under way end, and leave."""
        self._run(self._inner.close())

    def __enter__(self) -> Self:
        """Start."""
        self._run(self._inner.__aenter__())
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close."""
        self._run(self._inner.__aexit__(exc_type, exc, traceback))

    @staticmethod
    def _run(work: Coroutine[Any, Any, T]) -> T:
        return loop_thread().run(work)

    def _on_loop(self, function: Callable[[], T]) -> T:
        """Call what is no coroutine, but touches what belongs to the loop."""

        async def call() -> T:
            return function()

        return self._run(call())


class WorkingClient(SyncClient[ClientT]):
    """What producers and consumers have in common."""

    def call_admin(self, method: Callable[[ClientAdmin], Awaitable[T]]) -> T:
        """Return what an administration call gives: `call_admin(lambda a: a.queues("T"))`."""
        inner: Any = self._inner

        async def call() -> T:
            return await method(inner.admin)

        return self._run(call())
