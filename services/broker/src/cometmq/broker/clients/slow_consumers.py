# SPDX-License-Identifier: Apache-2.0
"""Finds consumer groups so far behind the end of the log that their reads slow down
all other groups (off by default).

Compatibility: RocketMQ measures the distance of each pull. Here the committed offset is used, so
that a connected group is checked even if it is not pulling at the moment. Groups without connected
members cause no reads, and are not checked.
"""

from collections.abc import Iterable
from typing import Final

from cometmq.broker.clients.consumers import ConsumerGroup
from cometmq.broker.tables.offsets import Offsets
from cometmq.store.reader import Reader
from cometmq.store.reads import Lookup

CHECK_INTERVAL_MS: Final = 180_000


def slow_groups(
    groups: Iterable[ConsumerGroup],
    offsets: Offsets,
    store: Reader,
    *,
    log_end: int,
    behind_bytes_max: int,
) -> Lookup[list[str]]:
    """Return the groups whose next message in some queue is more than `behind_bytes_max` before the
    end of the log.
    """
    slow = []
    for group in list(groups):
        oldest = yield from _oldest_place(group, offsets, store, log_end=log_end)
        if log_end - oldest > behind_bytes_max:
            slow.append(group.name)
    return slow


def _oldest_place(
    group: ConsumerGroup, offsets: Offsets, store: Reader, *, log_end: int
) -> Lookup[int]:
    """Return the lowest physical offset of a group's next messages; the end of the log if there are
    none.
    """
    oldest = log_end
    for topic in list(group.subscriptions):
        for queue_id, offset in list(offsets.queues(group.name, topic).items()):
            place = yield from store.place(topic, queue_id, offset)
            if place >= 0:
                oldest = min(oldest, place)
    return oldest
