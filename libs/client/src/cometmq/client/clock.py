# SPDX-License-Identifier: Apache-2.0
"""The clocks of clients, as functions that pure modules take as parameters."""

import time
from collections.abc import Callable
from typing import TypeAlias

ClockMs: TypeAlias = Callable[[], int]


def wall_ms() -> int:
    """Return the wall clock in milliseconds since 1970, as stored in messages."""
    return time.time_ns() // 1_000_000


def monotonic_ms() -> int:
    """Return monotonic milliseconds, for deadlines and durations."""
    return time.monotonic_ns() // 1_000_000
