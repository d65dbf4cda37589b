# SPDX-License-Identifier: Apache-2.0
"""Run a Python program under a sampling profiler with negligible overhead.

    python sampler.py OUT.json PROGRAM ARGUMENT...

The kernel sends SIGPROF every few milliseconds of processor time, and the handler records the line
that is running. Time inside C functions and system calls is charged to the Python line that called
them. Unlike tracing, sampling does not distort the proportions. The processor time of worker
threads is charged to the main thread, whose line the handler records. SIGUSR1 clears the counts.
"""

import json
import runpy
import signal
import sys
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Final

INTERVAL_S: Final = 0.001  # the kernel rounds it up to its own tick

_lines: Final[Counter[tuple[CodeType, int]]] = Counter()


def note(_signal: int, frame: FrameType | None) -> None:
    """Count the line that the signal interrupted."""
    if frame is not None:
        _lines[frame.f_code, frame.f_lineno] += 1


def forget(_signal: int, _frame: FrameType | None) -> None:
    """Clear the counts, to exclude startup and preparation."""
    _lines.clear()


def write(path: Path) -> None:
    """Write the counts as a JSON list of [file, function, line, samples]."""
    rows = [
        (code.co_filename, code.co_qualname, line, count)
        for (code, line), count in _lines.most_common()
    ]
    path.write_text(json.dumps(rows), encoding="utf-8")


def main() -> None:
    out, program = Path(sys.argv[1]), sys.argv[2]
    sys.argv = sys.argv[2:]
    signal.signal(signal.SIGPROF, note)
    signal.signal(signal.SIGUSR1, forget)
    signal.setitimer(signal.ITIMER_PROF, INTERVAL_S, INTERVAL_S)
    try:
        runpy.run_path(program, run_name="__main__")
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        write(out)


if __name__ == "__main__":
    main()
