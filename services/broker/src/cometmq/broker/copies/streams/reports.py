# SPDX-License-Identifier: Apache-2.0
"""The reports of followers, as a master's streams pass them to its leadership."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from cometmq.broker.turn import OncePerTurn
from cometmq.ha.in_sync import Ack
from cometmq.ha.record import Copy


class Heard(NamedTuple):
    """A follower's progress, as last reported to the master."""

    ack: Ack
    sent_ms: int
    """When the master sent the last CONFIRM that the follower had received, by `now_ms`.

    When that was sent, the follower had certainly promised no later epoch, however long its report
    took. So this is the time at which the follower was heard (`cometmq.ha.fencing.Heard`).
    """


class Reports(Protocol):
    """Receives the followers' reports; implemented by `Confirmation`."""

    def heard(self, reports: Sequence[Heard]) -> None:
        """Apply the latest report of each follower that reported; called once per turn.

        All reports belong to the current epoch, and none exceeds the master's log or tables.
        """

    def left(self, copy: Copy) -> None:
        """Handle a follower's notice that it is stopping: no report follows until it has
        restarted.
        """


class ReportBatch:
    """Collects the reports of one turn of the loop, and passes them to the leadership together."""

    def __init__(self) -> None:
        self._told: Reports | None = None
        self._reports: dict[Copy, Heard] = {}
        self._pass_later = OncePerTurn(self._pass)

    def begin(self, told: Reports) -> None:
        """Pass the reports to `told` from now on, a new leadership."""
        self._told = told

    def end(self) -> None:
        """Drop the collected reports, and all later ones."""
        self._told = None
        self._reports.clear()

    def note(self, heard: Heard) -> None:
        """Pass on a report at the end of this turn."""
        self._reports[heard.ack.copy] = heard
        self._pass_later()

    def left(self, copy: Copy) -> None:
        """Pass on that a follower is stopping, at once; drop its collected report,
        which would say that it is running.
        """
        self._reports.pop(copy, None)
        if self._told is not None:
            self._told.left(copy)

    def _pass(self) -> None:
        reports, self._reports = self._reports, {}
        if reports and self._told is not None:
            self._told.heard(list(reports.values()))


class FollowerView(NamedTuple):
    """A connected follower, for status and metrics."""

    copy: Copy
    address: str
    sent_offset: int
    acked_offset: int
    tables: int
