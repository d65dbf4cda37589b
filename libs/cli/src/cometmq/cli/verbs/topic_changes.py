# SPDX-License-Identifier: Apache-2.0
"""Topic and group settings at each broker, and the messages that changing them would hide."""

from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

import msgspec

from cometmq.cli.words import counted
from cometmq.client.admin import AdminClient
from cometmq.client.admin.broker import BrokerAdmin
from cometmq.remoting.bodies.topic_config import TopicConfig

C = TypeVar("C")


class Change(msgspec.Struct, frozen=True):
    """The topic settings to change; None leaves a setting unchanged."""

    read_queues: int | None = None
    write_queues: int | None = None
    perm: int | None = None

    def applied_to(self, config: TopicConfig) -> TopicConfig:
        """Return the settings after the change."""
        return msgspec.structs.replace(
            config,
            read_queue_nums=self.read_queues or config.read_queue_nums,
            write_queue_nums=self.write_queues or config.write_queue_nums,
            perm=config.perm if self.perm is None else self.perm,
        )


class HiddenQueue(msgspec.Struct, frozen=True):
    """A queue that consumers no longer read after a change."""

    broker: str
    queue_id: int
    message_count: int

    def __str__(self) -> str:
        return f"{self.broker}:{self.queue_id} ({counted(self.message_count, 'message')})"


async def configs_at(
    admin: AdminClient,
    masters: Mapping[str, BrokerAdmin],
    name: str,
    table_of: Callable[[BrokerAdmin], Awaitable[Mapping[str, C]]],
) -> dict[str, C]:
    """Return the settings of a topic or group at each broker that has it; all must answer."""
    tables = await admin.ask_all(masters.values(), table_of)
    return {broker.name: table[name] for broker, table in tables if name in table}


async def hidden_queues(
    masters: Mapping[str, BrokerAdmin],
    before: Mapping[str, TopicConfig],
    after: Mapping[str, TopicConfig],
) -> list[HiddenQueue]:
    """Return the queues that lose their readers, with the number of messages in them."""
    hidden: list[HiddenQueue] = []
    for name, config in after.items():
        first, end = config.read_queue_nums, before[name].read_queue_nums
        if first >= end:
            continue
        stats = (await masters[name].topic_stats(config.topic_name)).offset_table
        counts = {queue.queue_id: it.max_offset - it.min_offset for queue, it in stats.items()}
        hidden += [HiddenQueue(name, number, counts.get(number, 0)) for number in range(first, end)]
    return hidden
