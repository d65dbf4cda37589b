# SPDX-License-Identifier: Apache-2.0
"""Store errors, grouped by the phase in which they occur.

Opening a store raises LockHeld, ForeignStore, CorruptStore or DiskError. A running store handles
DiskErrors itself: callers get a status, and the store refuses writes.
"""

import errno as numbers

from cometmq.remoting.errors import CorruptRecord, LockHeld, StoreError

__all__ = ["CorruptRecord", "CorruptStore", "DiskError", "ForeignStore", "LockHeld", "StoreError"]


class DiskError(StoreError):
    """An operation on a file failed."""

    def __init__(self, operation: str, path: str, number: int) -> None:
        name = numbers.errorcode.get(number, str(number))
        super().__init__(f"cannot {operation} {path}: {name}")
        self.operation = operation
        self.path = path
        self.errno = number

    @property
    def is_space_missing(self) -> bool:
        """Whether the disk is full, so the operation may succeed after files have been deleted."""
        return self.errno in {numbers.ENOSPC, numbers.EDQUOT}

    @property
    def is_open_refused(self) -> bool:
        """Whether the file could not be opened because too many are open, or memory is short.

        Nothing was written or synced, and nothing is lost: the operation may be repeated.
        """
        return self.errno in {numbers.EMFILE, numbers.ENFILE, numbers.ENOMEM}


class ForeignStore(StoreError):
    """The folder has content of RocketMQ 5 that is not read here."""


class CorruptStore(StoreError):
    """The files contradict each other; opening the store would lose or misplace messages."""
