# SPDX-License-Identifier: Apache-2.0
"""The kernel ends a process that stands still, in real processes."""

import os
import signal
import subprocess
import sys

import pytest

from cometmq.broker.copies.roles.watchdog import DeadMan
from cometmq.testing.broker.logs import RecordingLog

PROGRAM = """
import sys, time
from cometmq.broker.copies.roles.watchdog import DeadMan
from cometmq.remoting.log import NO_LOG
man = DeadMan(log=NO_LOG)
{body}
"""
ALIVE = """
man.arm(600_000)
for _ in range(5):
    man.arm(50_000)
    time.sleep(0.01)
man.arm(800)  # a busy machine may pause the process before the next line
man.disarm()
time.sleep(0.9)
print("alive", flush=True)
"""
STANDSTILL = "man.arm(50); time.sleep(600)"
STOPPED = "man.arm(1_500); print('armed', flush=True); time.sleep(600)"


def process(body: str) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", PROGRAM.format(body=body)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)


def test_a_process_that_arms_it_in_time_or_disarms_it_lives() -> None:
    with process(ALIVE) as running:
        output, _ = running.communicate(timeout=60)
    assert (running.returncode, output) == (0, "alive\n")


def test_a_process_that_stands_still_is_killed() -> None:
    with process(STANDSTILL) as running:
        assert running.wait(60) == -signal.SIGKILL


def test_a_stopped_process_is_killed_without_being_continued() -> None:
    with process(STOPPED) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "armed\n"
        os.kill(running.pid, signal.SIGSTOP)
        assert running.wait(60) == -signal.SIGKILL


def test_a_system_without_timers_is_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object, **__: object) -> None:
        raise OSError("no C library")

    monkeypatch.setattr("ctypes.CDLL", missing)
    log = RecordingLog()
    man = DeadMan(log=log)
    man.arm(1)
    man.arm(1)
    man.disarm()
    assert log.named("frozen_master.unwatched") == [{"error": "no C library"}]


def test_the_first_process_of_a_container_cannot_be_watched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "getpid", lambda: 1)
    log = RecordingLog()
    DeadMan(log=log).arm(1)
    (warned,) = log.named("frozen_master.unwatched")
    assert "the first of its container" in str(warned["error"])
