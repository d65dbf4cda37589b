# SPDX-License-Identifier: Apache-2.0
"""An in-memory record that can simulate any network fault; for simulators and tests."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from enum import Enum

from cometmq.ha.port import CONFLICT, UNKNOWN, Outcome, RecordUnreachable, applied
from cometmq.ha.record import Record, Versioned, may_replace

Delay = Callable[[], Awaitable[None]]


class Fault(Enum):
    """A fault to inject into one call."""

    UNREACHABLE = "unreachable"
    """The call does not arrive: reads fail, writes are answered with UNKNOWN."""
    LOSE_ANSWER = "lose answer"
    """A write is applied if its base is current, but answered with UNKNOWN; a read fails."""
    LAND_LATE = "land late"
    """A write is answered with UNKNOWN and kept until `land_late`; a read fails."""


async def no_delay() -> None:
    """Delay no call."""


class MemoryPlace:
    """A group's record, shared by the ports of all its users."""

    def __init__(self) -> None:
        self.current: Versioned | None = None
        self.late: deque[Callable[[], Outcome]] = deque()
        """Writes that were answered with UNKNOWN and may still be applied, oldest first."""
        self._writes = 0
        self._changed = asyncio.Event()

    def port(self, *, delay: Delay = no_delay) -> "MemoryRecord":
        """Return a port with its own faults; `delay` is awaited before and after each call."""
        return MemoryRecord(self, delay)

    def delete(self) -> None:
        """Remove the record, as an operator might; version numbers then start again."""
        self._set(None)
        self._writes = 0

    def land_late(self) -> Outcome:
        """Apply the oldest delayed write; return its outcome, which the writer never learns."""
        return self.late.popleft()()

    async def changed(self) -> None:
        """Wait until the record changes."""
        await self._changed.wait()

    def replace(self, base: Versioned, record: Record) -> Outcome:
        """Write `record` if it may replace the current one."""
        return self._write(record) if may_replace(self.current, base, record) else CONFLICT

    def create(self, record: Record) -> Outcome:
        """Write `record` if there is none yet."""
        return CONFLICT if self.current else self._write(record)

    def _write(self, record: Record) -> Outcome:
        self._writes += 1
        outcome = applied(record, str(self._writes))
        self._set(outcome.written)
        return outcome

    def _set(self, current: Versioned | None) -> None:
        self.current = current
        self._changed.set()
        self._changed = asyncio.Event()


class MemoryRecord:
    """One broker's or elector's view of a record in memory."""

    def __init__(self, place: MemoryPlace, delay: Delay) -> None:
        self.faults: deque[Fault | None] = deque()
        """Faults for the next calls, in order; None lets a call succeed."""
        self.is_cut_off = False
        """Whether every call of this port fails as with `Fault.UNREACHABLE`."""
        self.is_closed = False
        """Whether `close` has been called; calls still work."""
        self._place = place
        self._delay = delay

    async def read(self) -> Versioned | None:
        """Return the record; raise RecordUnreachable if a fault prevents the read."""
        await self._delay()
        fault = self._next_fault()
        found = self._place.current
        await self._delay()
        if fault:
            raise RecordUnreachable(f"the record in memory is out of reach: {fault.value}")
        return found

    async def replace(self, base: Versioned, record: Record) -> Outcome:
        """Replace the record if it still matches `base`, unless a fault prevents that."""
        return await self._write(lambda: self._place.replace(base, record))

    async def create(self, record: Record) -> Outcome:
        """Create the record, unless a fault prevents that."""
        return await self._write(lambda: self._place.create(record))

    async def watch(self) -> AsyncIterator[Versioned | None]:
        """Yield the record now and after each change that this port can see."""
        is_first, last = True, None
        while True:
            found = self._place.current
            if not self.is_cut_off and (is_first or found != last):
                is_first, last = False, found
                yield found
            else:
                await self._place.changed()

    async def close(self) -> None:
        """Note the call in `is_closed`."""
        self.is_closed = True

    async def _write(self, write: Callable[[], Outcome]) -> Outcome:
        await self._delay()
        outcome = UNKNOWN
        match self._next_fault():
            case Fault.UNREACHABLE:
                pass
            case Fault.LAND_LATE:
                self._place.late.append(write)
            case Fault.LOSE_ANSWER:
                write()
            case None:
                outcome = write()
        await self._delay()
        return outcome

    def _next_fault(self) -> Fault | None:
        if self.is_cut_off:
            return Fault.UNREACHABLE
        return self.faults.popleft() if self.faults else None
