# SPDX-License-Identifier: Apache-2.0
"""A clock that tests advance."""


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
