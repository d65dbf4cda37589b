# SPDX-License-Identifier: Apache-2.0
"""Reads and changes topics and consumer groups on the brokers, over the remoting protocol."""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable

import msgspec

from cometmq.client.admin import AdminClient
from cometmq.client.admin.broker import BrokerAdmin
from cometmq.client.cluster.routes import MASTER_ID
from cometmq.client.settings import ClientOptions
from cometmq.operator.api_types.topics_and_groups import TOPIC
from cometmq.operator.secrets import Secrets
from cometmq.operator.topics_and_groups.decide import (
    BrokerSeen,
    Config,
    Left,
    is_closed,
    needs_backlog,
    removed_queues,
)
from cometmq.operator.topics_and_groups.item import Declared
from cometmq.operator.unconsumed import unconsumed
from cometmq.remoting.bodies.topic_config import TopicConfig
from cometmq.remoting.errors import CometError, ConsumerNotOnline, Outage
from cometmq.remoting.log import Log
from cometmq.remoting.names import retry_topic
from cometmq.remoting.progress import unread
from cometmq.remoting.transport.settings import TlsSettings

QuietAt = Callable[[str, int], bool]
"""Takes a broker name and an end offset; returns whether the offset has not moved for a while. A
negative offset restarts that period.
"""


class DeclaredBrokers:
    """The brokers of one object, as found through its name servers."""

    def __init__(self, admin: AdminClient, item: Declared) -> None:
        self._admin = admin
        self._item = item
        self._masters: dict[str, BrokerAdmin] = {}
        self.addresses: frozenset[str] = frozenset()
        """The addresses of all masters of the cluster, as the last look has found them."""

    async def look(self, known: Iterable[str], is_quiet: QuietAt) -> tuple[BrokerSeen, ...]:
        """Read the settings on all brokers of the object.

        A deletion also covers the brokers in `known`: a broker that is down would bring the entry
        back. Raise CometError if no name server answers, or if the cluster is unknown.
        """
        item = self._item
        groups = await self._admin.broker_groups(item.spec.cluster_name)
        masters = (brokers.get(MASTER_ID) for brokers in groups.values())
        self.addresses = frozenset(one.address for one in masters if one is not None)
        names = set(item.spec.broker_names or groups)
        if item.is_deleting:
            names |= set(known)
        found = []
        for name in sorted(names):
            master = groups.get(name, {}).get(MASTER_ID)
            if master is None:
                why = "it has no master" if name in groups else "no name server has a route to it"
                found.append(BrokerSeen(name=name, fault=why))
                continue
            self._masters[name] = master
            found.append(await self._look_at(name, master, is_quiet))
        return tuple(found)

    async def put(self, name: str, config: Config) -> None:
        """Write settings on one master; raise CometError if it refuses or does not answer."""
        master = self._masters[name]
        if isinstance(config, TopicConfig):
            await master.create_topic(config)
        else:
            await master.create_group(config)

    async def delete(self) -> None:
        """Delete the entry on all masters, and a topic also from the routes."""
        entry = self._item.entry
        for master in self._masters.values():
            if self._item.kind == TOPIC:
                await master.delete_topic(entry)
            else:
                await master.delete_group(entry)
        if self._item.kind == TOPIC:
            cluster = self._item.spec.cluster_name
            await self._admin.namesrv.delete_topic(entry, cluster=cluster)

    async def _look_at(self, name: str, master: BrokerAdmin, is_quiet: QuietAt) -> BrokerSeen:
        item = self._item
        config: Config | None
        try:
            if item.kind == TOPIC:
                config = (await master.topics()).get(item.entry)
            else:
                config = (await master.groups()).get(item.entry)
        except CometError as error:
            return BrokerSeen(name=name, fault=str(error))
        seen = BrokerSeen(name=name, config=config)
        if not needs_backlog(item, config):
            return seen
        try:
            if isinstance(config, TopicConfig):
                left = await self._left_in_queues(master, removed_queues(item, config))
                end = left.end if is_closed(item, config) else -1
                left = msgspec.structs.replace(left, is_quiet=is_quiet(name, end))
                return msgspec.structs.replace(seen, left=left)
            left = await self._left_to_group(master)
            members = await _count(lambda: master.consumer_connections(item.entry))
            return msgspec.structs.replace(seen, left=left, members=members)
        except CometError as error:
            return msgspec.structs.replace(seen, left_fault=str(error))

    async def _left_in_queues(self, master: BrokerAdmin, queues: range) -> Left:
        """Return the messages in these queues that a consumer group has not consumed, or all of
        them if no consumer group has consumed the topic.
        """
        topic = self._item.entry
        offsets = (await master.topic_stats(topic)).offset_table
        inside = {queue: one for queue, one in offsets.items() if queue.queue_id in queues}
        end = sum(one.max_offset for one in inside.values())
        counts: Counter[str] = Counter()
        groups = await master.groups_of(topic)
        for group in groups:
            for queue, pair in (await master.consume_stats(group, topic)).offset_table.items():
                if bounds := inside.get(queue):
                    lag = unread(pair.consumer_offset, bounds.min_offset, bounds.max_offset)
                    counts[f"group {group}"] += lag
        if not groups:
            stored = sum(one.max_offset - one.min_offset for one in inside.values())
            counts["messages that no consumer group has consumed"] = stored
        return Left(_worst(counts), end)

    async def _left_to_group(self, master: BrokerAdmin) -> Left:
        """Return the messages that the group has not consumed, by topic."""
        group = self._item.entry
        counts: Counter[str] = Counter()
        for topic, count in (await unconsumed(master, group)).items():
            name = "redeliveries" if topic == retry_topic(group) else f"topic {topic}"
            counts[name] = count
        return Left(_worst(counts))


def _worst(counts: Counter[str]) -> tuple[tuple[str, int], ...]:
    return tuple((name, count) for name, count in counts.most_common() if count > 0)


async def _count(connections: Callable[[], Awaitable[object]]) -> int:
    try:
        found = await connections()
    except ConsumerNotOnline:
        return 0
    return len(getattr(found, "connection_set", ()))


def is_outage(error: CometError) -> bool:
    """Return whether the same call may succeed later without a change of the object or the
    brokers.
    """
    return isinstance(error, Outage)


async def open_admin(item: Declared, secrets: Secrets, log: Log) -> AdminClient:
    """Return an admin client for the name servers of an object; raise SecretFault if a Secret that
    its spec names cannot be used.
    """
    spec, namespace = item.spec, item.key[1]
    tls = TlsSettings()
    if spec.tls is not None:
        tls = await secrets.tls(namespace, spec.tls.secret_name)
    account = None
    if spec.account_secret_name is not None:
        account = await secrets.account(namespace, spec.account_secret_name)
    options = ClientOptions(credentials=account, tls=tls)
    return AdminClient(";".join(spec.name_servers), options=options, log=log)
