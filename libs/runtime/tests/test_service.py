# SPDX-License-Identifier: Apache-2.0
"""A program ends with the right exit status and one clear line."""

import gc
import os
import signal
import subprocess
import sys

import pytest

from cometmq.remoting.errors import LockHeld, SettingsError
from cometmq.runtime import service
from cometmq.runtime.service import one_line, run


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_asks_the_program_to_stop(number):
    reasons = []

    async def main(stop):
        os.kill(os.getpid(), number)
        await stop.wait()
        reasons.append(stop.reason)

    assert run(main) == 0
    assert reasons == [number.name]


NO_THREAD = (
    "a thread or process cannot be started: raise the limit of processes and threads (ulimit -u,"
    " TasksMax of systemd, pids.max of the container)"
)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (SettingsError("listenPort=x: must be an integer"), "listenPort=x: must be an integer"),
        (LockHeld("/data/store is used by process 7"), "/data/store is used by process 7"),
        (PermissionError(13, "Permission denied", "/data"), "/data: Permission denied"),
        (OSError(98, "address in use"), "address in use"),
        (RuntimeError("can't start new thread"), NO_THREAD),
        (BlockingIOError(11, "Resource temporarily unavailable"), NO_THREAD),
        (ExceptionGroup("tasks", [SettingsError("a")]), "a"),
    ],
)
def test_errors_that_users_can_fix_give_one_line_and_status_2(capsys, error, line):
    async def main(_stop):
        raise error

    assert run(main) == 2
    assert capsys.readouterr().err == f"cometmq: {line}\n"


def test_bugs_and_errors_after_the_start_give_status_1(capsys, monkeypatch):
    sweeps = []
    monkeypatch.setattr(service, "sweep", lambda: sweeps.append(1))  # it would visit all tests

    async def broken(_stop):
        raise ValueError

    async def fails_later(stop):
        stop.serving()
        raise OSError(5, "Input/output error")

    assert run(broken) == 1
    assert run(fails_later) == 1
    assert len(sweeps) == 1
    assert capsys.readouterr().err == ""
    assert one_line(ExceptionGroup("tasks", [SettingsError("a"), ValueError()])) is None


HAS_NO_THREADS = """
import asyncio, os, resource, sys, uvloop
from cometmq.runtime.service import run

async def main(stop):
    await asyncio.get_running_loop().getaddrinfo("localhost", 0)

resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
if os.geteuid() == 0:
    os.setuid(54_321)  # root has no limit
sys.exit(run(main))
"""


def test_a_program_that_gets_no_threads_says_so():
    """libuv would end it by SIGABRT."""
    done = subprocess.run(
        [sys.executable, "-c", HAS_NO_THREADS], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    begin = "cometmq: the threads of the event loop cannot be started: raise the limit of processes"
    assert done.stderr.startswith(begin), done.stderr
    assert done.stderr.count("\n") == 1


IGNORES_THE_REQUEST = """
import asyncio, os, signal
from cometmq.testing.runtime.clock import FakeClock
from cometmq.runtime.service import run
clock = FakeClock()
async def main(stop):
    os.kill(os.getpid(), signal.SIGTERM)
    await stop.wait()
    clock.advance({later_ms})
    os.kill(os.getpid(), signal.SIGTERM)
    async with asyncio.timeout({wait_s}):
        await asyncio.Event().wait()
run(main, clock=clock)
"""


def test_the_second_signal_ends_the_program_at_once():
    done = _run(IGNORES_THE_REQUEST.format(later_ms=1_000, wait_s=60))
    assert done.returncode == 128 + signal.SIGTERM


TOLD_TWICE = """
import asyncio, os, signal
from cometmq.testing.runtime.clock import FakeClock
from cometmq.runtime.service import run
clock = FakeClock()
async def main(stop):
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT):
        clock.advance(333)
        os.kill(os.getpid(), number)
        reached = asyncio.Event()
        loop.add_signal_handler(signal.SIGUSR1, reached.set)
        os.kill(os.getpid(), signal.SIGUSR1)  # signals of one process arrive in order
        await reached.wait()
    print("stopped in order")
raise SystemExit(run(main, clock=clock))
"""


def test_one_request_delivered_twice_still_stops_the_program_in_order():
    done = _run(TOLD_TWICE)
    assert (done.returncode, done.stdout) == (0, b"stopped in order\n")


HANGS_UP = """
import os, signal, sys
from cometmq.runtime.service import run
signal.signal(signal.SIGHUP, signal.{handler})
async def main(stop):
    os.close(int(sys.argv[1]))  # the window is closed: the kernel sends SIGHUP to a leader
    os.kill(os.getpid(), signal.SIGHUP)
    if "{handler}" == "SIG_DFL":
        await stop.wait()
        print("stopping ...", flush=True)
raise SystemExit(run(main))
"""


@pytest.mark.parametrize("handler", ["SIG_DFL", "SIG_IGN"])
def test_a_closed_terminal_stops_the_program_in_order_unless_nohup(handler):
    window, terminal = os.openpty()
    try:
        child = subprocess.Popen(
            [sys.executable, "-c", HANGS_UP.format(handler=handler), str(window)],
            stdout=terminal,
            stderr=terminal,
            pass_fds=[window],
        )
    finally:
        os.close(window)
        os.close(terminal)
    assert child.wait(60) == 0


def _run(program):
    return subprocess.run(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, timeout=180, check=False
    )


@pytest.mark.parametrize("freezes", [True, False])
def test_collections_freeze_what_survives_while_a_program_runs(freezes):
    counts = []

    async def main(_stop):
        gc.freeze()
        before = gc.get_freeze_count()
        survivors = [[number] for number in range(1_000)]
        gc.collect()
        counts.append((gc.get_freeze_count() - before, len(survivors)))

    callbacks = list(gc.callbacks)
    assert run(main, freezes=freezes) == 0
    ((frozen, survived),) = counts
    assert (frozen >= survived) is freezes
    assert gc.callbacks == callbacks
