# SPDX-License-Identifier: Apache-2.0
"""A limit on bytes per second (pure)."""

from typing import Final

BURST_MS: Final = 100
"""The burst allowed after a pause, given as the time that it takes to send at the full rate."""


class RateLimit:
    """A token bucket; a rate of 0 means no limit."""

    __slots__ = ("_bytes_left", "_last_ms")

    def __init__(self) -> None:
        self._bytes_left = 0.0
        self._last_ms: int | None = None

    def wait_ms(self, now_ms: int, bytes_per_s: int) -> int:
        """Return how long to wait before sending the next bytes; 0 if they may be sent now."""
        if not bytes_per_s:
            return 0
        burst = bytes_per_s * BURST_MS / 1000
        last_ms = now_ms - BURST_MS if self._last_ms is None else self._last_ms
        self._bytes_left += bytes_per_s * (now_ms - last_ms) / 1000
        self._bytes_left = min(burst, self._bytes_left)
        self._last_ms = now_ms
        if self._bytes_left > 0:
            return 0
        return 1 + int(-self._bytes_left * 1000 / bytes_per_s)

    def spend(self, count: int) -> None:
        """Count bytes that were sent; they may exceed the remaining allowance."""
        self._bytes_left -= count
