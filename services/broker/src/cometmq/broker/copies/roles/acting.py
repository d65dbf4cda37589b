# SPDX-License-Identifier: Apache-2.0
"""What a member of a broker group does in its present role; see `leading.py` for the master."""

from collections.abc import Callable

from cometmq.broker.broker import Broker
from cometmq.broker.copies.roles.leadership import Leader
from cometmq.broker.copies.state import FollowState
from cometmq.broker.copies.streams.following import Follower
from cometmq.ha.record import Versioned


class Acting:
    """A role. The defaults are those of a broker that neither leads nor follows."""

    leader: Leader | None = None
    """The leadership; None if this broker is not the master."""

    def confirm_offset(self) -> int:
        """Return the last confirm offset that this broker knows; 0 if it knows none."""
        return 0

    def has_lost_master(self) -> bool:
        """Return whether this broker follows a master that is silent, or cannot be reached."""
        return False

    def has_successor(self) -> bool:
        """Return whether this broker leads and another copy can take over."""
        return False

    def tick(self) -> None:
        """Check the lease and the copies."""

    def look_after_clients(self) -> None:
        """Help clients that reach the next master at the same address."""

    def before_write(self) -> None:
        """Check that answers may be sent."""

    def note_end(self) -> None:
        """Note the end of the log, and the number of table changes before it."""

    def drop(self, ordinal: int) -> None:
        """Keep a member out of the in-sync set."""

    def resize(self, copies: int) -> None:
        """Write this number of copies to the record."""

    def record_seen(self, found: Versioned | None) -> None:
        """Handle a version of the record reported by a watch."""

    def end(self) -> None:
        """Stop acting in this role."""


class Fenced(Acting):
    """Accepts nothing: it may have been replaced as master, or knows no master."""

    def __init__(self, confirmed: int = 0) -> None:
        """`confirmed` is the confirm offset that was known in the last role."""
        self._confirmed = confirmed

    def confirm_offset(self) -> int:
        return self._confirmed


class Following(Acting):
    """Copies the log and the tables of a master."""

    def __init__(self, broker: Broker, follower: Follower, boottime_ms: Callable[[], int]) -> None:
        self._broker = broker
        self._follower = follower
        self._boottime_ms = boottime_ms
        self._hinted_ms = 0

    def confirm_offset(self) -> int:
        return self._follower.confirmed

    def has_lost_master(self) -> bool:
        follower, within_ms = self._follower, self._broker.settings.heard_within_mills
        is_connected = follower.status.state is FollowState.FOLLOWING
        return not is_connected or self._boottime_ms() - follower.heard_ms > within_ms

    def look_after_clients(self) -> None:
        """Break connections that hang at a lost master, once for each silence."""
        heard_ms = self._follower.heard_ms
        quiet_ms = self._broker.settings.heard_within_mills // 2
        is_quiet = 0 < heard_ms < self._boottime_ms() - quiet_ms
        if is_quiet and heard_ms != self._hinted_ms:
            self._hinted_ms = heard_ms
            self._broker.consumers.hint()
