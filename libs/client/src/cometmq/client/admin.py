# SPDX-License-Identifier: Apache-2.0
"""Admin clients: what concerns several brokers; `broker()` and `namesrv` speak to one kind."""

from collections.abc import Iterable
from typing import Final

from cometmq.client.admin_groups import GroupAdmin, QueueLag
from cometmq.client.admin_messages import MessageAdmin
from cometmq.client.errors import BrokerMissing
from cometmq.client.message import check_topic
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.bodies.stats import TopicOffset
from cometmq.remoting.bodies.topic_config import TopicConfig
from cometmq.remoting.message.flags import Perm

__all__ = ["AdminClient", "QueueLag"]

READ_WRITE: Final = int(Perm.READ | Perm.WRITE)


class AdminClient(GroupAdmin, MessageAdmin):
    """Looks after topics, groups, offsets, brokers and name servers."""

    # -- topics -------------------------------------------------------------------------------

    async def topics(self) -> list[str]:
        """Return the names of all topics."""
        return sorted(await self.namesrv.topics())

    async def create_topic(
        self,
        topic: str,
        *,
        queue_count: int = 8,
        perm: int = READ_WRITE,
        cluster: str | None = None,
        broker_names: Iterable[str] | None = None,
    ) -> list[str]:
        """Create or change a topic at the masters; return their names."""
        check_topic(topic)
        masters = await self.masters(cluster)
        wanted = set(masters if broker_names is None else broker_names)
        if not wanted or not wanted <= masters.keys():
            missing = ", ".join(sorted(wanted - masters.keys())) or "at all"
            raise BrokerMissing(f"there is no master {missing}")
        config = TopicConfig(
            topic_name=topic,
            read_queue_nums=queue_count,
            write_queue_nums=queue_count,
            perm=perm,
        )
        for name in sorted(wanted):
            await masters[name].create_topic(config)
        return sorted(wanted)

    async def delete_topic(self, topic: str, *, cluster: str | None = None) -> None:
        """Delete a topic at every master and name server."""
        for master in (await self.masters(cluster)).values():
            await master.delete_topic(topic)
        await self.namesrv.delete_topic(topic, cluster=cluster)

    async def topic_stats(self, topic: str) -> dict[MessageQueue, TopicOffset]:
        """Return begin, end and last store time of each queue."""
        found: dict[MessageQueue, TopicOffset] = {}
        for broker in await self._brokers_of(topic):
            found.update((await broker.topic_stats(topic)).offset_table)
        return dict(sorted(found.items()))
