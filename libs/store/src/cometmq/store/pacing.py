# SPDX-License-Identifier: Apache-2.0
"""Whether an interval is over, also when somebody sets the clock back."""


def has_passed(interval_ms: int, *, since_ms: int, now_ms: int) -> bool:
    """Whether the interval since a time is over; a time that lies ahead counts as long ago."""
    return not since_ms <= now_ms < since_ms + interval_ms
