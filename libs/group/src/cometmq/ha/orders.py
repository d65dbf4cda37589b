# SPDX-License-Identifier: Apache-2.0
"""The orders that a member of a broker group obeys: all that electors, members and the control API
know about each.

The name of a class is its method in the control API. Its fields have the numbers 2, 3, ... of that
method's request, in the order of their definition: append fields, but never move or remove one. An
order with rows in `member.TRANSITIONS` changes the role; any other is obeyed in the roles of
`obeyed_in`, by the object of that role (`broker/copies/roles`).
"""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Final

import msgspec

from cometmq.ha.role import Role

Epoch = Annotated[int, "uint64"]
Small = Annotated[int, "uint32"]
"""An ordinal or a count. The text is the type in the control API; `bool` needs none."""


class Order(msgspec.Struct, frozen=True):
    """An order, which may be repeated: one that is already in effect changes nothing."""

    timeout_ms: ClassVar[int] = 2_000
    """How long its sender waits for the answer."""
    obeyed_in: ClassVar[frozenset[Role]] = frozenset()

    def fault(self, ordinal: int) -> str:
        """Return why the member with this ordinal cannot obey; empty if it can."""
        return ""


class Promote(Order, frozen=True):
    """According to an elector, the record names this member as the master of `epoch`."""

    epoch: Epoch


class Follow(Order, frozen=True):
    """An elector, or a handshake, names the master of `epoch`."""

    epoch: Epoch
    master: Small


class Fence(Order, frozen=True):
    """Promise `epoch` and stop being master; the answer contains the state after the promise."""

    epoch: Epoch


class HandOver(Order, frozen=True):
    """Make another member the master without failing a send.

    With `leaves`, the old master is removed from the in-sync set afterwards.
    """

    timeout_ms: ClassVar[int] = 10_000
    successor: Small
    leaves: bool = False


class Drop(Order, frozen=True):
    """Remove a departing member from the in-sync set."""

    obeyed_in: ClassVar[frozenset[Role]] = frozenset({Role.MASTER})
    ordinal: Small

    def fault(self, ordinal: int) -> str:  # noqa: D102  # as of `Order`
        return f"broker {ordinal} is the master: hand over first" * (self.ordinal == ordinal)


class Resize(Order, frozen=True):
    """Write a new number of copies to the record."""

    obeyed_in: ClassVar[frozenset[Role]] = frozenset({Role.MASTER})
    copies: Small

    def fault(self, ordinal: int) -> str:  # noqa: D102  # as of `Order`
        text = f"a group cannot have {self.copies} copies: give it 1 or more"
        return text * (self.copies < 1)


class Rebuild(Order, frozen=True):
    """Stop a slave and move its store aside; its next start copies everything from its master."""

    timeout_ms: ClassVar[int] = 10_000
    obeyed_in: ClassVar[frozenset[Role]] = frozenset({Role.SLAVE})


ORDERS: Final[Mapping[str, type[Order]]] = {
    it.__name__: it for it in (Promote, Follow, Fence, HandOver, Drop, Resize, Rebuild)
}
