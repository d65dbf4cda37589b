# SPDX-License-Identifier: Apache-2.0
"""Time as a parameter: what a clock is, and the clock of the system."""

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
