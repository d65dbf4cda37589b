# SPDX-License-Identifier: Apache-2.0
"""Detects two processes that use the same offset file; RocketMQ does not prevent this.

The lock is a separate file, because each save replaces the offset file. Java clients take no lock,
so only processes that use this client are detected.
"""

import contextlib
import fcntl
import os
from pathlib import Path


class FileClaim:
    """An advisory lock beside a file, held until `release` or the end of the process."""

    def __init__(self, path: Path) -> None:
        """Prepare to lock `path` with `.lock` appended; nothing is locked yet."""
        self._lock_path = path.with_name(path.name + ".lock")
        self._descriptor: int | None = None

    def take(self) -> str:
        """Take the lock and return ""; if another process holds it, return that process's id.

        A file system without locking grants it to every process. Raise OSError if the file cannot
        be created.
        """
        self._lock_path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(descriptor, 32).decode("ascii", "replace").strip()
            os.close(descriptor)
            return owner or "unknown"
        except OSError:
            os.close(descriptor)
            return ""
        self._descriptor = descriptor
        with contextlib.suppress(OSError):  # a full disk: only the id is missing
            os.ftruncate(descriptor, 0)
            os.write(descriptor, b"%d\n" % os.getpid())
        return ""

    def release(self) -> None:
        """Unlock; the empty file is kept, because removing it would race with the next owner."""
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, 0)
            os.close(descriptor)
