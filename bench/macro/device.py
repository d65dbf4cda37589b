# SPDX-License-Identifier: Apache-2.0
"""Measures the disk: how many syncs per second it allows, which bounds a lone sender of a server
that syncs before each answer.
"""

import os
import time
from pathlib import Path
from typing import Final

FILE_BYTES: Final = 1 << 30  # sparse, as the files of both servers' logs
PAGE_BYTES: Final = 4_096
SECONDS: Final = 1.0


def syncs_per_s(directory: Path, seconds: float = SECONDS) -> float:
    """Write one page after the other to a new file, and sync each; return the pages per second."""
    path = directory / "syncs"
    descriptor = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(descriptor, FILE_BYTES)
        os.fsync(descriptor)
        page = b"x" * PAGE_BYTES
        count, began_s = 0, time.monotonic()
        while (elapsed_s := time.monotonic() - began_s) < seconds and count < FILE_BYTES // len(
            page
        ):
            os.pwrite(descriptor, page, count * PAGE_BYTES)
            os.fdatasync(descriptor)
            count += 1
        return count / elapsed_s
    finally:
        os.close(descriptor)
        path.unlink()
