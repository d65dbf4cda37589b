# SPDX-License-Identifier: Apache-2.0
"""Whether the store takes writes, and if not, why: the one place that decides."""

from enum import StrEnum

from cometmq.store.append import Appender
from cometmq.store.results import PutStatus


class Refusal(StrEnum):
    """A reason not to take writes."""

    CLOSED = "closed"
    ROLE = "role"  # a slave, or fenced
    DISK_FULL = "disk-full"  # above the warning level
    LOG_WRITE_FAILED = "log-write-failed"  # until a write succeeds again
    QUEUE_WRITE_FAILED = "queue-write-failed"  # until a checkpoint succeeds again
    SYNC_FAILED = "sync-failed"  # until a restart: nobody knows what the disk has


class WriteState:
    """The reasons that hold now."""

    __slots__ = ("_appender", "_refusals")

    def __init__(self, appender: Appender) -> None:
        """Begin without a reason to refuse."""
        self._appender = appender
        self._refusals: set[Refusal] = set()

    @property
    def refusals(self) -> frozenset[Refusal]:
        """All reasons."""
        return frozenset(self._refusals)

    @property
    def is_writable(self) -> bool:
        """Whether puts are taken."""
        return not self._refusals

    def has(self, refusal: Refusal) -> bool:
        """Whether this reason holds."""
        return refusal in self._refusals

    def set(self, refusal: Refusal, *, holds: bool) -> bool:
        """Add or remove a reason; return whether that changed anything."""
        if holds == (refusal in self._refusals):
            return False
        if holds:
            self._refusals.add(refusal)
        else:
            self._refusals.discard(refusal)
        self._appender.refusal = PutStatus.SERVICE_NOT_AVAILABLE if self._refusals else None
        return True
