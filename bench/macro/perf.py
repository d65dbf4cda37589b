# SPDX-License-Identifier: Apache-2.0
"""Divides a process's time between system calls, the interpreter and libraries, by Linux's `perf`.

A sampler in Python sees a system call or a native function as the Python line that calls it; `perf`
also sees what that line does.
"""

import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from macro.native import BenchError

SAMPLES_PER_S: Final = 1_999  # not a divisor of any periodic work
LIBRARIES: Final = (
    ("python", "Python interpreter"),
    ("libpython", "Python interpreter"),
    ("_native", "cometmq-accel"),
    ("loop.", "uvloop"),
    ("libc.", "libc"),
)
"""Prefixes of the names of files, each with its part in the table."""
_SYSTEM_CALL: Final = "do_syscall_64"
_KERNEL: Final = "[kernel.kallsyms]"


@contextmanager
def recording(pids: Sequence[int], paths: Sequence[Path]) -> Iterator[None]:
    """Record the stacks of processes, each into its file."""
    if shutil.which("perf") is None:
        raise BenchError("there is no `perf`: install it (Debian: apt-get install linux-perf)")
    command = ["perf", "record", "-q", "-e", "cpu-clock", "-F", str(SAMPLES_PER_S), "-g"]
    recorders = [
        subprocess.Popen([*command, "-p", str(pid), "-o", str(path)])
        for pid, path in zip(pids, paths, strict=True)
    ]
    try:
        yield
    finally:
        for recorder in recorders:
            recorder.terminate()
            recorder.wait()


def read_samples(path: Path) -> Counter[str]:
    """Return the number of samples of each part of a recorded process."""
    command = ["perf", "script", "-i", str(path), "-F", "pid,tid,ip,sym,dso"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    if found.returncode:
        raise BenchError(f"perf cannot read {path}: {found.stderr.strip()}")
    return count_samples(found.stdout)


def count_samples(script: str) -> Counter[str]:
    """Return the number of samples of each part, from the output of `perf script`."""
    parts: Counter[str] = Counter()
    for sample in script.split("\n\n"):
        head, *frames = sample.strip("\n").splitlines() or [""]
        pid, _, tid = head.strip().partition("/")
        if frames:
            is_loop = pid == tid.split()[0]
            parts[("" if is_loop else "threads: ") + _part(frames)] += 1
    return parts


def _part(frames: Sequence[str]) -> str:
    """Return the part of the table to which the innermost frame belongs."""
    names = [frame.split()[1].partition("+")[0] for frame in frames]
    file = frames[0].rpartition("(")[2].rstrip(")")
    if file == _KERNEL:
        if _SYSTEM_CALL not in names:
            is_fault = "asm_exc_page_fault" in names
            return "kernel: page faults" if is_fault else "kernel: interrupts"
        call = names[max(0, names.index(_SYSTEM_CALL) - 1)]
        for prefix in ("__x64_sys_", "__sys_", "ksys_", "do_"):
            call = call.removeprefix(prefix)
        return f"kernel: {call}"
    name = Path(file).name
    return next((title for start, title in LIBRARIES if name.startswith(start)), name)
