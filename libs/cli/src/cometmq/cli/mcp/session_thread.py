# SPDX-License-Identifier: Apache-2.0
"""The thread of the tools: a long step of one does not hold up the answers of the protocol.

With one loop for both, eight calls that decoded MessagePack held up the answer to a ping for 40 s.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from contextvars import copy_context
from typing import Any, TypeVar

T = TypeVar("T")


@asynccontextmanager
async def on_own_thread(opening: AbstractAsyncContextManager[T]) -> AsyncIterator[T]:
    """Enter a context on an event loop in another thread, and leave it there at the end."""
    loop, other, end = asyncio.get_running_loop(), asyncio.new_event_loop(), asyncio.Event()
    opened: asyncio.Future[T] = loop.create_future()

    async def host() -> None:
        async with opening as made:
            loop.call_soon_threadsafe(opened.set_result, made)
            await end.wait()

    def serve() -> None:
        with asyncio.Runner(loop_factory=lambda: other) as runner:
            runner.run(host())

    thread = loop.run_in_executor(None, copy_context().run, serve)
    either: set[asyncio.Future[Any]] = {thread, opened}
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not opened.done():
            await thread  # it raises why the context could not be entered
        yield opened.result()
    finally:
        with suppress(RuntimeError):  # the loop has ended already
            other.call_soon_threadsafe(end.set)
        await thread
