# SPDX-License-Identifier: Apache-2.0
"""The calls that every role of a member implements; `role_changes.py` has the table of roles."""

from typing import Protocol

from cometmq.ha.orders import HandOver, Order
from cometmq.ha.port import Answer
from cometmq.ha.record import Versioned


class Acting:
    """A role. The defaults are those of a broker that neither leads nor follows."""

    def confirm_offset(self) -> int:
        """Return the last confirm offset that this broker knows; 0 if it knows none."""
        return 0

    def has_lost_master(self) -> bool:
        """Return whether this broker follows a master that is silent, or cannot be reached."""
        return False

    def look_after_clients(self) -> None:
        """Make clients leave a lost master that has the next one's address; called every 100 ms."""

    def before_write(self) -> None:
        """Prevent answers that may not be sent; called before the answers of a turn are written."""

    def obey(self, order: Order) -> None:
        """Obey an order that names this role in `obeyed_in`."""
        raise NotImplementedError(f"{type(self).__name__} does not obey {order}")

    async def hand_over(self, _order: HandOver) -> tuple[Answer, int] | None:
        """Wait until the successor has caught up, and write the record that makes it the master.

        Return the answer and the new epoch; None if the successor did not catch up in time, or if
        the leadership ended, so that nothing was written.
        """
        return None

    def record_seen(self, found: Versioned | None) -> None:
        """Handle a version of the record reported by a watch."""

    def note_end(self) -> None:
        """Note the end of the log, and the number of table changes before it."""


class Current(Protocol):
    """Knows the role in which a broker acts now."""

    acting: Acting
