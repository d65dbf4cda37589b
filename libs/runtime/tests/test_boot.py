# SPDX-License-Identifier: Apache-2.0
import ctypes
import platform
from pathlib import Path

import pytest

from cometmq.runtime import boot
from cometmq.runtime.worker import Worker


def test_the_boot_id_is_the_kernels():
    assert boot.boot_id() == Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()


def test_an_unknown_boot_has_no_id(monkeypatch, tmp_path):
    monkeypatch.setattr(boot, "_BOOT_ID", tmp_path / "missing")
    assert boot.boot_id() == ""


async def test_the_disk_serves_a_worker_after_all_others():
    if platform.machine() not in boot._IOPRIO_SET:
        pytest.skip("the number of the system call is unknown here")
    worker = Worker("patient", has_idle_io=True)
    assert await worker.submit(io_class) == 3
    worker.close()
    assert io_class() != 3


def io_class() -> int:
    """Return the class of I/O of the calling thread."""
    get = {"x86_64": 252, "aarch64": 31}[platform.machine()]
    priority: int = ctypes.CDLL(None).syscall(get, *boot._THIS_THREAD)
    return priority >> 13
