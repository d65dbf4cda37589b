# SPDX-License-Identifier: Apache-2.0
"""Kernel features that the standard library does not expose: the boot id and idle I/O priority."""

import os
import platform
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
