# SPDX-License-Identifier: Apache-2.0
"""Notices when two processes use one file: RocketMQ's offset files have no owner.

The lock is a file of its own, because saves replace the offset file. Java clients take no lock, so
only processes with this client are noticed.
"""

import contextlib
import fcntl
import os
from pathlib import Path


class FileClaim:
    """An advisory lock beside a file, held until `release` or the end of the process."""

    def __init__(self, path: Path) -> None:
        """Nothing is locked yet; the lock is `path` with `.lock` appended."""
        self._lock_path = path.with_name(path.name + ".lock")
        self._descriptor: int | None = None

    def take(self) -> str:
        """Lock, and return ""; return the process id of the owner if another one has the lock.

        Raise OSError if there can be no lock here.
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
            raise
        self._descriptor = descriptor
        os.ftruncate(descriptor, 0)
        os.write(descriptor, b"%d\n" % os.getpid())
        return ""

    def release(self) -> None:
        """Unlock; the empty file stays, as removing it would race with the next owner."""
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, 0)
            os.close(descriptor)
