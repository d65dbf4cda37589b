# SPDX-License-Identifier: Apache-2.0
"""Decides where a message that could not be consumed goes next (pure)."""

from enum import Enum
from typing import Final

from cometmq.remoting.versions import REQUEST_MAX_RECONSUME_MIN

FIRST_RETRY_LEVEL: Final = 3  # the first retry waits 10 s, each later one is a level higher
DLQ_QUEUE_COUNT: Final = 1


class Fate(Enum):
    RETRY = "retry"
    DEAD = "dead"


def consume_count_max(group_max: int, asked_max: int | None, *, version: int) -> int:
    """Return how often a message may be retried: the client's limit (`asked_max`) if clients of its
    version can send one (3.4.9 or later), otherwise the group's.
    """
    if version >= REQUEST_MAX_RECONSUME_MIN and asked_max is not None:
        return asked_max
    return group_max


def fate(reconsume_times: int, count_max: int, delay_level: int = 0) -> Fate:
    """Return what happens to a message; a negative level requests the dead-letter topic."""
    if delay_level < 0 or reconsume_times >= count_max:
        return Fate.DEAD
    return Fate.RETRY


def retry_level(asked_level: int, reconsume_times: int) -> int:
    """Return the delay level of the next retry; for level 0, the broker chooses."""
    return asked_level if asked_level > 0 else FIRST_RETRY_LEVEL + reconsume_times
