# SPDX-License-Identifier: Apache-2.0
"""Intervals that tolerate a clock being set back."""


def has_passed(interval_ms: int, *, since_ms: int, now_ms: int) -> bool:
    """Return whether an interval has passed; a start time in the future counts as passed."""
    return not since_ms <= now_ms < since_ms + interval_ms
