# SPDX-License-Identifier: Apache-2.0
"""One call of a blocking client: a coroutine on the loop, and the thread that waits for it."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future, InvalidStateError
from typing import Any, Final, Generic, TypeVar

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
