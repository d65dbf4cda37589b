# SPDX-License-Identifier: Apache-2.0
"""The frame of every program: event loop, signals, exit status.

Invariants: exit 0 after a requested stop; exit 2 with one line on standard error when the program
could not start for a reason that its user can mend (settings, a port, a folder, a lock); exit 1
with the error in the log for anything else. The second signal ends the process at once.
"""

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from cometmq.remoting.errors import CometError
from cometmq.remoting.log import NO_LOG, Log
from cometmq.remoting.transport.tasks import describe

LoopFactory = Callable[[], asyncio.AbstractEventLoop]

try:
    import uvloop

    new_event_loop: LoopFactory = uvloop.new_event_loop
except ImportError:  # where it does not install, the standard loop serves as well
    new_event_loop = asyncio.new_event_loop

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_CANNOT_START = 2

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Stop:
    """The request to stop, and the word that the program serves."""

    def __init__(self) -> None:
        """Nothing requested, not serving."""
        self._requested = asyncio.Event()
        self.reason = ""
        self.is_serving = False

    @property
    def is_requested(self) -> bool:
        """Return whether the program shall end."""
        return self._requested.is_set()

    def request(self, reason: str) -> None:
        """Ask the program to end; the first reason stays."""
        self.reason = self.reason or reason
        self._requested.set()

    async def wait(self) -> None:
        """Wait until someone asks to stop."""
        await self._requested.wait()

    def serving(self) -> None:
        """Say that the start is over: an error from now on is a failure, not a bad environment.

        What the start allocated stays for good, so the garbage collector need not look at it.
        """
        self.is_serving = True
        gc.collect()
        gc.freeze()


def run(main: Callable[[Stop], Coroutine[Any, Any, None]], *, log: Log = NO_LOG) -> int:
    """Run a program until it ends or a signal asks it to; return its exit status."""
    stop: Stop | None = None

    async def guarded() -> None:
        nonlocal stop
        stop = Stop()
        with _signals(stop, log):
            await main(stop)

    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(guarded())
    except Exception as error:  # noqa: BLE001  # the frame: every error becomes a status
        is_serving = stop is not None and stop.is_serving
        return _failed(error, log, is_serving=is_serving)
    return EXIT_OK


def one_line(error: BaseException) -> str | None:
    """Return the line for an error that the user can mend, None for any other."""
    if isinstance(error, BaseExceptionGroup):
        lines = [one_line(inner) for inner in error.exceptions]
        return None if None in lines else lines[0]
    if isinstance(error, CometError):
        return str(error)
    if isinstance(error, OSError):
        place = f"{error.filename}: " if error.filename else ""
        return place + (error.strerror or str(error))
    return None


def _failed(error: Exception, log: Log, *, is_serving: bool) -> int:
    line = None if is_serving else one_line(error)
    if line is not None:
        print(f"cometmq: {line}", file=sys.stderr)  # noqa: T201  # for the person at the terminal
        return EXIT_CANNOT_START
    log.error("program.failed", error=describe(error), exc_info=error)
    return EXIT_FAILED


@contextmanager
def _signals(stop: Stop, log: Log) -> Iterator[None]:
    """Turn the first SIGTERM or SIGINT into a request, the second into the end."""

    def received(number: signal.Signals) -> None:
        if stop.is_requested:
            log.warning("program.killed", signal=number.name)
            os._exit(128 + number)
        log.info("program.stopping", signal=number.name)
        stop.request(number.name)

    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, received, number)
    try:
        yield
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
