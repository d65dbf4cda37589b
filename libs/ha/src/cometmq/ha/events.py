# SPDX-License-Identifier: Apache-2.0
"""Orders to a member of a broker group, and its own observations, as plain values."""

import msgspec

from cometmq.ha.port import Answer
from cometmq.ha.record import Versioned


class Recovered(msgspec.Struct, frozen=True):
    """Recovery at startup or from a full disk is complete; history and state are saved (R2, R5)."""


class RecordRead(msgspec.Struct, frozen=True):
    """The member has read the record; `found` is None if there is none."""

    found: Versioned | None


class PromoteOrder(msgspec.Struct, frozen=True):
    """According to an elector, the record names this member as the master of `epoch`."""

    epoch: int


class FollowOrder(msgspec.Struct, frozen=True):
    """An elector, or a handshake, names the master of `epoch`."""

    epoch: int
    master: int


class FenceOrder(msgspec.Struct, frozen=True):
    """Promise `epoch` and stop being master; the answer contains the state after the promise."""

    epoch: int


class EpochSeen(msgspec.Struct, frozen=True):
    """A replica, a name server, a watch or a call mentioned this epoch."""

    epoch: int


class Opened(msgspec.Struct, frozen=True):
    """The epoch's entry is saved, and everything before its start is dispatched."""

    epoch: int


class LeaseLapsed(msgspec.Struct, frozen=True):
    """The master may no longer acknowledge (`cometmq.ha.fencing.is_lapsed`)."""


class ParkOrder(msgspec.Struct, frozen=True):
    """Prepare to hand over to another member."""

    target: int


class Unparked(msgspec.Struct, frozen=True):
    """The hand-over was abandoned before its write was sent."""


class HandedOver(msgspec.Struct, frozen=True):
    """The answer to the write that makes `target` the master of `epoch`."""

    answer: Answer
    target: int
    epoch: int


class StoreFailed(msgspec.Struct, frozen=True):
    """An append or an fsync failed permanently."""


Order = PromoteOrder | FollowOrder | FenceOrder | ParkOrder
Observation = (
    Recovered | RecordRead | EpochSeen | Opened | LeaseLapsed | Unparked | HandedOver | StoreFailed
)
Event = Order | Observation
