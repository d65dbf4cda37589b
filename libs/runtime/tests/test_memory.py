# SPDX-License-Identifier: Apache-2.0
"""The limit is the minimum of the machine's memory and all enclosing control groups' limits. Freed
memory returns to the kernel.
"""

import subprocess
import sys

from cometmq.runtime.process.memory import (
    KEPT_BYTES_MAX,
    FreedMemory,
    memory_limit_bytes,
    physical_bytes,
    used_memory,
)

USE_AND_FREE = """
from pathlib import Path
from cometmq.runtime.service import run
from cometmq.runtime.worker import Worker

def anonymous_bytes():
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("Anonymous:"))

def use_and_free():
    large = b"x" * (20 << 20)  # glibc's thresholds follow the largest buffer
    del large
    small = [b"x" * (900 << 10) for _ in range(16)]

async def main(stop):
    worker = Worker("worker")
    await worker.submit(int)
    before = anonymous_bytes()
    await worker.submit(use_and_free)
    print(anonymous_bytes() - before)
    worker.close()

raise SystemExit(run(main))
"""


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_without_groups_the_limit_is_physical_memory(tmp_path):
    assert memory_limit_bytes(tmp_path, tmp_path / "none") == physical_bytes()


def test_version_2_takes_the_smallest_limit_up_to_the_root(tmp_path):
    proc = write(tmp_path / "cgroup", "0::/pod/broker\n")
    root = tmp_path / "fs"
    write(root / "pod/broker/memory.max", "max\n")
    write(root / "pod/memory.max", "1000000\n")
    assert memory_limit_bytes(root, proc) == 1_000_000


def test_version_2_in_a_container_sees_only_its_own_root(tmp_path):
    proc = write(tmp_path / "cgroup", "0::/kubepods/pod1/abc\n")
    write(tmp_path / "fs/memory.max", "524288\n")
    assert memory_limit_bytes(tmp_path / "fs", proc) == 524288


def test_version_1_reads_the_memory_controller(tmp_path):
    proc = write(tmp_path / "cgroup", "5:cpu,cpuacct:/x\n4:memory:/docker/a\n")
    write(tmp_path / "fs/memory/docker/a/memory.limit_in_bytes", "4096\n")
    write(tmp_path / "fs/memory/memory.limit_in_bytes", "9223372036854771712\n")
    assert memory_limit_bytes(tmp_path / "fs", proc) == 4096


def test_a_path_that_leads_out_of_the_root_is_not_followed(tmp_path):
    proc = write(tmp_path / "cgroup", "0::/../..\n")
    write(tmp_path / "fs/memory.max", "8192\n")
    assert memory_limit_bytes(tmp_path / "fs", proc) == 8192


def test_a_program_returns_the_memory_that_a_thread_has_freed():
    words = [sys.executable, "-c", USE_AND_FREE]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 2 * KEPT_BYTES_MAX


def test_used_memory_is_told_by_the_system(tmp_path):
    used = used_memory()
    assert used is not None
    assert 0 < used.files < used.resident <= used.peak < physical_bytes()
    status = write(tmp_path / "status", "VmHWM:  9 kB\nVmRSS:  7 kB\nRssAnon:  5 kB\n")
    assert used_memory(status) == (7 << 10, 2 << 10, 9 << 10)
    assert used_memory(tmp_path / "missing") is None
    assert used_memory(write(status, "VmRSS:\n")) is None


async def test_memory_is_released_after_each_growth() -> None:
    used = [100 << 20]
    released: list[int] = []

    def release() -> None:
        released.append(used[0])
        used[0] -= 10 << 20

    memory = FreedMemory(used_bytes=lambda: used[0], release=release)
    for size, expected in ((116, []), (117, [117]), (123, [117]), (124, [117, 124]), (90, None),
                           (107, [117, 124, 107])):  # fmt: skip
        used[0] = size << 20
        await memory.check()
        assert expected is None or [one >> 20 for one in released] == expected


async def test_memory_is_released_once_a_flood_has_ended() -> None:
    used, floods = [100 << 20], [True]
    memory = FreedMemory(
        lambda: not floods[0],
        used_bytes=lambda: used[0],
        release=lambda: used.append(used.pop() - (60 << 20)),
    )
    used[0] = 180 << 20
    await memory.check()
    assert used[0] >> 20 == 180
    floods[0] = False
    await memory.check()
    assert used[0] >> 20 == 120
