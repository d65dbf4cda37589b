# SPDX-License-Identifier: Apache-2.0
"""Admin clients: what concerns several brokers; `broker()` and `namesrv` speak to one kind."""

from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, suppress
from typing import Final

import msgspec

from cometmq.client.admin_broker import FOREVER_MS, KEY_COUNT_MAX, BrokerAdmin
from cometmq.client.admin_namesrv import NamesrvAdmin
from cometmq.client.errors import BrokerMissing, InvalidArgument, NoRoute
from cometmq.client.instance import ClientInstance
from cometmq.client.message import MessageExt, check_group, check_topic
from cometmq.client.routes import MASTER_ID
from cometmq.client.settings import ClientOptions, checked
from cometmq.client.state import Client
from cometmq.remoting.bodies.connections import ConsumerConnections
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.bodies.route import ClusterInfo, TopicRoute
from cometmq.remoting.bodies.stats import TopicOffset
from cometmq.remoting.bodies.topic_config import SubscriptionGroupConfig, TopicConfig
from cometmq.remoting.errors import (
    ConsumerNotOnline,
    QueryNotFound,
    ServerError,
    TopicNotExist,
)
from cometmq.remoting.log import NO_LOG, Log
from cometmq.remoting.message.flags import Perm
from cometmq.remoting.message.ids import host_text, parse_offset_message_id

QUERY_TIMEOUT_MS: Final = 18_000
READ_WRITE: Final = int(Perm.READ | Perm.WRITE)


class QueueLag(msgspec.Struct, frozen=True):
    """How far a group is in one queue."""

    queue: MessageQueue
    max_offset: int
    committed_offset: int
    last_timestamp: int
    """When the message at the committed offset was stored; 0 if unknown."""

    @property
    def lag(self) -> int:
        """Messages that are not consumed yet."""
        return self.max_offset - self.committed_offset


class AdminClient(Client):
    """Looks after topics, groups, offsets, brokers and name servers."""

    KIND = "admin"

    def __init__(
        self, namesrv: str = "", *, options: ClientOptions | None = None, log: Log = NO_LOG
    ) -> None:
        """Prepare; `namesrv` stands for the option of that name."""
        super().__init__()
        self.options = checked(options or ClientOptions(), namesrv)
        self._log = log

    async def _enter(self, stack: AsyncExitStack) -> ClientInstance:
        instance = await ClientInstance.acquire(self.options, log=self._log)
        stack.push_async_callback(instance.release)
        return instance

    # -- whom to ask --------------------------------------------------------------------------

    @property
    def namesrv(self) -> NamesrvAdmin:
        """The name servers."""
        return NamesrvAdmin(self._running().namesrv)

    def broker(self, address: str, *, name: str = "", timeout_ms: int | None = None) -> BrokerAdmin:
        """Return the broker at an address."""
        return BrokerAdmin(
            self._running().remoting,
            address,
            timeout_ms=timeout_ms or self.options.api_timeout_ms,
            name=name,
        )

    async def cluster(self) -> ClusterInfo:
        """Return all broker groups and the clusters they belong to."""
        return await self.namesrv.cluster()

    async def masters(self, cluster: str | None = None) -> dict[str, BrokerAdmin]:
        """Return the masters by broker name, of one cluster or of all."""
        info = await self.cluster()
        if cluster is not None and cluster not in info.cluster_addr_table:
            raise InvalidArgument(f"there is no cluster {cluster}")
        names = info.broker_addr_table if cluster is None else info.cluster_addr_table[cluster]
        found = {}
        for name in sorted(names):
            address = info.broker_addr_table[name].broker_addrs.get(MASTER_ID)
            if address is not None:
                found[name] = self.broker(address, name=name)
        return found

    async def _brokers_of(self, topic: str, *, timeout_ms: int | None = None) -> list[BrokerAdmin]:
        """Return one broker of each group that has the topic, masters first."""
        found = []
        for data in (await self.route(topic)).broker_datas:
            if data.broker_addrs:
                address = data.broker_addrs[min(data.broker_addrs)]
                found.append(self.broker(address, name=data.broker_name, timeout_ms=timeout_ms))
        return found

    # -- topics -------------------------------------------------------------------------------

    async def topics(self) -> list[str]:
        """Return the names of all topics."""
        return sorted(await self.namesrv.topics())

    async def route(self, topic: str) -> TopicRoute:
        """Return the route of a topic; NoRoute without one."""
        route = await self.namesrv.route(topic)
        if route is None:
            raise NoRoute(f"No route info of this topic: {topic}")
        return route

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

    # -- groups -------------------------------------------------------------------------------

    async def groups(self) -> dict[str, SubscriptionGroupConfig]:
        """Return the consumer groups of all masters."""
        found: dict[str, SubscriptionGroupConfig] = {}
        for master in (await self.masters()).values():
            found.update(await master.groups())
        return dict(sorted(found.items()))

    async def create_group(
        self, config: SubscriptionGroupConfig, *, cluster: str | None = None
    ) -> None:
        """Create or change a consumer group at every master."""
        check_group(config.group_name)
        for master in (await self.masters(cluster)).values():
            await master.create_group(config)

    async def delete_group(
        self, group: str, *, remove_offsets: bool = False, cluster: str | None = None
    ) -> None:
        """Delete a consumer group at every master, with its offsets if wanted."""
        for master in (await self.masters(cluster)).values():
            await master.delete_group(group, remove_offsets=remove_offsets)

    async def consumer_connections(self, group: str) -> ConsumerConnections:
        """Return the connected members of a group; ConsumerNotOnline without any."""
        found: ConsumerConnections | None = None
        for master in (await self.masters()).values():
            try:
                answer = await master.consumer_connections(group)
            except (ConsumerNotOnline, ServerError):
                continue  # this broker does not know the group: another may
            if found is None:
                found = answer
            known = {connection.client_id for connection in found.connection_set}
            found.connection_set += [c for c in answer.connection_set if c.client_id not in known]
        if found is None:
            raise ConsumerNotOnline(f"the consumer group <{group}> not online")
        return found

    async def lag(self, group: str, topic: str | None = None) -> list[QueueLag]:
        """Return how far a group is in each queue, its retry topic included."""
        found: dict[MessageQueue, QueueLag] = {}
        for master in (await self.masters()).values():
            try:
                stats = await master.consume_stats(group, topic)
            except (TopicNotExist, ServerError):
                continue  # the group has consumed nothing here
            for queue, pair in stats.offset_table.items():
                found[queue] = QueueLag(
                    queue, pair.broker_offset, pair.consumer_offset, pair.last_timestamp
                )
        return [found[queue] for queue in sorted(found)]

    # -- offsets ------------------------------------------------------------------------------

    async def min_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the oldest message of a queue."""
        return await (await self._master_of(queue)).min_offset(queue.topic, queue.queue_id)

    async def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset that the next message of a queue will get."""
        return await (await self._master_of(queue)).max_offset(queue.topic, queue.queue_id)

    async def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of the message stored nearest to a moment."""
        master = await self._master_of(queue)
        return await master.search_offset(queue.topic, queue.queue_id, timestamp_ms)

    async def committed_offset(self, group: str, queue: MessageQueue) -> int | None:
        """Return the committed offset of a group; None if there is none."""
        master = await self._master_of(queue)
        return await master.committed_offset(group, queue.topic, queue.queue_id)

    async def commit_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Set the offset of a group; connected members do not notice, and overwrite it."""
        master = await self._master_of(queue)
        await master.commit_offset(group, queue.topic, queue.queue_id, offset)

    async def reset_offsets(
        self, group: str, topic: str, timestamp_ms: int
    ) -> dict[MessageQueue, int]:
        """Move a group that is not connected to a moment in every queue; return the offsets."""
        moved: dict[MessageQueue, int] = {}
        for queue in await self.queues(topic):
            moved[queue] = await self.search_offset(queue, timestamp_ms)
            await self.commit_offset(group, queue, moved[queue])
        return moved

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return all queues of a topic that can be read."""
        return sorted(
            MessageQueue(topic, data.broker_name, number)
            for data in (await self.route(topic)).queue_datas
            if data.perm & Perm.READ
            for number in range(data.read_queue_nums)
        )

    async def _master_of(self, queue: MessageQueue) -> BrokerAdmin:
        instance = self._running()
        await instance.routes.find(queue.topic)
        return self.broker(instance.master(queue.broker_name), name=queue.broker_name)

    # -- messages -----------------------------------------------------------------------------

    async def view_message(self, message_id: str, topic: str) -> MessageExt:
        """Return a message by its offset message id or its unique key; QueryNotFound if absent."""
        # What is no offset message id, or not of this cluster, may be a unique key.
        with suppress(ValueError, ServerError, BrokerMissing):
            return await self._view_stored(message_id, topic)
        for message in await self._query(
            topic, lambda broker: broker.query(topic, message_id, is_unique_key=True)
        ):
            return message
        raise QueryNotFound(f"no message of the topic {topic} has the id {message_id}")

    async def query_by_key(
        self,
        topic: str,
        key: str,
        *,
        count_max: int = KEY_COUNT_MAX,
        begin_ms: int = 0,
        end_ms: int = FOREVER_MS,
    ) -> list[MessageExt]:
        """Return messages by key, oldest first; an empty list if there are none."""
        return await self._query(
            topic,
            lambda broker: broker.query(
                topic, key, count_max=count_max, begin_ms=begin_ms, end_ms=end_ms
            ),
        )

    async def _view_stored(self, message_id: str, topic: str) -> MessageExt:
        place = parse_offset_message_id(message_id)
        address = host_text(place.host)
        for data in (await self.route(topic)).broker_datas:
            if address in data.broker_addrs.values():
                broker = self.broker(address, name=data.broker_name)
                return await broker.message_at(place.physical_offset, topic=topic)
        raise BrokerMissing(f"no broker of the topic {topic} has the address {address}")

    async def _query(
        self, topic: str, ask: Callable[[BrokerAdmin], Awaitable[list[MessageExt]]]
    ) -> list[MessageExt]:
        found: list[MessageExt] = []
        for broker in await self._brokers_of(topic, timeout_ms=QUERY_TIMEOUT_MS):
            found += await ask(broker)
        return sorted(found, key=lambda message: message.store_timestamp)
