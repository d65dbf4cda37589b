# SPDX-License-Identifier: Apache-2.0
"""The interface of a backend that stores a consensus record: read, replace, create, watch.

The broker, which drives `cometmq.ha.member`, reads and replaces records. The elector also creates
them. The Kubernetes operator reads, replaces and creates records in a Lease. The implementations
are in `cometmq.ha.places`; all of them pass the same tests (`cometmq.testing.ha.port_contract`).
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from enum import Enum
from typing import Protocol

import msgspec

from cometmq.ha.record import Record, Versioned
from cometmq.remoting.errors import CometError


class RecordUnreachable(CometError):
    """The record could not be read; its current state is unknown."""


class Answer(Enum):
    """The outcome of a write from the caller's point of view."""

    APPLIED = "applied"
    """The write is in the record."""
    CONFLICT = "conflict"
    """The write is not in the record and never will be: another write came first."""
    UNKNOWN = "unknown"
    """The write may be applied, now or later, or never. Read and decide again; the version on which
    it was based settles nothing (R1).
    """


class Outcome(msgspec.Struct, frozen=True):
    """The answer to a write; if it was applied, `written` is the record with its new version."""

    answer: Answer
    written: Versioned | None = None
    reason: str = ""
    """Why the outcome is unknown, for operators; empty if the backend gives no reason."""


CONFLICT = Outcome(Answer.CONFLICT)
UNKNOWN = Outcome(Answer.UNKNOWN)


def applied(record: Record, version: str) -> Outcome:
    """Return the outcome of a write that has been applied."""
    return Outcome(Answer.APPLIED, Versioned(record, version))


def unknown(reason: str) -> Outcome:
    """Return the outcome of an unanswered write."""
    return Outcome(Answer.UNKNOWN, reason=reason)


class RecordPort(Protocol):
    """One broker group's record. Calls may overlap; each is linearizable."""

    async def read(self) -> Versioned | None:
        """Return the latest record, as of this call, or None; raise RecordUnreachable."""

    async def replace(self, base: Versioned, record: Record) -> Outcome:
        """Write `record` if the current version and uid still match `base`.

        UNKNOWN may be answered even if the write certainly did not happen.
        """

    async def create(self, record: Record) -> Outcome:
        """Write the first record if there is none. Only the elector calls this (R10)."""

    def watch(self) -> AsyncIterator[Versioned | None]:
        """Yield the record now and after changes, which may be merged; nothing while unreachable.

        It may be outdated: a reason to read, never a reason to become master.
        """

    async def close(self) -> None:
        """Close the connections kept for later calls, when no call is in progress."""


Read = Callable[[], Awaitable[Versioned | None]]
Sleep = Callable[[float], Awaitable[None]]


async def poll(read: Read, *, sleep: Sleep, interval_ms: int) -> AsyncIterator[Versioned | None]:
    """Yield the record now and whenever a read returns a new version."""
    is_first, last = True, None
    while True:
        try:
            found = await read()
        except RecordUnreachable:
            await sleep(interval_ms / 1000)
            continue
        if is_first or found != last:
            is_first, last = False, found
            yield found
        await sleep(interval_ms / 1000)
