# SPDX-License-Identifier: Apache-2.0
"""Counts the messages that a consumer group has not consumed yet on a broker, and tells whether
producers still store messages.
"""

from collections import Counter
from collections.abc import Callable

from cometmq.client.admin.broker import BrokerAdmin
from cometmq.client.admin.offsets import lags_in
from cometmq.remoting.bodies.stats import ConsumeStats
from cometmq.remoting.errors import TopicNotExist
from cometmq.remoting.names import retry_topic
from cometmq.remoting.progress import unread


async def unconsumed(master: BrokerAdmin, group: str) -> Counter[str]:
    """Return the number of unconsumed messages of a group on one broker, by topic.

    Request 317, the report on all groups, is not used, because RocketMQ's answer leaves out queues
    that no producer uses any more.
    """
    stats, retries = await _stats(master, group), retry_topic(group)
    # Messages may wait in the retry topic before the group has an offset there.
    if all(queue.topic != retries for queue in stats.offset_table):
        stats.offset_table.update((await _stats(master, group, retries)).offset_table)
    counts: Counter[str] = Counter()
    for found in lags_in(stats):
        if found.lag > 0:
            topic, queue_id = found.queue.topic, found.queue.queue_id
            first = await master.min_offset(topic, queue_id)
            counts[topic] += unread(found.committed_offset, first, found.max_offset)
    return +counts


async def _stats(master: BrokerAdmin, group: str, topic: str | None = None) -> ConsumeStats:
    try:
        return await master.consume_stats(group, topic)
    except TopicNotExist:  # the broker has no offset of the group
        return ConsumeStats()


class Quiet:
    """Tells whether the ends of queues or logs have not moved for a while."""

    def __init__(self, now_ms: Callable[[], int], quiet_ms: int) -> None:
        self._now_ms, self._quiet_ms = now_ms, quiet_ms
        self._ends: dict[str, tuple[int, int]] = {}
        """The last known end of each queue or log, and when it was first seen."""

    def is_quiet(self, place: str, end: int) -> bool:
        """Return whether `end` has been the same for `quiet_ms`; a negative end means that it is
        unknown, and restarts the period.
        """
        now_ms = self._now_ms()
        known = self._ends.get(place)
        if known is None or known[0] != end or end < 0:
            known = self._ends[place] = (end, now_ms)
        return now_ms - known[1] >= self._quiet_ms

    def forget(self) -> None:
        self._ends.clear()
