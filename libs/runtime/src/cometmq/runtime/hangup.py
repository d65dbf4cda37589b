# SPDX-License-Identifier: Apache-2.0
"""Handle the loss of the terminal (SIGHUP): programs and long commands stop as on SIGTERM."""

import asyncio
import os
import signal
import stat
from pathlib import Path
from typing import Any, Final

_TERMINAL_FDS: Final = (1, 2)


def cancel_on_signals(task: asyncio.Task[Any]) -> None:
    """Make SIGTERM and SIGHUP cancel a command's task, as Ctrl-C does."""
    loop = asyncio.get_running_loop()

    def hung_up() -> None:
        leave_terminal()
        task.cancel()

    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    if not is_ignored_hangup(signal.SIGHUP):
        loop.add_signal_handler(signal.SIGHUP, hung_up)


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
