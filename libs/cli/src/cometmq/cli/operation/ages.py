# SPDX-License-Identifier: Apache-2.0
"""Completes a snapshot with the times of topics' newest messages."""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Final

import msgspec

from cometmq.client.admin import AdminClient
from cometmq.insight.model import Snapshot, Topic, TopicKind, Unknown, known
from cometmq.remoting.errors import CometError

ASKED_MAX: Final = 16

Add = Callable[[AdminClient, Snapshot], Awaitable[Snapshot]]


def with_ages(names: Collection[str]) -> Add:
    """Return a function that adds the times of the newest messages of these topics, or of all, to a
    snapshot. Snapshots of many topics lack these times.
    """

    async def add(admin: AdminClient, snapshot: Snapshot) -> Snapshot:
        async def completed(topic: Topic) -> Topic:
            is_wanted = topic.name in names or (not names and topic.kind is TopicKind.NORMAL)
            if not (is_wanted and isinstance(topic.last_write_ms, Unknown)):
                return topic
            async with room:
                try:
                    stats = await admin.topic_stats(topic.name)
                except CometError as error:  # as for a topic that was deleted meanwhile
                    return msgspec.structs.replace(topic, last_write_ms=Unknown(str(error)))
            last_ms = max((it.last_update_timestamp for it in stats.values()), default=0)
            return msgspec.structs.replace(topic, last_write_ms=last_ms or None)

        room = asyncio.Semaphore(ASKED_MAX)
        async with asyncio.TaskGroup() as tasks:
            asked = [tasks.create_task(completed(it)) for it in known(snapshot.topics)]
        topics = (
            snapshot.topics
            if isinstance(snapshot.topics, Unknown)
            else [task.result() for task in asked]
        )
        return msgspec.structs.replace(snapshot, topics=topics)

    return add
