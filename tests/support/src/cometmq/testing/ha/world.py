# SPDX-License-Identifier: Apache-2.0
"""The state of a whole group for the exhaustive check: stores, members, record, network, facts.

Messages are numbers, and an offset is a number of messages. All data that a master sends is kept
per epoch, and every acknowledgement is kept forever, because data from dead masters may still
arrive, and acknowledgements may arrive late or more than once.
"""

import msgspec

from cometmq.ha.epochs import History
from cometmq.ha.in_sync import Ack, Leadership
from cometmq.ha.member import Member
from cometmq.ha.record import Record, Versioned
from cometmq.ha.state import State


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds on a check: how large the group is, and how many of each kind of event may occur."""

    nodes: int = 2
    in_sync: int = 1
    """Number of members in the first set, counted from ordinal 0."""
    holder: int = 0
    min_in_sync: int = 1
    epochs: int = 1
    messages: int = 1
    tables: int = 0
    writes: int = 0
    """Number of changes that masters may make to the set."""
    lost: int = 0
    """Writes by any node that may lose their answers and may be applied late."""
    crashes: int = 0
    host_crashes: int = 0
    lapses: int = 0
    """Number of times that a master may fence itself."""
    hand_overs: int = 0
    deletions: int = 0
    script: tuple[str, ...] = ()
    """Names of the steps that lead to the state in which the check begins."""


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """One broker: the state on its disk, followed by the state in its memory."""

    state: State
    log: tuple[int, ...] = ()
    history: History = ()
    tables: tuple[int, ...] = ()
    tables_epoch: int = 0
    """The epoch of the master that the tables come from."""
    tables_start: int = 0
    """Length of the tables when that epoch began."""
    member: Member
    leading: Leadership | None = None
    is_connected: bool = False
    """The handshake with the master of its epoch is done."""


class Stream(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that an epoch's master has sent."""

    epoch: int
    owner: int
    log: tuple[int, ...]
    history: History
    tables: tuple[int, ...]
    tables_start: int
    """Length of the tables when the epoch began."""


class Write(msgspec.Struct, frozen=True):
    """A write of the record that may still be applied; if `base` is None, it creates the record."""

    base: Versioned | None
    record: Record


class World(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a step may depend on, and the facts that the invariants check."""

    nodes: tuple[Node, ...]
    cell: Versioned | None
    writes: int = 1
    late: frozenset[Write] = frozenset()
    streams: tuple[Stream, ...] = ()
    acks: frozenset[Ack] = frozenset()
    fence_epoch: int = 0
    """The epoch with which an elector fences after finding no record."""
    left: Bounds
    confirmed: tuple[int, ...] = ()
    """The longest prefix of the log that a master has confirmed."""
    acknowledged: frozenset[tuple[int, int]] = frozenset()
    """Offset and message of each answered send."""
    answered_tables: frozenset[int] = frozenset()
    visible: tuple[tuple[int, int], ...] = ()
    """For each epoch, the end of the log that its master has shown to consumers."""

    def stream(self, epoch: int) -> Stream | None:
        """Return the stream of an epoch's master; None if that master never opened."""
        return next((one for one in self.streams if one.epoch == epoch), None)
