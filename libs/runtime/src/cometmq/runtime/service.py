# SPDX-License-Identifier: Apache-2.0
"""Run any program: set up the event loop, handle signals, return the exit status.

The exit status is 0 after a requested stop. It is 2, with one line on standard error, if the user
can fix what prevented the start (settings, a port, a folder, a lock). Otherwise it is 1, with the
error in the log. A second signal ends the process immediately, unless it arrives within a second of
the first: `make` and its process group both forward the same Ctrl-C or SIGTERM.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, nullcontext
from socket import NI_NUMERICHOST, NI_NUMERICSERV
from typing import Any, Final

from cometmq.remoting.errors import CometError
from cometmq.remoting.log import NO_LOG, Log
from cometmq.remoting.transport.tasks import describe
from cometmq.runtime.clock import Clock, SystemClock
from cometmq.runtime.hangup import is_ignored_hangup, leave_terminal
from cometmq.runtime.process.garbage import Sweeps, freezing, sweep
from cometmq.runtime.process.memory import return_freed_memory
from cometmq.runtime.process.system import raise_open_files_limit
from cometmq.runtime.worker import check_threads, refused_thread

LoopFactory = Callable[[], asyncio.AbstractEventLoop]


POOL_THREADS: Final = 4  # of libuv


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return uvloop's event loop, if it is installed; raise NoThread if it may not have threads.

    libuv starts its threads when it resolves the first address, and ends the process without a word
    if it gets none. So they start here, before others that could leave too few.
    """
    check_threads(POOL_THREADS, "the threads of the event loop")
    try:
        import uvloop  # noqa: PLC0415  # some programs do without it, to save memory
    except ImportError:  # uvloop lacks wheels for some platforms; asyncio's loop suffices
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    loop.run_until_complete(loop.getnameinfo(("127.0.0.1", 0), NI_NUMERICHOST | NI_NUMERICSERV))
    return loop


EXIT_OK = 0
EXIT_FAILED = 1
EXIT_CANNOT_START = 2

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_SAME_REQUEST_MS: Final = 1_000


class Stop:
    """A request to stop, and whether the program has finished starting."""

    def __init__(self) -> None:
        self._requested = asyncio.Event()
        self.reason = ""
        self.is_serving = False

    @property
    def is_requested(self) -> bool:
        """Return whether the program should end."""
        return self._requested.is_set()

    def request(self, reason: str) -> None:
        """Ask the program to end; only the first reason is kept."""
        self.reason = self.reason or reason
        self._requested.set()

    async def wait(self) -> None:
        """Wait until a stop is requested."""
        await self._requested.wait()

    def serving(self) -> None:
        """Mark startup as complete: later errors are failures of the program.

        Objects allocated during startup live as long as the process, so garbage collections skip
        them from now on (`garbage.py`).
        """
        self.is_serving = True
        sweep()


def run(
    main: Callable[[Stop], Coroutine[Any, Any, None]],
    *,
    log: Log = NO_LOG,
    clock: Clock | None = None,
    loop_factory: LoopFactory = new_event_loop,
    freezes: bool = True,
) -> int:
    """Run a program until it ends or a signal stops it; return its exit status.

    Without `freezes`, garbage collections keep visiting all objects: connections of libraries that
    do not break their cycles would stay open in frozen ones.
    """
    return_freed_memory()
    raise_open_files_limit()
    stop: Stop | None = None

    async def guarded() -> None:
        nonlocal stop
        stop = Stop()
        sweeps = Sweeps(asyncio.get_running_loop().call_later, log=log)
        sweeps.start()
        try:
            frozen = freezing() if freezes else nullcontext()
            with frozen, _signals(stop, log, clock or SystemClock()):
                await main(stop)
        finally:
            sweeps.stop()

    try:
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(guarded())
    except Exception as error:  # noqa: BLE001  # the frame: every error becomes a status
        is_serving = stop is not None and stop.is_serving
        return _failed(error, log, is_serving=is_serving)
    return EXIT_OK


def one_line(error: BaseException) -> str | None:
    """Return the message of an error that the user can fix, or None for any other error."""
    if isinstance(error, BaseExceptionGroup):
        lines = [one_line(inner) for inner in error.exceptions]
        return None if None in lines else lines[0]
    error = refused_thread(error) or error
    if isinstance(error, CometError):
        return str(error)
    if isinstance(error, OSError):
        place = f"{error.filename}: " if error.filename else ""
        return place + (error.strerror or str(error))
    return None


def _failed(error: Exception, log: Log, *, is_serving: bool) -> int:
    line = None if is_serving else one_line(error)
    if line is not None:
        for part in line.splitlines():  # several settings may be invalid
            print(f"cometmq: {part}", file=sys.stderr)  # noqa: T201  # read at a terminal
        return EXIT_CANNOT_START
    log.error("program.failed", error=describe(error), exc_info=error)
    return EXIT_FAILED


@contextmanager
def _signals(stop: Stop, log: Log, clock: Clock) -> Iterator[None]:
    """Turn the first signal into a stop request; exit immediately on a later one."""
    first_ms = 0

    def received(number: signal.Signals) -> None:
        nonlocal first_ms
        if number == signal.SIGHUP:
            leave_terminal()
        if not stop.is_requested:
            first_ms = clock.monotonic_ms()
            log.info("program.stopping", signal=number.name)
            stop.request(number.name)
        elif clock.monotonic_ms() - first_ms >= _SAME_REQUEST_MS:
            log.warning("program.killed", signal=number.name)
            os._exit(128 + number)

    loop = asyncio.get_running_loop()
    handled = [number for number in _SIGNALS if not is_ignored_hangup(number)]
    for number in handled:
        loop.add_signal_handler(number, received, number)
    try:
        yield
    finally:
        for number in handled:
            loop.remove_signal_handler(number)
