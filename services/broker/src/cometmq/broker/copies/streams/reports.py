# SPDX-License-Identifier: Apache-2.0
"""What a master's port reports about its followers."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from cometmq.ha.in_sync import Ack
from cometmq.ha.record import Copy


class Heard(NamedTuple):
    """A follower's progress, as last reported to the master."""

    ack: Ack
    sent_ms: int
    """When the master sent the last message that the follower had received, by `now_ms`.

    At that time the follower had certainly promised no later epoch, however long its report took;
    use this as the time at which the follower was heard (`cometmq.ha.fencing.Heard`).
    """


class Reports(Protocol):
    """What a master learns from its followers."""

    def heard(self, reports: Sequence[Heard]) -> None:
        """Apply the latest report of each follower that reported; called once per turn.

        All reports belong to the current epoch, and none exceeds the master's log or tables.
        """

    def left(self, copy: Copy) -> None:
        """Handle a follower's notice that it is stopping; it sends no report until it is back."""


class FollowerView(NamedTuple):
    """A connected follower, for status and metrics."""

    copy: Copy
    address: str
    sent_offset: int
    acked_offset: int
    tables: int
