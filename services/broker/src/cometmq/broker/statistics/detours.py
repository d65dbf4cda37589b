# SPDX-License-Identifier: Apache-2.0
"""Counts the requests that handlers serve although the broker has a native path, and why.

Handlers of codes that a lane takes note the reason themselves, once per request. All other codes
have the reason NO_NATIVE_FORM. Without a lane, nothing is counted, because handlers serve every
request, for the reason in `Process.send_path`.
"""

from collections import Counter
from enum import StrEnum


class SlowReason(StrEnum):
    """Why a handler served a request."""

    NO_NATIVE_FORM = "no_native_form"
    """No lane takes this code, or this form of it."""
    FIRST = "first"
    """The first request of its kind since the start, or since a change of topics, groups,
    subscriptions, settings or accounts; the lane takes the following ones.
    """
    EMPTY = "empty"
    """A pull that found nothing; most of these are held until a message arrives."""
    COLD = "cold"
    """A pull of messages that are not in memory."""
    BUSY = "busy"
    """A send while the broker inspects each send, or while too many wait."""
    UNUSUAL = "unusual"
    """A request with unusual fields or content."""


class Detours:
    """The requests that left the native path, by code and reason."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[int, SlowReason]] = Counter()

    def note(self, code: int, reason: SlowReason) -> None:
        self.counts[code, reason] += 1

    @property
    def total(self) -> int:
        return self.counts.total()

    @property
    def text(self) -> str:
        """The counts for the runtime information: `CODE:REASON=COUNT`, most frequent first."""
        return ",".join(
            f"{int(code)}:{reason}={count}" for (code, reason), count in self.counts.most_common()
        )
