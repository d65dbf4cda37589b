# SPDX-License-Identifier: Apache-2.0
"""A member's interface to its broker: the actions of `cometmq.ha.member`, and positions."""

from typing import Protocol

import msgspec

from cometmq.ha.member import Duty


class Position(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a broker's log and tables, how far it is behind its master, and whether it has
    room.
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
    """The broker as seen by its member.

    The member awaits each call before it makes the next one. OSError and StoreError mean that the
    disk has failed.
    """

    def position(self) -> Position:
        """Return the broker's position now."""

    async def perform(self, action: Duty) -> None:
        """Perform an action of a reaction; on return it is complete, on disk where specified.

        Connecting to a master is complete once it has begun.
        """

    async def repair_history(self) -> None:
        """Save the history of the log, without epochs that begin beyond its end (R5).

        The member is neither master nor slave in the meantime. Raise OSError if this fails.
        """
