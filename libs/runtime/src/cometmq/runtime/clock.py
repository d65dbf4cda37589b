# SPDX-License-Identifier: Apache-2.0
"""Time as a parameter: the system clock, and a fake clock that tests advance."""

import time
from typing import Protocol


class Clock(Protocol):
    """A component's source of time."""

    def now_ms(self) -> int:
        """Return the wall-clock time in milliseconds since 1970, as stored in messages."""
        ...

    def monotonic_ms(self) -> int:
        """Return a time in milliseconds that never jumps, for deadlines and durations."""
        ...


class SystemClock:
    """The operating system's clock."""

    __slots__ = ()

    def now_ms(self) -> int:
        """Return the wall-clock time in milliseconds since 1970."""
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        """Return milliseconds since an arbitrary origin; they never decrease."""
        return time.monotonic_ns() // 1_000_000


def boottime_ms() -> int:
    """Return the milliseconds since the host started, including the time it was suspended.

    Leases are measured with this clock, because a process may resume long after its lease has
    expired.
    """
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


class FakeClock:
    """A clock that moves only when a test advances it, so waits take no real time."""

    __slots__ = ("_monotonic_ms", "_now_ms")

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._monotonic_ms = 0

    def now_ms(self) -> int:
        """Return the wall-clock time that the test has set."""
        return self._now_ms

    def monotonic_ms(self) -> int:
        """Return the total number of milliseconds by which `advance` has moved the clock."""
        return self._monotonic_ms

    def advance(self, elapsed_ms: int) -> None:
        """Move both clocks forward."""
        assert elapsed_ms >= 0, "time does not run backwards; use jump()"
        self._now_ms += elapsed_ms
        self._monotonic_ms += elapsed_ms

    def jump(self, now_ms: int) -> None:
        """Set only the wall clock, as an operator or NTP would."""
        self._now_ms = now_ms
