# SPDX-License-Identifier: Apache-2.0
"""The pauses before a follower retries a failed broker.

During a failover the old master refuses requests or has stopped, and the new master may have the
same address. Such failures do not predict the result of the next attempt, so their pauses remain
short. All other failures, such as a refused account or a failing disk, last until a person acts.
"""

from collections.abc import Iterable
from typing import Final

from cometmq.remoting.errors import (
    ServiceNotAvailable,
    SlaveNotAvailable,
    SystemBusy,
    TransportError,
)

FIRST_MS: Final = 100
FAILOVER_MAX_MS: Final = 1_000
"""Longest pause while a failover may be under way."""
_OF_FAILOVERS: Final = (TransportError, SlaveNotAvailable, ServiceNotAvailable, SystemBusy)


class BackOff:
    """Pauses that double from FIRST_MS up to a bound."""

    def __init__(self, longest_ms: int) -> None:
        self._longest_ms = longest_ms
        self._next_ms = FIRST_MS
        self.pause_ms = 0

    def restart(self) -> None:
        """Return to the shortest pause."""
        self._next_ms = FIRST_MS
        self.pause_ms = 0

    def failed(self, errors: Iterable[BaseException], *, may_be_back_soon: bool) -> None:
        """Choose the next pause; it remains short if the broker may be back soon."""
        longest_ms = self._longest_ms
        if may_be_back_soon and all(isinstance(error, _OF_FAILOVERS) for error in errors):
            longest_ms = min(longest_ms, FAILOVER_MAX_MS)
        self.pause_ms = min(self._next_ms, longest_ms)
        self._next_ms = min(self.pause_ms * 2, self._longest_ms)
