# SPDX-License-Identifier: Apache-2.0
"""The time limit of one call, over all its steps and attempts."""

import msgspec

from cometmq.client.clock import monotonic_ms


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
