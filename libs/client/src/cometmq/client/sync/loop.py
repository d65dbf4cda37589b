# SPDX-License-Identifier: Apache-2.0
"""The event loop behind the blocking clients, and their common base."""

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
    """An event loop in a thread of its own, until the process ends."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="cometmq-client", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                self._loop.run_forever()
            except SystemExit:  # an exception of one coroutine reaches its caller; the loop goes on
                continue

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for it; interrupting the wait cancels it."""
        if threading.current_thread() is self._thread:
            work.close()
            raise ClientStateError(
                "a callback on the clients' thread must not call a blocking client"
            )
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def soon(self, function: Callable[[], object]) -> None:
        """Schedule a call on the loop, without waiting.

        For signal handlers: the interrupted code may hold a lock that the loop needs to proceed.
        """
        self._loop.call_soon_threadsafe(function)


_LOOPS: Final[dict[int, LoopThread]] = {}
_LOOPS_LOCK: Final = threading.RLock()
# If another thread held it during a fork, it would stay locked in the child.
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


class SyncClient(Generic[ClientT]):
    """The base of all blocking clients: a lifecycle, and calls that wait."""

    def __init__(self, inner: ClientT) -> None:
        self._inner = inner

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

    def start(self) -> None:
        """Start; a client can start only once."""
        self._run(self._inner.start())

    def close(self) -> None:
        """Finish the calls in flight and leave."""
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
        self._run(self._inner.__aexit__(exc_type, exc, traceback))

    @staticmethod
    def _run(work: Coroutine[Any, Any, T]) -> T:
        return loop_thread().run(work)

    def _on_loop(self, function: Callable[[], T]) -> T:
        """Call a plain function that touches state of the loop."""

        async def call() -> T:
            return function()

        return self._run(call())


class WorkingClient(SyncClient[ClientT]):
    """The common part of producers and consumers."""

    def call_admin(self, method: Callable[[ClientAdmin], Awaitable[T]]) -> T:
        """Return the result of an admin call: `call_admin(lambda a: a.queues("T"))`."""
        inner: Any = self._inner

        async def call() -> T:
            return await method(inner.admin)

        return self._run(call())
