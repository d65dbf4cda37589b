# SPDX-License-Identifier: Apache-2.0
"""Tells whether producers still store messages in a queue or log."""

from cometmq.operator.engine.context import Context


class Quiet:
    """Tells whether the ends of queues or logs have not moved for a while."""

    def __init__(self, context: Context) -> None:
        self._now_ms, self._quiet_ms = context.clock.monotonic_ms, context.quiet_ms
        self._ends: dict[str, tuple[int, int]] = {}
        """The last known end of each queue or log, and when it was first seen."""

    def is_quiet(self, place: str, end: int) -> bool:
        """Return whether `end` has been the same for `quiet_ms`; a negative end means that it is
        unknown, and restarts the period.
        """
        now_ms = self._now_ms()
        known = self._ends.get(place)
        if known is None or known[0] != end or end < 0:
            known = self._ends[place] = (end, now_ms)
        return now_ms - known[1] >= self._quiet_ms

    def forget(self) -> None:
        self._ends.clear()
