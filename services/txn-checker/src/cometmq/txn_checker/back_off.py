# SPDX-License-Identifier: Apache-2.0
"""The pauses before a follower retries a failed broker.

During a failover the old master refuses requests or has stopped, and the next attempt may already
reach the new master, so the pauses remain short. All other failures, such as a refused account or a
failing disk, last until a person acts, so the pauses grow.
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
"""Longest pause after a failure that a failover may have caused."""
_OF_FAILOVERS: Final = (TransportError, SlaveNotAvailable, ServiceNotAvailable, SystemBusy)


class BackOff:
    """The next pause: it doubles with each failure, from FIRST_MS up to a bound."""

    def __init__(self, longest_ms: int) -> None:
        self._longest_ms = longest_ms
        self._next_ms = FIRST_MS
        self.pause_ms = 0

    def restart(self) -> None:
        """Return to the shortest pause."""
        self._next_ms = FIRST_MS
        self.pause_ms = 0

    def failed(self, errors: Iterable[BaseException], *, may_be_back_soon: bool) -> None:
        """Choose the next pause. It is at most FAILOVER_MAX_MS if `may_be_back_soon` and a failover
        may have caused all the errors.
        """
        longest_ms = self._longest_ms
        if may_be_back_soon and all(isinstance(error, _OF_FAILOVERS) for error in errors):
            longest_ms = min(longest_ms, FAILOVER_MAX_MS)
        self.pause_ms = min(self._next_ms, longest_ms)
        self._next_ms = min(self.pause_ms * 2, self._longest_ms)
