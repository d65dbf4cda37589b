# SPDX-License-Identifier: Apache-2.0
"""Decides how often a follower that catches up with its master saves checkpoints, and when it
pauses.
"""

from typing import Final

FAR_BEHIND_BYTES: Final = 16 << 20
"""A follower whose log is this much shorter than its master's is catching up. A copy that is in
sync is never as far behind.
"""

UNSAVED_BYTES_MAX: Final = 64 << 20
"""If the log of a follower that is catching up has grown by more than this since the last
checkpoint, the next checkpoint begins at once.
"""

UNSAVED_COUNT_MAX: Final = 100_000
"""A follower that is catching up pauses while more replicated records than this are waiting for a
checkpoint; above half this number, the next checkpoint begins at once.

A follower dispatches 500,000 records a second. Their entries take 40 bytes each, and twice that
while a checkpoint writes them: 8 MB in all.
"""


class CatchUp:
    """Decides when the next checkpoint must begin at once, and when replication must pause."""

    __slots__ = ("is_active", "is_pressed", "unsaved_count")

    def __init__(self) -> None:
        self.is_active = False
        self.is_pressed = False
        """Whether the next checkpoint begins at once."""
        self.unsaved_count = 0
        """The number of replicated records that no checkpoint has saved."""

    def note_distance(self, behind_bytes: int) -> None:
        """Record how far this follower's log is behind its master's.

        Sends to the master wait for a follower that is in sync, so its checkpoints must not compete
        with them for the disk.
        """
        self.is_active = behind_bytes > FAR_BEHIND_BYTES

    @property
    def is_crowded(self) -> bool:
        """Whether a follower should pause because checkpoints lag behind replication."""
        return self.is_active and self.unsaved_count > UNSAVED_COUNT_MAX

    def note_dispatched(self, count: int, *, unsaved_bytes: int) -> None:
        """Count replicated records; the log has grown by `unsaved_bytes` since the checkpoint."""
        self.unsaved_count += count
        self.is_pressed = self.is_active and (
            unsaved_bytes > UNSAVED_BYTES_MAX or self.unsaved_count > UNSAVED_COUNT_MAX // 2
        )

    def note_saved(self, count: int) -> None:
        """Count the records that a checkpoint has saved."""
        self.unsaved_count -= count
        self.is_pressed = False
