# SPDX-License-Identifier: Apache-2.0
"""The roles of a member of a broker group, and what each means for others."""

from enum import StrEnum


class Role(StrEnum):
    """A member's current activity in its group."""

    RECOVERING = "recovering"
    """The member is recovering its store; it obeys no orders and is not a candidate."""
    SLAVE = "slave"
    """The member is following a master, or waiting for one."""
    PROMOTING = "promoting"
    """The member has promised its own epoch and is preparing to open."""
    MASTER = "master"
    """The member stores and acknowledges messages."""
    HANDING_OVER = "handing_over"
    """The member is a master that holds back new messages until its successor has caught up."""
    FENCED = "fenced"
    """The member was fenced, by an order or by itself; it follows once it knows the master."""
    FAILED = "failed"
    """The member stopped because the disk failed; it recovers by itself only from a full disk."""

    @property
    def is_leading(self) -> bool:
        """Whether the member is the master of its epoch."""
        return self in (Role.MASTER, Role.HANDING_OVER)

    @property
    def is_live(self) -> bool:
        """Whether the member is the master of its epoch, or is about to be."""
        return self.is_leading or self is Role.PROMOTING

    @property
    def is_candidate(self) -> bool:
        """Whether the member may become master by an election."""
        return self in (Role.SLAVE, Role.FENCED)

    @property
    def is_serving(self) -> bool:
        """Whether clients get answers from the member."""
        return self.is_leading or self is Role.SLAVE

    @property
    def is_out(self) -> bool:
        """Whether the member neither leads nor follows, and is not about to."""
        return self is Role.FENCED or not self.has_store

    @property
    def has_store(self) -> bool:
        """Whether the member has recovered its store, and can write to it."""
        return self.is_live or self.is_candidate
