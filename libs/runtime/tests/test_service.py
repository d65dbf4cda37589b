# SPDX-License-Identifier: Apache-2.0
"""A program ends with the right exit status and one clear line."""

import gc
import os
import signal
import subprocess
import sys

import pytest

from cometmq.remoting.errors import LockHeld, SettingsError
from cometmq.runtime.service import one_line, run


def test_a_program_that_ends_by_itself_is_fine():
    async def main(stop):
        assert not stop.is_requested

    assert run(main) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_asks_the_program_to_stop(number):
    reasons = []

    async def main(stop):
        os.kill(os.getpid(), number)
        await stop.wait()
        reasons.append(stop.reason)

    assert run(main) == 0
    assert reasons == [number.name]


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (SettingsError("listenPort=x: must be an integer"), "listenPort=x: must be an integer"),
        (LockHeld("/data/store is used by process 7"), "/data/store is used by process 7"),
        (PermissionError(13, "Permission denied", "/data"), "/data: Permission denied"),
        (OSError(98, "address in use"), "address in use"),
        (ExceptionGroup("tasks", [SettingsError("a")]), "a"),
    ],
)
def test_errors_that_users_can_fix_give_one_line_and_status_2(capsys, error, line):
    async def main(_stop):
        raise error

    assert run(main) == 2
    assert capsys.readouterr().err == f"cometmq: {line}\n"


def test_bugs_and_errors_after_the_start_give_status_1(capsys):
    async def broken(_stop):
        raise ValueError

    async def fails_later(stop):
        stop.serving()
        raise OSError(5, "Input/output error")

    try:
        assert run(broken) == 1
        assert run(fails_later) == 1
    finally:
        gc.unfreeze()
    assert capsys.readouterr().err == ""
    assert one_line(ExceptionGroup("tasks", [SettingsError("a"), ValueError()])) is None


IGNORES_THE_REQUEST = """
import asyncio, os, signal
from cometmq.runtime.service import run
async def main(stop):
    os.kill(os.getpid(), signal.SIGTERM)
    await stop.wait()
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.Event().wait()
run(main)
"""


def test_the_second_signal_ends_the_program_at_once():
    done = subprocess.run([sys.executable, "-c", IGNORES_THE_REQUEST], timeout=60, check=False)
    assert done.returncode == 128 + signal.SIGTERM
