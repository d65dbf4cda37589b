# SPDX-License-Identifier: Apache-2.0
"""What a member needs of its broker: performing the actions of `cometmq.ha.member`,
and its position.
"""

from typing import Protocol

import msgspec

from cometmq.ha.member import Duty


class Position(msgspec.Struct, frozen=True, kw_only=True):
    """How recent a broker's log and tables are, how far it is behind its master,
    and whether its disk has room.
    """

    last_log_epoch: int
    max_offset: int
    tables_epoch: int = 0
    tables: int = 0
    has_lost_master: bool = False
    lag_bytes: int = 0
    is_full: bool = False
    has_room: bool = False


class Duties(Protocol):
    """The broker as seen by the driver of its membership; `RoleChanges` implements it.

    The driver awaits each call before it makes the next one. OSError and StoreError mean that the
    disk has failed.
    """

    def position(self) -> Position:
        """Return the broker's position now."""

    async def perform(self, action: Duty) -> None:
        """Perform an action that `react` has returned. On return it is complete, and durable if its
        class says so; a connection to a master need only have begun.
        """

    async def repair_history(self) -> None:
        """Save the history of the log, without epochs that begin beyond its end (R5).

        The member is neither master nor slave during the call. Raise OSError if it fails.
        """
