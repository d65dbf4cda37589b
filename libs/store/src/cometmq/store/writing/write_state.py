# SPDX-License-Identifier: Apache-2.0
"""Decide whether the store accepts writes; if it does not, give the reasons."""

from enum import StrEnum

from cometmq.store.results import PutStatus
from cometmq.store.writing.append import Appender


class Refusal(StrEnum):
    """A reason to refuse writes."""

    CLOSED = "closed"
    ROLE = "role"  # the broker is a slave, or fenced
    TOO_FEW_COPIES = "too-few-copies"  # too few copies of a broker group are in sync
    DISK_FULL = "disk-full"  # the usage is above the warning level
    LOG_WRITE_FAILED = "log-write-failed"  # holds until a write succeeds
    QUEUE_WRITE_FAILED = "queue-write-failed"  # holds until a checkpoint succeeds
    UNCONFIRMED = "unconfirmed"  # the replicas are too far behind
    SYNC_FAILED = "sync-failed"  # holds until a restart: the content of the disk is unknown


class WriteState:
    """The current reasons to refuse writes."""

    __slots__ = ("_appender", "_refusals")

    def __init__(self, appender: Appender) -> None:
        self._appender = appender
        self._refusals: set[Refusal] = set()

    @property
    def refusals(self) -> frozenset[Refusal]:
        """All current reasons."""
        return frozenset(self._refusals)

    @property
    def is_writable(self) -> bool:
        """Whether puts are accepted."""
        return not self._refusals

    @property
    def role_writable(self) -> bool:
        """Whether the broker's role allows it to accept messages."""
        return Refusal.ROLE not in self._refusals

    @role_writable.setter
    def role_writable(self, value: bool) -> None:
        self.set(Refusal.ROLE, holds=not value)

    def has(self, refusal: Refusal) -> bool:
        """Return whether this reason currently applies."""
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
