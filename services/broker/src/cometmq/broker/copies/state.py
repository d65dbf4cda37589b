# SPDX-License-Identifier: Apache-2.0
"""The progress of replication: of a broker's slaves, of the broker itself as a slave, and the
copies in sync in a broker group.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from cometmq.broker.copies.unfit import Unfit


@dataclass(slots=True, eq=False)
class Slave:
    address: str
    sent_offset: int = 0  # end of the bytes that were sent or that the slave asked to skip
    acked_offset: int = 0  # end of its log as it last reported it
    is_following: bool = False  # its first report was accepted


class Slaves:
    """The connected slaves. An acknowledgement counts only while its connection is open."""

    def __init__(self) -> None:
        self.connected: set[Slave] = set()
        self.refused_counts: dict[Unfit, int] = dict.fromkeys(Unfit, 0)
        self.sent_bytes = 0

    def following(self) -> list[Slave]:
        return [slave for slave in self.connected if slave.is_following]

    def acked_offset(self) -> int:
        """Return the largest acknowledged offset, 0 without slaves: SYNC_MASTER waits for any
        slave.
        """
        return max((slave.acked_offset for slave in self.following()), default=0)

    def may_replicate(self, end: int, behind_bytes_max: int) -> bool:
        """Return whether a slave is close enough behind that sends wait for it."""
        following = self.following()
        return any(end - slave.acked_offset < behind_bytes_max for slave in following)

    def lags(self, end: int) -> Iterable[tuple[str, int]]:
        following = self.following()
        return [(slave.address, max(0, end - slave.acked_offset)) for slave in following]


class FollowState(StrEnum):
    IDLE = "idle"
    """The broker is not a slave, or it knows no master."""
    CONNECTING = "connecting"
    FOLLOWING = "following"
    UNFIT = "unfit"
    """The slave's log does not continue the master's (`UnfitLog`), so a person must act."""
    FAILED = "failed"
    """The slave's own disk failed to store the log."""


@dataclass(slots=True)
class FollowProgress:
    state: FollowState = FollowState.IDLE
    unfit: Unfit | None = None
    unfit_detail: str = ""
    ha_address: str = ""  # of the master, while connected
    master_min_offset: int = 0  # of the master's log when it was last asked
    master_max_offset: int = 0
    received_bytes: int = 0
    connect_count: int = 0
    tables_copied_ms: int = 0  # monotonic time of the last complete copy; 0: none yet
    table_failed_count: int = 0

    def behind_bytes(self, end: int) -> int:
        """Return how many bytes a log with this end lacks, by the master's last answer."""
        return max(0, self.master_max_offset - end)


class CopiesInSync(Protocol):
    """The copies of the broker group that this broker leads (`Confirmation`)."""

    def has_ended(self) -> bool: ...

    def copies(self) -> Sequence[int]: ...

    def copy_count(self) -> int: ...


@dataclass(slots=True)
class Replication:
    slaves: Slaves = field(default_factory=Slaves)
    following: FollowProgress = field(default_factory=FollowProgress)
    in_sync: CopiesInSync | None = None
    """The copies in sync; None or ended unless this broker leads a broker group."""
    elector_count: Callable[[], int | None] = lambda: None  # None: not known, or in no group

    def copies(self) -> Sequence[int] | None:
        in_sync = self.in_sync
        return None if in_sync is None or in_sync.has_ended() else in_sync.copies()

    def copy_count(self) -> int:
        """Return the recorded number of copies; 0 unless this broker leads a broker group."""
        in_sync = self.in_sync
        return 0 if in_sync is None or in_sync.has_ended() else in_sync.copy_count()
