# SPDX-License-Identifier: Apache-2.0
"""Finds groups that read so far behind that they slow down all others (off by default).

Compatibility: RocketMQ measures how far behind a pull reads. Here the committed offset is used, so
that a group is checked even if it is not pulling at the moment. Offline groups are not checked,
because they cause no reads.
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
    """Find the groups whose next message in some queue is too far behind the end of the log."""
    slow = []
    for group in list(groups):
        oldest = yield from _oldest_place(group, offsets, store, log_end=log_end)
        if log_end - oldest > behind_bytes_max:
            slow.append(group.name)
    return slow


def _oldest_place(
    group: ConsumerGroup, offsets: Offsets, store: Reader, *, log_end: int
) -> Lookup[int]:
    """Find the lowest log position of the group's next messages, or the end of the log if none is
    left.
    """
    oldest = log_end
    for topic in list(group.subscriptions):
        for queue_id, offset in list(offsets.queues(group.name, topic).items()):
            place = yield from store.place(topic, queue_id, offset)
            if place >= 0:
                oldest = min(oldest, place)
    return oldest
