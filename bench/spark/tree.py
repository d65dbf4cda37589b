# SPDX-License-Identifier: Apache-2.0
"""Measure the memory and processor time of this process and its descendants."""

import os
import threading
from pathlib import Path
from types import TracebackType
from typing import Final, Self

INTERVAL_S: Final = 0.5
_PROC: Final = Path("/proc")
_TICKS: Final = os.sysconf("SC_CLK_TCK")


class Tree:
    """Samples the memory of the process tree twice a second, and keeps the peak."""

    def __init__(self) -> None:
        self.peak_bytes = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(INTERVAL_S):
            self.peak_bytes = max(self.peak_bytes, sum(map(_memory_bytes, descendants())))


def cpu_seconds() -> float:
    """Return the total processor time of this process and its running descendants."""
    return sum(map(_cpu_ticks, descendants())) / _TICKS


def descendants() -> list[int]:
    """Return the ids of this process and its descendants."""
    parents = {
        int(path.name): int(stat[1])
        for path in _PROC.iterdir()
        if path.name.isdecimal() and (stat := _stat(int(path.name)))
    }
    found = [os.getpid()]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def _memory_bytes(pid: int) -> int:
    """Return the proportional set size, which divides shared memory among its users."""
    try:
        lines = (_PROC / str(pid) / "smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0  # the process has exited
    return next((int(it.split()[1]) * 1024 for it in lines if it.startswith("Pss:")), 0)


def _cpu_ticks(pid: int) -> int:
    stat = _stat(pid)
    return int(stat[11]) + int(stat[12]) if stat else 0


def _stat(pid: int) -> list[str]:
    """Return the fields of `stat` after the name, or an empty list if the process has exited."""
    try:
        return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []
