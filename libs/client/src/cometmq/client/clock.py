# SPDX-License-Identifier: Apache-2.0
"""The clocks of clients, as functions that pure modules take as parameters."""

import time
from collections.abc import Callable
from typing import TypeAlias

import msgspec

ClockMs: TypeAlias = Callable[[], int]


def wall_ms() -> int:
    """Return the wall clock in milliseconds since 1970, as stored in messages."""
    return time.time_ns() // 1_000_000


def monotonic_ms() -> int:
    """Return monotonic milliseconds, for deadlines and durations."""
    return time.monotonic_ns() // 1_000_000


class TimeLimit(msgspec.Struct, frozen=True, gc=False):
    """A timeout and the time at which it starts."""

    timeout_ms: int
    begin_ms: int

    @classmethod
    def from_now(cls, timeout_ms: int) -> "TimeLimit":
        """Return a limit that begins now."""
        return cls(timeout_ms, monotonic_ms())

    def elapsed_ms(self) -> int:
        """Return the elapsed time."""
        return monotonic_ms() - self.begin_ms

    def left_ms(self) -> int:
        """Return the remaining time, at least 0."""
        return max(0, self.begin_ms + self.timeout_ms - monotonic_ms())
