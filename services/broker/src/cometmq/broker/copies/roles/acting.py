# SPDX-License-Identifier: Apache-2.0
"""The calls that every role of a member implements; `role_changes.py` has the table of roles."""

from cometmq.ha.orders import HandOver, Order
from cometmq.ha.port import Answer
from cometmq.ha.record import Versioned


class Acting:
    """A role. The defaults are right for a broker that neither leads nor follows."""

    def confirm_offset(self) -> int:
        return 0

    def has_lost_master(self) -> bool:
        return False

    def look_after_clients(self) -> None:
        """Make clients reconnect that may hang on a lost master (`groupAddress`); every 100 ms."""

    def before_write(self) -> None:
        """Close connections whose answers may not be sent; called before each write."""

    def obey(self, order: Order) -> None:
        """Carry out an order whose `obeyed_in` contains this role."""
        raise NotImplementedError(f"{type(self).__name__} does not obey {order}")

    async def hand_over(self, _order: HandOver) -> tuple[Answer, int] | None:
        """Wait until the successor has caught up; return the outcome of the write that makes it the
        master, and the new epoch, None if nothing was written.
        """
        return None

    def record_seen(self, found: Versioned | None) -> None:
        """Handle a version of the record reported by a watch."""

    def note_end(self) -> None:
        """Note that the log has grown; the master then confirms its new end with the copies."""


class InactiveRole(Acting):
    """A broker that may have been replaced, or knows no master, serves no requests."""

    def __init__(self, confirmed: int = 0) -> None:
        """`confirmed` is the confirm offset that was known in the last role."""
        self._confirmed = confirmed

    def confirm_offset(self) -> int:
        return self._confirmed

    def obey(self, order: Order) -> None:
        """Ignore the order: the role for which it was accepted has just ended."""
