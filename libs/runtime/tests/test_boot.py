# SPDX-License-Identifier: Apache-2.0
import ctypes
import platform
from pathlib import Path

import pytest

from cometmq.runtime.process import system
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
