# SPDX-License-Identifier: Apache-2.0
"""The broker's role at run time: its states, and the orders that change them (pure).

A broker group is one master and its slaves. Orders come from an election or an operator; only
`obey` decides what an order does. No program gives orders yet (ROADMAP.md). Every order carries the
epoch for which it was given, so that a late order from an earlier election changes nothing.

A broker that does not replicate stays in the state that its settings describe, in epoch 0.
"""

from collections.abc import Mapping
from enum import Enum, StrEnum
from typing import Final

import msgspec

from cometmq.remoting.errors import CometError


class Role(StrEnum):
    MASTER = "master"
    """Stores messages, delivers delayed ones, and commits offsets."""
    SLAVE = "slave"
    """Follows a master: copies its log and tables, and serves reads."""
    FENCED = "fenced"
    """Was a master and may have been replaced, so it accepts no messages until the next order."""


class RoleState(msgspec.Struct, frozen=True):
    """A role, the epoch in which it was assigned, and the broker id at the name servers."""

    role: Role
    epoch: int = 0
    broker_id: int = 0


class Order(Enum):
    PROMOTE = "promote"
    FOLLOW = "follow"
    FENCE = "fence"


class OrderRefused(CometError):
    """An order does not fit the broker's state; the state is unchanged."""


MASTER_ID: Final = 0

TRANSITIONS: Final[Mapping[tuple[Role, Order], Role]] = {
    (Role.SLAVE, Order.PROMOTE): Role.MASTER,
    (Role.SLAVE, Order.FOLLOW): Role.SLAVE,
    (Role.SLAVE, Order.FENCE): Role.FENCED,
    (Role.MASTER, Order.FOLLOW): Role.SLAVE,
    (Role.MASTER, Order.FENCE): Role.FENCED,
    (Role.FENCED, Order.PROMOTE): Role.MASTER,
    (Role.FENCED, Order.FOLLOW): Role.SLAVE,
    (Role.FENCED, Order.FENCE): Role.FENCED,
}
"""(role, order) -> next role. Promoting a master is an error by the elector."""


def obey(state: RoleState, order: Order, *, epoch: int, broker_id: int) -> RoleState:
    """Return the state after an order; raise OrderRefused if the order is stale or impossible.

    A promotion needs an epoch above the current one, because an epoch has one master and a broker
    that restarts never resumes its earlier epoch. Other orders may be repeated within an epoch.
    """
    role = TRANSITIONS.get((state.role, order))
    if role is None:
        raise OrderRefused(f"a {state.role} cannot obey the order to {order.value}")
    least = state.epoch + 1 if order is Order.PROMOTE else state.epoch
    if epoch < least:
        raise OrderRefused(
            f"the order to {order.value} is of epoch {epoch}; at least {least} is needed"
        )
    if (role is Role.MASTER) is not (broker_id == MASTER_ID):
        raise OrderRefused(f"a {role} cannot have the broker id {broker_id}")
    return RoleState(role, epoch, broker_id)
