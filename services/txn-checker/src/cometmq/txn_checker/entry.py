# SPDX-License-Identifier: Apache-2.0
"""Entries of the state table and their check counters (docs/protocol/state-table.md).

Compatibility: the transaction state table of RocketMQ 3 has the same 24-byte entries.
"""

from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple

ENTRY: Final = Struct(">qiiii")
CHECK: Final = Struct(">IHH")
NO_IMMUNITY: Final = 0xFFFF
COUNT_MAX: Final = 0xFFFF


class State(IntEnum):
    """The state of a transaction; 0 marks an entry that was never written."""

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
    """The number and time of the checks of one half message."""

    asked_s: int
    """Time of the last check in seconds since 1970; 0 if there was none."""
    asked_count: int
    immunity_s: int
    """Minimum age at the first check, from the message's properties; NO_IMMUNITY if it has none, so
    that the setting applies.
    """


class Half(NamedTuple):
    """A half message as read from its queue."""

    physical_offset: int
    size: int
    stored_s: int
    group_hash: int
    immunity_s: int = NO_IMMUNITY
    check_count: int = 0
    """Number of checks that a RocketMQ broker made before, from the message's properties."""
    state: State = State.PREPARED

    def entry(self) -> bytes:
        return ENTRY.pack(
            self.physical_offset, self.size, self.stored_s, self.group_hash, self.state
        )

    def check(self) -> bytes:
        return CHECK.pack(0, self.check_count, self.immunity_s)


NO_HALF: Final = Half(0, 0, 0, 0, state=State.ROLLED_BACK)
"""Stands for a half message that is missing from the queue."""
