# SPDX-License-Identifier: Apache-2.0
"""The broker's role, as handlers, timers and name servers see it.

Outside a broker group, the settings fix the role. In a broker group, the table in
`cometmq.ha.member` decides every change of the role, and `copies/roles` apply it here.
"""

from enum import StrEnum
from typing import Final

import msgspec


class Role(StrEnum):
    MASTER = "master"
    """Stores messages, delivers delayed ones, and commits offsets."""
    SLAVE = "slave"
    """Follows a master: copies its log and tables, and serves reads."""
    FENCED = "fenced"
    """Accepts no messages, because it may have been replaced as master or knows no master."""


class RoleState(msgspec.Struct, frozen=True):
    """A role, the epoch in which it was assigned, and the broker id at the name servers."""

    role: Role
    epoch: int = 0
    broker_id: int = 0


MASTER_ID: Final = 0


def id_of(role: Role, ordinal: int) -> int:
    """Return the id under which a member of a broker group registers.

    Compatibility: for RocketMQ clients, id 0 is the master, so other members count from 1.
    """
    return MASTER_ID if role is Role.MASTER else ordinal + 1
