# SPDX-License-Identifier: Apache-2.0
"""What a round finds: the figures of consumers, and the counts of the round itself."""

from enum import StrEnum
from typing import NamedTuple

import msgspec

from cometmq.remoting.bodies.running_info import ConsumeStatus


class ClientRow(NamedTuple):
    """The figures of one consumer for one topic."""

    address: str
    client_id: str
    group: str
    topic: str
    status: ConsumeStatus


class GroupRow(NamedTuple):
    """The members of one group; their addresses and ids are joined by commas."""

    addresses: str
    client_ids: str
    group: str
    member_count: int


class LeftOut(msgspec.Struct):
    """What the last round left out because of a limit."""

    groups: int = 0
    clients: int = 0
    late: int = 0
    rows: int = 0


class Figures(msgspec.Struct):
    """The figures of one round."""

    rows: list[ClientRow] = []
    groups: list[GroupRow] = []
    group_count: int = 0
    client_count: int = 0
    left_out: LeftOut = msgspec.field(default_factory=LeftOut)
    brokers: dict[str, str] = {}
    """Why a broker could not be asked, by name; empty for a broker that answered."""


class RoundEnd(StrEnum):
    """How a round ended."""

    COMPLETE = "complete"
    LATE = "late"
    FAILED = "failed"


class ExporterStats:
    """Counters since the start, and the figures of the last round."""

    def __init__(self) -> None:
        self.rounds = dict.fromkeys(RoundEnd, 0)
        self.asked_count = 0
        self.failed_count = 0
        self.last_round_s = 0.0
        self.last_round_at_s = 0.0
        self.figures = Figures()
