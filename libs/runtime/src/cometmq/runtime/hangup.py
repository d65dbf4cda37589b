# SPDX-License-Identifier: Apache-2.0
"""Signals that end commands, and output after the loss of the terminal (SIGHUP)."""

import asyncio
import atexit
import os
import signal
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Final

SAME_REQUEST_S: Final = 0.1
_CANCELS_MAX: Final = 2
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_TERMINAL_FDS: Final = (1, 2)


@contextmanager
def cancelled_by_signals() -> Iterator[None]:
    """Make SIGINT, SIGTERM and SIGHUP cancel the current task while the block runs.

    The first signal cancels the command that the task runs, the second one cancels its clean-up,
    and the third one kills the process, in case its loop is blocked. Signals within SAME_REQUEST_S
    count as one, because a shell or `make` sends them to a process and to its group. asyncio's own
    handler would raise KeyboardInterrupt in any callback at the second SIGINT, and a transport
    would print its traceback.

    Raises:
        asyncio.CancelledError: A signal came, but the block has ended normally: the signal came in
            its last step, or the block has swallowed the cancellation (`asyncio.wait_for` does so
            if its result arrives at the same time). A block that continues on purpose calls
            `uncancel`.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    requests: list[float] = []

    def received(number: int, _frame: object) -> None:
        now_s = monotonic()
        if number == signal.SIGHUP:
            leave_terminal()
        if requests and now_s - requests[-1] < SAME_REQUEST_S:
            return
        requests.append(now_s)
        if len(requests) > _CANCELS_MAX:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        elif not loop.is_closed():
            task.cancel()
            loop.call_soon_threadsafe(bool)  # wakes the loop

    kept = {number: signal.getsignal(number) for number in _SIGNALS}
    handled = {number: before for number, before in kept.items() if before != signal.SIG_IGN}
    for number in handled:
        signal.signal(number, received)
    try:
        yield
        if requests and task.cancelling():
            raise asyncio.CancelledError
    finally:
        if requests:
            # Python restores the default handlers while it exits; the status must not depend on it.
            atexit.register(_ignore, handled)
        else:
            for number, before in handled.items():
                signal.signal(number, before)


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
