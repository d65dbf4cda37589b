# SPDX-License-Identifier: Apache-2.0
"""Entries of the state table, and what is counted beside them (docs/protocol/state-table.md).

Compatibility: the 24 bytes are those of RocketMQ 3's transaction state table.
"""

from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple

ENTRY: Final = Struct(">qiiii")
CHECK: Final = Struct(">IHH")
NO_IMMUNITY: Final = 0xFFFF
COUNT_MAX: Final = 0xFFFF


class State(IntEnum):
    """How a transaction stands; 0 is what was never written."""

    PREPARED = 4
    COMMITTED = 8
    ROLLED_BACK = 12


class Entry(NamedTuple):
    """One half message; its index in the table is its offset in the half queue."""

    physical_offset: int
    size: int
    stored_s: int
    """Seconds since 1970."""
    group_hash: int
    """Java's hash of the producer group."""
    state: int


class Check(NamedTuple):
    """What has been asked about one half message."""

    asked_s: int
    """When it was last asked about, in seconds since 1970; 0: never."""
    asked_count: int
    immunity_s: int
    """Its own age for the first question; NO_IMMUNITY: that of the settings."""


class Half(NamedTuple):
    """A half message that was read from its queue."""

    physical_offset: int
    size: int
    stored_s: int
    group_hash: int
    immunity_s: int = NO_IMMUNITY
    check_count: int = 0
    """How often a Java broker has asked about it already."""
    state: State = State.PREPARED

    def entry(self) -> bytes:
        """Return its entry."""
        return ENTRY.pack(
            self.physical_offset, self.size, self.stored_s, self.group_hash, self.state
        )

    def check(self) -> bytes:
        """Return what is counted at first."""
        return CHECK.pack(0, self.check_count, self.immunity_s)


NO_HALF: Final = Half(0, 0, 0, 0, state=State.ROLLED_BACK)
"""Fills the place of a half message that its queue has lost."""
