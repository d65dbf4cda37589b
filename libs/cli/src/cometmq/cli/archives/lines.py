# SPDX-License-Identifier: Apache-2.0
"""The files of a backup, which may come from a stranger; one process at a time writes a file.

A link in the folder could lead a write to any file of the user, and a pipe or a device has no end.
"""

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from cometmq.client.errors import ClientError, InvalidArgument


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
        flags = os.O_RDWR if self.size else os.O_RDWR | os.O_CREAT
        with os.fdopen(_unlinked(self.path, flags), "r+b") as file:
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
    descriptor = _unlinked(path, os.O_RDWR | os.O_CREAT)
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


def opened(path: Path) -> BinaryIO:
    """Open a file for reading; raise InvalidArgument if it is a pipe or a device."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise InvalidArgument(f"{path} cannot be read: it is no regular file")
    return os.fdopen(descriptor, "rb")


def _unlinked(path: Path, flags: int) -> int:
    """Return the descriptor of a file to write; raise OSError if it is a symbolic link."""
    try:
        return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(error.errno, "it is a symbolic link") from error
        raise
