# SPDX-License-Identifier: Apache-2.0
"""A group of three copies for tests of an elector's decisions: its record, and members' reports."""

from collections.abc import Sequence
from typing import Any, Final

from cometmq.ha.actions import Group, Status
from cometmq.ha.fencing import Timing
from cometmq.ha.record import Copy, Record, Versioned
from cometmq.ha.role import Role

M: Final = Copy(0, "m")
X: Final = Copy(1, "x")
Y: Final = Copy(2, "y")
X2: Final = Copy(1, "x2")
GROUP: Final = Group(name="orders", ordinals=(0, 1, 2), min_in_sync=2)
TIMING: Final = Timing()


def recorded(*in_sync: Copy, epoch: int = 4, holder: Copy = M) -> Versioned:
    """Build the group's record; without `in_sync`, all three copies are in sync."""
    record = Record(
        uid="u",
        group="orders",
        epoch=epoch,
        holder=holder,
        in_sync=in_sync or (M, X, Y),
        copies=3,
    )
    return Versioned(record, "7")


def master(copy: Copy = M, epoch: int = 4, role: Role = Role.MASTER, **changes: Any) -> Status:
    """Build the report of a master that has opened `epoch`."""
    return Status(copy=copy, role=role, promised=epoch, epoch=epoch, **changes)


def slave(copy: Copy, epoch: int = 4, **changes: Any) -> Status:
    """Build the report of a slave that follows in `epoch`."""
    fields: dict[str, Any] = {"promised": epoch, "last_log_epoch": epoch, **changes}
    return Status(copy=copy, role=Role.SLAVE, epoch=epoch, **fields)


def fenced(copy: Copy, promised: int = 9, **changes: Any) -> Status:
    """Build the report of a member that promised to serve no epoch below `promised`."""
    return Status(copy=copy, role=Role.FENCED, promised=promised, **changes)


def only(actions: Sequence[Any]) -> Any:
    """Return the only action."""
    (action,) = actions
    return action
