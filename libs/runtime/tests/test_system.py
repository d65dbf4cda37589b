# SPDX-License-Identifier: Apache-2.0
"""What a process asks of the kernel: the boot id, open files, priority of disk and processors."""

import ctypes
import os
import platform
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from cometmq.runtime.process import system
from cometmq.runtime.process.system import (
    NICENESS,
    open_files_limit,
    raise_open_files_limit,
    yield_processors,
)
from cometmq.runtime.worker import Worker

IDLE = 3
IOPRIO_GET = {"x86_64": 252, "aarch64": 31}


def test_the_boot_id_is_the_kernels():
    assert system.boot_id() == Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()


def test_an_unknown_boot_has_no_id(monkeypatch, tmp_path):
    monkeypatch.setattr(system, "_BOOT_ID", tmp_path / "missing")
    assert system.boot_id() == ""


async def test_the_disk_serves_a_worker_after_all_others():
    before = io_class()
    worker = Worker("patient", has_idle_io=True)
    assert await worker.submit(io_class) == (None if before is None else IDLE)
    worker.close()
    assert io_class() == before


@pytest.mark.parametrize(
    ("machine", "number"), [("x86_64", 251), ("aarch64", 30), ("riscv64", None)]
)
def test_each_machine_has_its_own_number_of_the_system_call(monkeypatch, machine, number):
    calls: list[tuple[int, ...]] = []
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: FakeKernel(calls))
    assert system.use_idle_io() is (number is not None)
    assert calls == ([] if number is None else [(number, 1, 0, IDLE << 13)])


class FakeKernel:
    def __init__(self, calls):
        self.calls = calls

    def syscall(self, *arguments):
        self.calls.append(arguments)
        return 0


def io_class() -> int | None:
    """Return the calling thread's I/O class, or None where it cannot be read."""
    assert IOPRIO_GET.keys() == system._IOPRIO_SET.keys()
    number = IOPRIO_GET.get(platform.machine())
    if number is None:
        return None
    priority: int = ctypes.CDLL(None).syscall(number, *system._THIS_THREAD)
    return priority >> 13


RUN = """
import resource
from cometmq.runtime.process.system import open_files_limit
from cometmq.runtime.service import run

async def main(stop):
    print(open_files_limit(), *resource.getrlimit(resource.RLIMIT_NOFILE))

run(main)
"""


def test_a_service_may_open_as_many_files_as_the_hard_limit_allows():
    def limit():
        resource.setrlimit(resource.RLIMIT_NOFILE, (100, 200))

    done = subprocess.run(
        [sys.executable, "-c", RUN], preexec_fn=limit, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["200", "200", "200"]


@pytest.mark.parametrize("error", [OSError(1, "not permitted"), ValueError("not allowed")])
def test_a_limit_that_cannot_be_raised_stays_as_it_is(monkeypatch, error):
    def refuse(*_):
        raise error

    monkeypatch.setattr(resource, "getrlimit", lambda _: (64, 128))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    raise_open_files_limit()
    assert open_files_limit() == 64


def test_without_a_hard_limit_the_soft_limit_becomes_large(monkeypatch):
    limits = [(1024, resource.RLIM_INFINITY)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, both: limits.append(both))
    raise_open_files_limit()
    raise_open_files_limit()
    assert limits[1:] == [(1 << 20, resource.RLIM_INFINITY)]
    assert open_files_limit() == 1 << 20
    limits.append((resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert open_files_limit() == 1 << 20


@pytest.mark.parametrize(
    ("limit", "connections"),
    [(1 << 20, 20_000), (4_096, 4_096 - 512 - 512), (1_024, 128), (200, 25)],
)
def test_connections_leave_descriptors_for_all_other_files(monkeypatch, limit, connections):
    monkeypatch.setattr(system, "open_files_limit", lambda: limit)
    assert system.connections_within(20_000, files_max=512) == connections
    assert system.connections_within(10, files_max=512) == 10


RUN_LOWERED = """
import os, threading
from pathlib import Path
from cometmq.runtime.process.system import yield_processors

os.nice({niceness})
yield_processors()
found = []
thread = threading.Thread(target=lambda: found.append(os.getpriority(os.PRIO_PROCESS, 0)))
thread.start()
thread.join()
group = Path("/proc/self/autogroup")
print(found[0], *(group.read_text() if group.exists() else "").split()[-1:])
"""


def own_niceness():
    """Return the niceness of this process; a test that runs a program in it may have changed it."""
    return os.getpriority(os.PRIO_PROCESS, 0)


def lowered(*, niceness=0, is_service=True):
    """Run a program that lowers its priority; return the niceness of the process, then of its
    session.
    """
    done = subprocess.run(
        [sys.executable, "-c", RUN_LOWERED.format(niceness=niceness)],
        capture_output=True, text=True, check=True, start_new_session=is_service,
    )  # fmt: skip
    return done.stdout.split()


def test_a_service_yields_with_its_session():
    process, *session = lowered()
    assert int(process) == max(NICENESS, own_niceness())
    assert session in ([str(NICENESS)], [])  # not every kernel, nor every control group, has one


def test_the_session_of_a_terminal_is_left_alone():
    own = Path("/proc/self/autogroup")
    before = own.read_text() if own.exists() else ""
    process, *_ = lowered(is_service=False)
    assert int(process) == max(NICENESS, own_niceness())
    assert before == (own.read_text() if own.exists() else "")


def test_a_lower_priority_is_kept():
    assert int(lowered(niceness=12)[0]) == min(19, own_niceness() + 12)


@pytest.mark.parametrize("error", [PermissionError(1, "not permitted"), OSError(38, "no call")])
def test_a_sandbox_that_forbids_it_does_no_harm(monkeypatch, tmp_path, error):
    def refuse(*_):
        raise error

    monkeypatch.setattr(os, "setpriority", refuse)
    monkeypatch.setattr(os, "getsid", lambda _: os.getpid())
    for text in ("nonsense", "/autogroup-7 nice nonsense", "", None):
        group = tmp_path / "autogroup"
        group.unlink(missing_ok=True)
        if text is not None:
            group.write_text(text)
        monkeypatch.setattr(system, "_AUTOGROUP", group)
        yield_processors()
        assert text is None or group.read_text() == text
