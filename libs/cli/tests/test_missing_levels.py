# SPDX-License-Identifier: Apache-2.0
"""The notes about delayed messages: in levels that settings lack, and of a deleted topic."""

from typing import Any

from cometmq.client.admin.scope import AdminBase
from cometmq.insight.queue_states import missing_level_notes, waiting_counts
from cometmq.remoting.bodies.offsets import DelayOffsetTable
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.bodies.stats import TopicOffset, TopicStats
from cometmq.remoting.errors import NoPermission
from cometmq.remoting.names import SCHEDULE_TOPIC


class Master:
    def __init__(self, name: str, levels: str) -> None:
        self.name = name
        self.levels = levels

    async def config(self) -> dict[str, str]:
        if not self.levels:
            raise NoPermission("only for administrators")
        return {"messageDelayLevel": self.levels}

    async def delay_offsets(self) -> DelayOffsetTable:
        return DelayOffsetTable({1: 3, 2: 5, 3: 2}, recalled={1: {2: "a", 4: "b"}, 3: {6: "c"}})

    async def topic_stats(self, topic: str) -> TopicStats:
        assert topic == SCHEDULE_TOPIC
        ends = ((0, 9), (0, 5), (4, 7), (0, 1))
        return TopicStats({
            MessageQueue(topic, "b", number): TopicOffset(min_offset=first, max_offset=end)
            for number, (first, end) in enumerate(ends)
        })  # fmt: skip


class Cluster:
    def __init__(self, *levels: str) -> None:
        self.levels = levels

    async def masters(self) -> dict[str, Master]:
        names = [f"b{number}" for number in range(len(self.levels))]
        return {name: Master(name, it) for name, it in zip(names, self.levels, strict=True)}

    ask_each = AdminBase.ask_each


async def test_messages_in_missing_levels_are_named() -> None:
    admin: Any = Cluster("1s", "1s 5s 10s", "1s 5s 10s 30s", "")
    first, second = await missing_level_notes(admin)
    assert first.startswith("b0: 3 delayed messages in level 3, 4 wait until messageDelayLevel,")
    assert second == (
        "b1: 1 delayed message in level 4 waits until messageDelayLevel, which has 3 levels, has"
        " the level again"
    )


async def test_recalled_messages_do_not_wait() -> None:
    masters: Any = (await Cluster("1s", "1s").masters()).values()
    assert await waiting_counts(masters) == dict.fromkeys(("b0", "b1"), 5 + 2 + 1)
