# SPDX-License-Identifier: Apache-2.0
"""The memory of this process: its limit, and when freed memory is returned to the kernel.

The limit is the control group's limit or the machine's memory, whichever is smaller. RocketMQ sizes
its page-cache window by the *physical* memory, which is wrong in a container.
"""

import asyncio
import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

_TRIM_THRESHOLD: Final = -1  # parameters of mallopt(3)
_MMAP_THRESHOLD: Final = -3
MAPPED_BYTES_MIN: Final = 2 << 20
"""Larger buffers are mapped by themselves, so their memory is returned as soon as they are
freed.
"""
KEPT_BYTES_MAX: Final = 2 << 20
"""Free memory that each of glibc's heaps keeps at its end for the next buffers."""

_CGROUP_ROOT = Path("/sys/fs/cgroup")
_PROC_CGROUP = Path("/proc/self/cgroup")
_STATUS = Path("/proc/self/status")


def memory_limit_bytes(cgroup_root: Path = _CGROUP_ROOT, proc_cgroup: Path = _PROC_CGROUP) -> int:
    """Return the smallest limit of the process's control group and its ancestors, in bytes."""
    limits = [physical_bytes()]
    for line in _lines(proc_cgroup):
        hierarchy, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if hierarchy == "0":
            limits += _limits(cgroup_root, path, "memory.max")
        elif "memory" in controllers.split(","):
            limits += _limits(cgroup_root / "memory", path, "memory.limit_in_bytes")
    return min(limits)


class UsedMemory(NamedTuple):
    """The memory of this process that is in RAM, in bytes."""

    resident: int
    files: int
    """The part that is mapped files: programs and libraries."""
    peak: int


def used_memory(status: Path = _STATUS) -> UsedMemory | None:
    """Return the memory that this process uses; None if the system does not report it."""
    fields = dict(line.split(":", 1) for line in _lines(status) if ":" in line)
    try:
        resident, anonymous, peak = (
            int(fields[name].split()[0]) << 10 for name in ("VmRSS", "RssAnon", "VmHWM")
        )
    except (KeyError, ValueError, IndexError):
        return None
    return UsedMemory(resident, max(0, resident - anonymous), peak)


def return_freed_memory() -> None:
    """Set glibc's thresholds for returning freed memory; by default, they rise with each large
    buffer.

    With the default thresholds, every thread's heap could keep 40 MB once the 20 MB of slots of an
    index file had been freed, and a restarted slave kept 16 MB. Other C libraries are not affected.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, MAPPED_BYTES_MIN)
        mallopt(_TRIM_THRESHOLD, KEPT_BYTES_MAX)


def release_free_memory() -> None:
    """Return all free pages to the kernel, also those between buffers that are in use.

    Call it on a thread: for 150 MB it takes 25 ms, during which other threads may wait up to 10 ms
    for a large buffer.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def physical_bytes() -> int:
    """Return the machine's memory in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _limits(root: Path, group_path: str, file_name: str) -> list[int]:
    """Return the limits of a group and its ancestors; `max` and unreadable files are skipped."""
    group = root / group_path.lstrip("/")
    if ".." in group.parts or not group.is_dir():
        group = root  # in a container, the path may exist only on the host
    limits = []
    while True:
        text = "".join(_lines(group / file_name)).strip()
        if text.isdigit():
            limits.append(int(text))
        if group == root:
            return limits
        group = group.parent


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


CHECK_S: Final = 5.0
GROWTH_BYTES: Final = 16 << 20


def anonymous_bytes() -> int:
    """Return the memory of this process without mapped files; 0 if the system reports none."""
    used = used_memory()
    return 0 if used is None else used.resident - used.files


class FreedMemory:
    """Releases freed memory whenever the process has grown by GROWTH_BYTES and is quiet."""

    def __init__(
        self,
        is_quiet: Callable[[], bool] = lambda: True,
        *,
        used_bytes: Callable[[], int] = anonymous_bytes,
        release: Callable[[], None] = release_free_memory,
    ) -> None:
        """`is_quiet` returns whether no flood lasts: memory that is in use cannot be released, and
        would count as the size from which the process grows. `release` is called on a thread.
        """
        self._is_quiet = is_quiet
        self._used_bytes = used_bytes
        self._release = release
        self._least_bytes = used_bytes()

    async def check(self) -> None:
        """Release freed memory if the process has grown by GROWTH_BYTES since the last release."""
        used_bytes = self._used_bytes()
        if used_bytes > self._least_bytes + GROWTH_BYTES and self._is_quiet():
            await asyncio.to_thread(self._release)
            self._least_bytes = self._used_bytes()
        self._least_bytes = min(self._least_bytes, used_bytes)

    async def run(self) -> None:
        """Check at intervals."""
        while True:
            await asyncio.sleep(CHECK_S)
            await self.check()
