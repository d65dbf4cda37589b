# SPDX-License-Identifier: Apache-2.0
"""Time as a parameter: the clock of the machine and one that tests move by hand."""

import time
from typing import Protocol


class Clock(Protocol):
    """Where a component gets its time from."""

    def now_ms(self) -> int:
        """Return the wall clock in milliseconds since 1970 (what goes into messages)."""
        ...

    def monotonic_ms(self) -> int:
        """Return a clock that never jumps, in milliseconds (for deadlines and durations)."""
        ...


class SystemClock:
    """The clock of the machine."""

    __slots__ = ()

    def now_ms(self) -> int:
        """Return the wall clock in milliseconds since 1970."""
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        """Return milliseconds that only grow; the origin means nothing."""
        return time.monotonic_ns() // 1_000_000


class FakeClock:
    """A clock that moves only when told, so that waits in tests cost nothing."""

    __slots__ = ("_monotonic_ms", "_now_ms")

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        """Start at a fixed instant: tests are the same every day."""
        self._now_ms = now_ms
        self._monotonic_ms = 0

    def now_ms(self) -> int:
        """Return the wall clock as set."""
        return self._now_ms

    def monotonic_ms(self) -> int:
        """Return the milliseconds passed since the start."""
        return self._monotonic_ms

    def advance(self, elapsed_ms: int) -> None:
        """Let time pass on both clocks."""
        assert elapsed_ms >= 0, "time does not run backwards; use jump()"
        self._now_ms += elapsed_ms
        self._monotonic_ms += elapsed_ms

    def jump(self, now_ms: int) -> None:
        """Set the wall clock alone, as an operator or NTP would."""
        self._now_ms = now_ms
