# SPDX-License-Identifier: Apache-2.0
"""Administration of topics on all their brokers and name servers."""

import re
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from cometmq.client.admin.broker import BrokerAdmin
from cometmq.client.admin.groups import check_disconnected, clear_offsets, groups_in
from cometmq.client.admin.scope import AdminBase
from cometmq.client.arguments import check_kind, whole
from cometmq.client.cluster.routes import order_counts
from cometmq.client.errors import InvalidArgument, NoRoute, shown
from cometmq.client.message import check_named, check_topic
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.bodies.route import QueueData
from cometmq.remoting.bodies.stats import TopicOffset
from cometmq.remoting.bodies.topic_config import TopicConfig, queue_excess
from cometmq.remoting.message.flags import Perm
from cometmq.remoting.names import DLQ_PREFIX, DLQ_REPLAY_GROUP, ORDER_NAMESPACE

READ_WRITE: Final = int(Perm.READ | Perm.WRITE)
PERM_MAX: Final = 15
"""The highest permission: all four bits that RocketMQ defines."""
QUEUES_DEFAULT: Final = 8  # as mqadmin's updateTopic
ORDER_CONFIG: Final = re.compile(r"[^:;\s]+:[0-9]+(;[^:;\s]+:[0-9]+)*;*")
"""The queues of an ordered topic, as clients parse them."""


def order_excess(topic: str, config: str) -> str:
    """Return why clients refuse a topic with this order configuration; empty if they use it."""
    return queue_excess(topic, sum(count for _, count in order_counts(config)))


class TopicAdmin(AdminBase):
    """Manages topics: changes go to every master and name server concerned."""

    async def topics(self) -> list[str]:
        """Return the names of all topics."""
        return sorted(await self.namesrv.topics())

    async def create_topic(
        self,
        topic: str,
        *,
        queue_count: int | None = None,
        perm: int | None = None,
        cluster: str | None = None,
        broker_names: Iterable[str] | None = None,
        is_forced: bool = False,
    ) -> list[str]:
        """Create or change a topic on the masters; return their names.

        A new topic has 8 queues on each broker, and the permission to read and write, unless
        `queue_count` and `perm` say otherwise. On a broker that has the topic, only the given
        settings change. Before any change, raise BrokerMissing if one of the brokers has no master,
        and InvalidArgument if clients would refuse the topic (`too_many_queues`), or if it would
        have fewer queues than before, unless `is_forced` is set, because consumers would not see
        the messages in the removed queues.
        """
        check_topic(topic)
        if queue_count is not None:
            whole(queue_count, "queue_count", low=1)
        if perm is not None:
            whole(perm, "perm", high=PERM_MAX)
        masters = await self.masters_to_change(cluster, broker_names)
        tables = await self.ask_all(masters.values(), lambda it: it.topics())
        before = {broker.name: table[topic] for broker, table in tables if topic in table}
        if queue_count is not None and not is_forced:
            _check_queues(topic, before, queue_count)
        after = {name: _changed(before.get(name), topic, queue_count, perm) for name in masters}
        if refusal := await self.too_many_queues(topic, before, after):
            raise InvalidArgument(refusal)
        await self.change_each(
            masters.values(),
            lambda it: it.create_topic(after[it.name]),
            f"create the topic {topic}",
        )
        return list(masters)

    async def too_many_queues(
        self, topic: str, before: Mapping[str, TopicConfig], after: Mapping[str, TopicConfig]
    ) -> str:
        """Return why clients would refuse the route of a topic after a change of some brokers;
        empty if they would use it, or if the change adds no queue.
        """
        count = _queue_count(after.values())
        if count <= _queue_count(before.values()):
            return ""
        route = await self.namesrv.route(topic)
        others = [] if route is None else route.queue_datas
        count += _queue_count(it for it in others if it.broker_name not in after)
        return queue_excess(topic, count)

    async def topic_configs(self, topic: str) -> dict[str, TopicConfig]:
        """Return the settings of a topic by broker name, at each master that has it and answers."""
        masters = (await self.masters()).values()
        tables = await self.ask_each(masters, lambda it: it.topics())
        return {broker.name: table[topic] for broker, table in tables if topic in table}

    async def put_topic(self, config: TopicConfig, masters: Iterable[BrokerAdmin]) -> None:
        """Create or change a topic on these masters."""
        check_kind(config, TopicConfig, "config")
        check_topic(config.topic_name)
        for master in masters:
            await master.create_topic(config)

    async def delete_topic(
        self,
        topic: str,
        *,
        cluster: str | None = None,
        is_missing_ok: bool = False,
        reset_groups: bool = False,
    ) -> None:
        """Delete a topic on every master and name server.

        Brokers keep the offsets of consumer groups, as in RocketMQ: if the topic is created again,
        a group skips the messages before its old offset. `reset_groups` sets these offsets to 0;
        the positions of `dlq replay` in a dead-letter topic are always set to 0. With
        `is_missing_ok`, this also happens for a topic that was deleted earlier.

        Before any change, raise NoRoute if the topic does not exist, unless `is_missing_ok` is set.
        Raise BrokerMissing if a broker has no master, because the topic would reappear with that
        broker. With `reset_groups`, raise ClientError if a consumer of the topic is connected,
        because it would commit its old offsets again.
        """
        masters = await self.masters_to_change(cluster)
        if not is_missing_ok:
            await self._check_exists(topic, masters, cluster)
        groups: set[str] = set()
        if reset_groups:
            groups = await groups_in(self, masters.values(), topic)
            await check_disconnected(masters.values(), groups)
        await self.change_each(
            masters.values(), lambda it: it.delete_topic(topic), f"delete the topic {topic}"
        )
        await self.namesrv.delete_topic(topic, cluster=cluster)
        if topic.startswith(DLQ_PREFIX):
            groups.add(DLQ_REPLAY_GROUP)
        if groups:
            await self.change_each(
                masters.values(),
                lambda it: clear_offsets(it, topic, groups),
                f"reset the offsets in {topic}",
            )

    async def _check_exists(
        self, topic: str, masters: Mapping[str, BrokerAdmin], cluster: str | None
    ) -> None:
        """Raise NoRoute unless one of these masters has the topic or is in its route."""
        check_named(topic, "topic")
        route = await self.namesrv.route(topic)
        places = [] if route is None else [data.broker_name for data in route.broker_datas]
        if any(name in masters for name in places):
            return
        # Name servers may lag behind the brokers, so the brokers are asked too. They are asked
        # last, because their tables may be large.
        for _, topics in await self.ask_all(masters.values(), lambda it: it.topics()):
            if topic in topics:
                return
        inside = "" if cluster is None else f" of the cluster {cluster}"
        elsewhere = f"; {', '.join(sorted(places))} has it" if places else ""
        raise NoRoute(f"no broker{inside} has the topic {topic}: nothing was deleted{elsewhere}")

    async def topic_stats(self, topic: str) -> dict[MessageQueue, TopicOffset]:
        """Return the begin offset, end offset and last store time of each queue."""
        found: dict[MessageQueue, TopicOffset] = {}
        for _, stats in await self.ask_brokers_of(topic, lambda it: it.topic_stats(topic)):
            found.update(stats.offset_table)
        return dict(sorted(found.items()))

    async def topic_clusters(self, topic: str) -> list[str]:
        """Return the clusters that have a topic."""
        names = {data.broker_name for data in (await self.route(topic)).broker_datas}
        clusters = (await self.cluster()).cluster_addr_table
        return sorted(cluster for cluster, members in clusters.items() if names & set(members))

    # -- topics that keep their queues when brokers change -----------------------------------

    async def order_config(self, topic: str) -> str | None:
        """Return the order configuration of a topic, or None if it has none."""
        return await self.namesrv.get_kv(ORDER_NAMESPACE, topic)

    async def set_order_config(self, topic: str, config: str) -> None:
        """Set the order configuration of a topic: `broker:queues;broker:queues`.

        Raise InvalidArgument for any other form, because Java clients cannot parse it and would
        then have no route to the topic, and for more queues than clients accept.
        """
        check_topic(topic)
        check_kind(config, str, "config")
        if not ORDER_CONFIG.fullmatch(config):
            raise InvalidArgument(
                f"config must be broker:queues;broker:queues, such as 'broker-a:4;broker-b:4', not "
                f"{shown(config)}"
            )
        if refusal := order_excess(topic, config):
            raise InvalidArgument(refusal)
        await self.namesrv.put_kv(ORDER_NAMESPACE, topic, config)

    async def set_order_queues(self, topic: str, broker_name: str, queue_count: int) -> str:
        """Set the queue count of an ordered topic on one broker; return the whole configuration."""
        whole(queue_count, "queue_count", low=1)
        check_kind(broker_name, str, "broker_name")
        check_topic(topic)
        parts = [part for part in (await self.order_config(topic) or "").split(";") if part]
        queues = {part.partition(":")[0]: part for part in parts}
        queues[broker_name] = f"{broker_name}:{queue_count}"
        config = ";".join(queues.values())
        await self.set_order_config(topic, config)
        return config

    async def delete_order_config(self, topic: str) -> None:
        """Delete a topic's order configuration; its brokers' queue counts apply again."""
        await self.namesrv.delete_kv(ORDER_NAMESPACE, topic)


def _queue_count(configs: Iterable[TopicConfig | QueueData]) -> int:
    return sum(max(it.read_queue_nums, it.write_queue_nums) for it in configs)


def _changed(
    config: TopicConfig | None, topic: str, queue_count: int | None, perm: int | None
) -> TopicConfig:
    """Return `config` with the changes made; if it is None, return the settings of a new topic."""
    if config is None:
        config = TopicConfig(
            topic_name=topic,
            read_queue_nums=QUEUES_DEFAULT,
            write_queue_nums=QUEUES_DEFAULT,
            perm=READ_WRITE,
        )
    return msgspec.structs.replace(
        config,
        read_queue_nums=config.read_queue_nums if queue_count is None else queue_count,
        write_queue_nums=config.write_queue_nums if queue_count is None else queue_count,
        perm=config.perm if perm is None else perm,
    )


def _check_queues(topic: str, before: Mapping[str, TopicConfig], queue_count: int) -> None:
    """Raise InvalidArgument if consumers would lose queues of an existing topic."""
    larger = {
        name: config.read_queue_nums
        for name, config in before.items()
        if config.read_queue_nums > queue_count
    }
    if larger:
        places = ", ".join(f"{count} at {name}" for name, count in larger.items())
        raise InvalidArgument(
            f"the topic {topic} exists with more than {queue_count} queues ({places}), and "
            "consumers would not see the messages in the others: nothing was changed; leave out "
            f"queue_count, give at least {max(larger.values())}, or is_forced=True to shrink it "
            "(cometmq topic alter --help shows how to lose no message)"
        )
