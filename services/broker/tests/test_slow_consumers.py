# SPDX-License-Identifier: Apache-2.0
"""Groups that read too far behind are found."""

from typing import NamedTuple

from cometmq.broker.consumers import ConsumerGroup
from cometmq.broker.offsets import Offsets
from cometmq.broker.slow_consumers import slow_groups
from cometmq.remoting.bodies.heartbeat import SubscriptionData
from cometmq.store.consume_queue import QueueEntry


class FakeQueue(NamedTuple):
    length: int

    def entry(self, offset: int) -> QueueEntry | None:
        return QueueEntry(offset * 100, 100, 0) if 0 <= offset < self.length else None


class FakeStore:
    def queue(self, topic: str, queue_id: int) -> FakeQueue | None:
        return FakeQueue(10) if (topic, queue_id) == ("T", 0) else None


def group(name: str, topic: str = "T") -> ConsumerGroup:
    return ConsumerGroup(name, "", "", "", subscriptions={topic: SubscriptionData(topic=topic)})


def test_only_connected_groups_with_old_positions_count() -> None:
    offsets = Offsets()
    offsets.commit("slow", "T", 0, 3)
    offsets.commit("near", "T", 0, 8)
    offsets.commit("done", "T", 0, 10)
    offsets.commit("away", "T", 0, 0)
    offsets.commit("elsewhere", "T", 0, 0)
    groups = [group("slow"), group("near"), group("done"), group("elsewhere", topic="U")]

    found = slow_groups(groups, offsets, FakeStore(), log_end=1000, behind_bytes_max=500)

    assert list(found) == ["slow"]
