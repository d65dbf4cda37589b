# SPDX-License-Identifier: Apache-2.0
"""The progress of a group in a queue: the only definition of lag for metrics, commands and reports.

The lag reports of Spark compute the same in SQL and in arrays; `spark/tests` compares them with
these functions.

Compatibility: RocketMQ's tools, and its answers to 208 and 317, show the end of the queue minus the
committed offset (`difference`). This also counts messages that were deleted, which no group can
read any more.
"""

from bisect import bisect_left
from collections.abc import Sequence


def position(committed: int | None, first: int) -> int:
    """Return the offset of the next message that the group will read.

    `first` is the offset of the oldest message that still exists. A group without a committed
    offset (None) starts there.
    """
    return max(committed or 0, first)


def unread(committed: int | None, first: int, end: int) -> int:
    """Return the lag: how many messages the group has yet to read. `end` is exclusive.

    The lag is 0 if the committed offset is beyond the end, as after the topic was deleted and
    created again.
    """
    return max(0, end - position(committed, first))


def waiting(committed: int | None, first: int, end: int, recalled: Sequence[int]) -> int:
    """Return how many messages of a delay level are yet to be delivered.

    `recalled` are the queue offsets of its recalled messages, in ascending order: the level passes
    them when they are due, but does not deliver them.
    """
    left_out = bisect_left(recalled, end) - bisect_left(recalled, position(committed, first))
    return unread(committed, first, end) - max(0, left_out)


def lost(committed: int | None, first: int) -> int:
    """Return how many messages were deleted before the group read them; a group without a committed
    offset has lost none.
    """
    return max(0, first - committed) if committed else 0


def difference(committed: int | None, end: int) -> int:
    """Return the lag as RocketMQ's tools show it; negative if the offset is beyond the end."""
    return end - (committed or 0)
