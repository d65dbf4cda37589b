# SPDX-License-Identifier: Apache-2.0
"""Signals that end commands, and output after the loss of the terminal (SIGHUP)."""

import asyncio
import atexit
import os
import signal
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any, Final

SAME_REQUEST_S: Final = 0.1
_CANCELS_MAX: Final = 2
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_TERMINAL_FDS: Final = (1, 2)


class _Requests:
    """The requests of signals to end a task."""

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self._task = task
        self._loop = task.get_loop()
        self._times_s: list[float] = []
        self._waiting: list[asyncio.Handle] = []
        """Cancellations that wait for their turn on the loop."""

    def __bool__(self) -> bool:
        return bool(self._times_s)

    def received(self, number: int, _frame: object) -> None:
        """Handle a signal."""
        now_s = monotonic()
        if number == signal.SIGHUP:
            leave_terminal()
        if self._times_s and now_s - self._times_s[-1] < SAME_REQUEST_S:
            return
        self._times_s.append(now_s)
        if len(self._times_s) > _CANCELS_MAX:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        elif not self._loop.is_closed():
            # Not here: the signal may have interrupted a callback that goes on to set the result of
            # the future that the task waits for.
            self._waiting.append(self._loop.call_soon_threadsafe(self._cancel))

    def _cancel(self) -> None:
        self._waiting.pop()
        self._task.cancel()

    def is_ending(self) -> bool:
        """Return whether the task is to end; cancellations that still wait are taken back."""
        waiting = self._waiting.copy()
        self._waiting.clear()
        for handle in waiting:
            handle.cancel()
        return bool(waiting) or (bool(self) and bool(self._task.cancelling()))


@contextmanager
def cancelled_by_signals() -> Iterator[None]:
    """Make SIGINT, SIGTERM and SIGHUP cancel the current task while the block runs.

    The first signal cancels the command that the task runs, the second one cancels its clean-up,
    and the third one kills the process, in case its loop is blocked. Signals within SAME_REQUEST_S
    count as one, because a shell or `make` sends them to a process and to its group. asyncio's own
    handler would cancel the task, or raise KeyboardInterrupt at the second SIGINT, in the middle of
    any callback, and a traceback would be printed.

    Raises:
        asyncio.CancelledError: A signal came, but the block has ended normally: the signal came in
            its last step, or the block has swallowed the cancellation (`asyncio.wait_for` does so
            if its result arrives at the same time). A block that continues on purpose calls
            `uncancel`.
    """
    task = asyncio.current_task()
    assert task is not None
    requests = _Requests(task)
    kept = {number: signal.getsignal(number) for number in _SIGNALS}
    handled = {number: before for number, before in kept.items() if before != signal.SIG_IGN}
    for number in handled:
        signal.signal(number, requests.received)
    try:
        yield
        if requests.is_ending():
            raise asyncio.CancelledError
    finally:
        if requests:
            # Python restores the default handlers while it exits; the status must not depend on it.
            atexit.register(_ignore, handled)
        else:
            for number, before in handled.items():
                signal.signal(number, before)


@contextmanager
def interrupts_kept() -> Iterator[Callable[[], None]]:
    """Yield a function that raises KeyboardInterrupt if SIGINT has come since the block began.

    The handler raises KeyboardInterrupt, too, but Python discards what is raised in a finalizer or
    a weak reference's callback, and the program would continue. The same happens to the
    cancellation of a command whose clean-up fails. A program that does something again and again
    calls the function in each round.
    """
    is_interrupted = False

    def interrupt(_number: int, _frame: object) -> None:
        nonlocal is_interrupted
        is_interrupted = True
        raise KeyboardInterrupt

    def check() -> None:
        # cancelled_by_signals keeps its own handler once a signal has come.
        if is_interrupted or signal.getsignal(signal.SIGINT) not in {interrupt, signal.SIG_IGN}:
            raise KeyboardInterrupt

    before = signal.getsignal(signal.SIGINT)
    if before != signal.SIG_IGN:
        signal.signal(signal.SIGINT, interrupt)
    try:
        yield check
    finally:
        if signal.getsignal(signal.SIGINT) is interrupt:
            signal.signal(signal.SIGINT, before)


def _ignore(numbers: Iterable[signal.Signals]) -> None:
    for number in numbers:
        signal.signal(number, signal.SIG_IGN)


def is_ignored_hangup(number: signal.Signals) -> bool:
    """Return whether the signal is a SIGHUP that the program inherited as ignored from `nohup`."""
    return number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN


def leave_terminal() -> None:
    """Discard further output to a terminal, because every write after a hangup fails with EIO."""
    with Path(os.devnull).open("wb") as nowhere:
        for fd in _TERMINAL_FDS:
            if _is_terminal(fd):
                os.dup2(nowhere.fileno(), fd)


def _is_terminal(fd: int) -> bool:
    """Return whether the descriptor is a terminal; isatty() returns False after a hangup."""
    try:
        return stat.S_ISCHR(os.fstat(fd).st_mode)
    except OSError:
        return False  # the descriptor is closed
