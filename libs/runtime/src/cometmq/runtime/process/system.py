# SPDX-License-Identifier: Apache-2.0
"""What a process asks of the kernel: the boot id, open files, priority of disk and processors."""

import os
import platform
import re
import resource
from contextlib import suppress
from pathlib import Path
from typing import Final

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_IOPRIO_SET: Final = {"x86_64": 251, "aarch64": 30}  # system call numbers
_THIS_THREAD: Final = (1, 0)  # IOPRIO_WHO_PROCESS, 0 for the calling thread
_IDLE_CLASS: Final = 3 << 13


def boot_id() -> str:
    """Return an id that changes when the host reboots; an empty string if it is unknown."""
    try:
        return _BOOT_ID.read_text("ascii").strip()
    except (OSError, ValueError):
        return ""


def use_idle_io() -> bool:
    """Give the calling thread the lowest disk priority; return whether the kernel accepted it.

    The I/O schedulers bfq and mq-deadline honour the priority; with `none` it has no effect.
    """
    number = _IOPRIO_SET.get(platform.machine())
    if number is None or os.uname().sysname != "Linux":
        return False
    import ctypes  # noqa: PLC0415  # 0.2 MiB that most programs do not need

    result: int = ctypes.CDLL(None).syscall(number, *_THIS_THREAD, _IDLE_CLASS)
    return result == 0


_LIMIT_MAX: Final = 1 << 20
"""Used if the system sets no limit; the kernel's default limit for a process (fs.nr_open)."""

RESERVED_FILES: Final = 512
"""Number of files kept for other uses: listeners, HTTP connections, connections to other servers,
and files of tables and logs.
"""


def raise_open_files_limit() -> None:
    """Raise the soft limit of open files to the hard limit, as Java does.

    Shells and systemd set a soft limit of 1024 for programs that use `select`; it would be lower
    than a server's limit of connections.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _LIMIT_MAX if hard == resource.RLIM_INFINITY else hard
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):
        return  # a sandbox may forbid it; the limit stays as it is


def open_files_limit() -> int:
    """Return how many files and connections this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _LIMIT_MAX if soft == resource.RLIM_INFINITY else soft


def connections_within(wanted: int, *, files_max: int = 0) -> int:
    """Return how many of the wanted connections a server may accept, so that it can always open its
    other files: `files_max` files of a store, and RESERVED_FILES.

    If the system's limit is very low, an eighth of it is still used for connections.
    """
    limit = open_files_limit()
    return max(1, min(wanted, max(limit // 8, limit - files_max - RESERVED_FILES)))


NICENESS: Final = 5
"""The niceness that was measured as best, on two processors that a broker and its load generator
fill, while a browser loads pages of 1,000 topics and 2,000 groups in a row. With 5, the broker
stores 12 % more than with 0, and a page takes 0.14 s instead of 0.05. With 10, it stores 17 % more,
but a page takes 0.4 s, and some take 4 s.
"""
_AUTOGROUP: Final = Path("/proc/self/autogroup")
_AUTOGROUP_NICENESS: Final = re.compile("-?[0-9]+$", re.MULTILINE)
"""Finds the niceness in the file; the file is empty if the session's control group sets its
share.
"""


def yield_processors() -> None:
    """Lower the priority of this process, and of all threads that it starts from now on.

    A priority that is already lower is kept. With autogroup scheduling, Linux first compares
    sessions: the session of a service is lowered, too, but not that of a terminal, which has other
    programs.
    """
    with suppress(OSError):  # a sandbox may forbid it
        os.setpriority(
            os.PRIO_PROCESS, 0, max(NICENESS, os.getpriority(os.PRIO_PROCESS, os.getpid()))
        )
    if os.getsid(0) != os.getpid():
        return
    with suppress(OSError):  # not with every kernel
        found = _AUTOGROUP_NICENESS.search(_AUTOGROUP.read_text("ascii"))
        if found and int(found[0]) < NICENESS:
            _AUTOGROUP.write_text(str(NICENESS), "ascii")
