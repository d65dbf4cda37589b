# SPDX-License-Identifier: Apache-2.0
"""Reads a server's processor time, anonymous memory and disk usage from the kernel."""

import os
import resource
from pathlib import Path
from typing import Final

_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_BLOCK_BYTES: Final = 512
PRIORITY: Final = -10


def cpu_split(pid: int) -> tuple[float, float]:
    """Return the user and system time, in seconds, of all threads of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) / _TICKS_PER_S, int(fields[12]) / _TICKS_PER_S


def cpu_seconds(pid: int) -> float:
    """Return the processor time of all threads of a process since its start."""
    return sum(cpu_split(pid))


def machine_cpu_seconds() -> float:
    """Return the processor time that all programs and the kernel have used since boot."""
    fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    user, nice, system, _idle, _iowait, *interrupts = map(int, fields[:8])
    return (user + nice + system + sum(interrupts)) / _TICKS_PER_S


def children_cpu_seconds() -> float:
    """Return the processor time of this program's children that have exited."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def prefer(pid: int) -> None:
    """Give a process and its session priority over other programs; requires root."""
    os.setpriority(os.PRIO_PROCESS, pid, PRIORITY)
    group = Path(f"/proc/{pid}/autogroup")
    if group.exists():  # with autogroup scheduling, only the session's priority counts
        group.write_text(str(PRIORITY), encoding="utf-8")


def anonymous_bytes(pid: int) -> int:
    """Return the resident anonymous memory (heap, stacks, buffers), without mapped files.

    The kernel keeps this count. For smaps_rollup it walks all pages instead, which keeps a CPU
    from all other programs for milliseconds.
    """
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/{pid}/status names no anonymous memory")


def drop_cached_pages(directory: Path) -> None:
    """Drop the clean pages of all files under a directory from the page cache.

    Writes then get memory that was in use a moment ago. A virtual machine may have given the rest
    of its free memory back to the host, and each such page costs many times as much as the write.
    """
    os.sync()  # only clean pages can be dropped
    for path in directory.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def disk_bytes(directory: Path) -> int:
    """Return the bytes allocated to all files under a directory; holes are not counted."""
    return sum(
        path.stat().st_blocks * _BLOCK_BYTES for path in directory.rglob("*") if path.is_file()
    )
