# SPDX-License-Identifier: Apache-2.0
"""Files to which a backup or a restore appends lines; one process at a time writes a file."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cometmq.client.errors import ClientError


class Lines:
    """Appends lines to a file.

    A write that fails or is killed may leave an incomplete last line. Readers ignore it, and the
    next line replaces it.
    """

    def __init__(self, path: Path, size: int) -> None:
        """`size` is the number of bytes in complete lines; 0 replaces the file."""
        self.path = path
        self.size = size

    def append(self, line: bytes, *, is_synced: bool = True) -> None:
        """Append a line; raise OSError if it could not be written completely."""
        with self.path.open("r+b" if self.size else "wb") as file:
            file.truncate(self.size)
            file.seek(self.size)
            file.write(line)
            file.flush()
            if is_synced:
                os.fsync(file.fileno())
        self.size += len(line)


@contextmanager
def claimed(path: Path, purpose: str) -> Iterator[int]:
    """Lock a file, which is created if it is missing; yield its descriptor.

    Raise ClientError if another process has locked it for the same purpose, and OSError if it
    cannot be written. On a file system without locks, every process gets the lock.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ClientError(
                f"{path} is in use by another {purpose}: wait until it ends"
            ) from error
        except OSError:  # a file system without locks
            pass
        yield descriptor
    finally:
        os.close(descriptor)
