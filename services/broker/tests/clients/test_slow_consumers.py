# SPDX-License-Identifier: Apache-2.0

from typing import Any

from cometmq.broker.clients.consumers import ConsumerGroup
from cometmq.broker.tables.offsets import Offsets
from cometmq.broker.timers import slow_groups
from cometmq.remoting.bodies.heartbeat import SubscriptionData
from cometmq.store.reads import Lookup, finish


class FakeStore:
    def place(self, topic: str, queue_id: int, offset: int) -> Lookup[int]:
        yield from ()
        return offset * 100 if (topic, queue_id) == ("T", 0) and offset < 10 else -1


def group(name: str, topic: str = "T") -> ConsumerGroup:
    return ConsumerGroup(name, "", "", "", subscriptions={topic: SubscriptionData(topic=topic)})


def test_only_connected_groups_far_behind_are_slow() -> None:
    offsets = Offsets()
    offsets.commit("slow", "T", 0, 3)
    offsets.commit("near", "T", 0, 8)
    offsets.commit("done", "T", 0, 10)
    offsets.commit("away", "T", 0, 0)
    offsets.commit("elsewhere", "T", 0, 0)
    groups = [group("slow"), group("near"), group("done"), group("elsewhere", topic="U")]

    store: Any = FakeStore()
    found = slow_groups(groups, offsets, store, log_end=1000, behind_bytes_max=500)

    assert finish(found) == ["slow"]
