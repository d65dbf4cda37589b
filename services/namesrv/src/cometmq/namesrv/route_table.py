# SPDX-License-Identifier: Apache-2.0
"""Which brokers live, which topics they hold: pure, time and connections are passed in.

Invariants: an address stands at most once in a broker group; a group without addresses does not
exist, nor does a cluster without groups or a topic without queues; the live table has exactly
the addresses of the groups.

Compatibility: topics come from masters (id 0) only, and only when their data version differs
from the known one or the address is new; a topic missing from a new table is *not* removed
(brokers may register single topics); write permission taken by WIPE_WRITE_PERM_OF_BROKER comes
back with the next changed registration.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol, TypeVar

import msgspec

from cometmq.remoting.bodies.route import BrokerData, ClusterInfo, QueueData, TopicRoute
from cometmq.remoting.bodies.topic_config import DataVersion, TopicConfig
from cometmq.remoting.message.flags import Perm

MASTER_ID: Final = 0

V = TypeVar("V")


class Connection(Protocol):
    """What a broker speaks on; the table tells them apart, its user closes them."""

    def close(self) -> None:
        """End the connection."""


class BrokerId(NamedTuple):
    """Who a broker says it is."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str


class Registration(NamedTuple):
    """What a broker announces."""

    broker: BrokerId
    ha_address: str
    data_version: DataVersion
    topics: Iterable[TopicConfig]
    filter_servers: Sequence[str]


class Master(NamedTuple):
    """Where a slave finds its master."""

    address: str
    ha_address: str


class Live(msgspec.Struct, gc=False):
    """What keeps an address in the table: its last word and its connection."""

    broker: BrokerId
    ha_address: str
    data_version: DataVersion
    connection: Connection
    updated_ms: int
    filter_servers: tuple[str, ...] = ()


class RouteStats(NamedTuple):
    """How large the table is and what left it."""

    cluster_count: int
    broker_count: int
    topic_count: int
    registered_count: int
    expired_count: int
    disconnected_count: int


class RouteTable:
    """The name server's whole knowledge of brokers."""

    def __init__(self) -> None:
        """Start empty: brokers announce themselves every 30 seconds."""
        self._groups: dict[str, BrokerData] = {}
        self._clusters: dict[str, dict[str, None]] = {}
        self._topics: dict[str, dict[str, QueueData]] = {}
        self._live: dict[str, Live] = {}
        self._registered_count = 0
        self._expired_count = 0
        self._disconnected_count = 0

    def register(
        self, registration: Registration, *, connection: Connection, now_ms: int
    ) -> Master | None:
        """Take a broker in; return its master if it is a slave and the master is known."""
        broker = registration.broker
        known = self._live.get(broker.address)
        if known is not None and known.broker.broker_name != broker.broker_name:
            self._drop(known.broker.address)  # renamed: it must not stay in two groups
            known = None
        is_new = self._place(broker)
        is_changed = known is None or known.data_version != registration.data_version
        if broker.broker_id == MASTER_ID and (is_new or is_changed):
            for topic in registration.topics:
                self._put_queues(broker.broker_name, topic)
        self._live[broker.address] = Live(
            broker,
            registration.ha_address,
            registration.data_version,
            connection,
            now_ms,
            tuple(registration.filter_servers),
        )
        self._registered_count += 1
        return None if broker.broker_id == MASTER_ID else self._master_of(broker.broker_name)

    def unregister(self, broker: BrokerId) -> None:
        """Take a broker out at its own wish."""
        group = self._groups.get(broker.broker_name)
        if group is not None and group.broker_addrs.get(broker.broker_id) == broker.address:
            self._drop(broker.address)

    def query_data_version(
        self, address: str, version: DataVersion, *, now_ms: int
    ) -> tuple[bool, DataVersion | None]:
        """Return whether `version` is news, and the known one; an old one is a sign of life."""
        live = self._live.get(address)
        if live is None:
            return True, None
        if live.data_version == version:
            live.updated_ms = now_ms
        return live.data_version != version, live.data_version

    def disconnected(self, connection: Connection) -> list[str]:
        """Drop every broker that spoke on this connection last; return their addresses."""
        gone = [address for address, live in self._live.items() if live.connection is connection]
        for address in gone:
            self._drop(address)
        self._disconnected_count += len(gone)
        return gone

    def expire(self, *, now_ms: int, silence_ms_max: int) -> list[Live]:
        """Drop the brokers that were silent too long; the caller closes their connections."""
        gone = [live for live in self._live.values() if live.updated_ms + silence_ms_max < now_ms]
        for live in gone:
            self._drop(live.broker.address)
        self._expired_count += len(gone)
        return gone

    def route(self, topic: str) -> TopicRoute | None:
        """Return where a topic can be read and written, None if nobody holds it."""
        queues = self._topics.get(topic)
        if not queues:
            return None
        groups = [self._groups[name] for name in queues if name in self._groups]
        if not groups:
            return None
        filter_servers = {
            address: list(self._live[address].filter_servers)
            for group in groups
            for address in group.broker_addrs.values()
            if self._live[address].filter_servers
        }
        return TopicRoute(
            broker_datas=[_copy(group) for group in groups],
            filter_server_table=filter_servers,
            queue_datas=list(queues.values()),
        )

    def cluster_info(self) -> ClusterInfo:
        """Return all groups and all clusters."""
        return ClusterInfo(
            broker_addr_table={name: _copy(group) for name, group in self._groups.items()},
            cluster_addr_table={name: list(groups) for name, groups in self._clusters.items()},
        )

    def wipe_write_perm(self, broker_name: str) -> int:
        """Take the write permission of a broker's topics; return how many it has."""
        return self._change_perm(broker_name, lambda perm: perm & ~Perm.WRITE)

    def add_write_perm(self, broker_name: str) -> int:
        """Make all topics of a broker readable and writable; return how many it has."""
        return self._change_perm(broker_name, lambda _: Perm.READ | Perm.WRITE)

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Forget a topic everywhere, or in one cluster."""
        queues = self._topics.get(topic)
        if queues is None:
            return
        for broker_name in list(queues if cluster is None else self._clusters.get(cluster, ())):
            queues.pop(broker_name, None)
        if not queues:
            del self._topics[topic]

    def topics(self) -> list[str]:
        """Return all topics."""
        return list(self._topics)

    def topics_of_cluster(self, cluster: str) -> list[str]:
        """Return the topics that any broker of a cluster holds."""
        names = self._clusters.get(cluster, {})
        return [
            topic for topic, queues in self._topics.items() if not names.keys().isdisjoint(queues)
        ]

    def system_topics(self) -> tuple[list[str], str | None]:
        """Return the names of clusters and groups (each is a topic), and one broker's address."""
        names = dict.fromkeys(
            name for cluster, groups in self._clusters.items() for name in (cluster, *groups)
        )
        addresses = (a for group in self._groups.values() for a in group.broker_addrs.values())
        return list(names), next(addresses, None)

    def topics_with_flags(self, *, wanted: int, unwanted: int = 0) -> list[str]:
        """Return the topics whose first queue data has all wanted and no unwanted flags."""
        return [
            topic
            for topic, queues in self._topics.items()
            if _has_flags(next(iter(queues.values())).topic_sys_flag, wanted, unwanted)
        ]

    def stats(self) -> RouteStats:
        """Return sizes and counters."""
        return RouteStats(
            len(self._clusters),
            len(self._live),
            len(self._topics),
            self._registered_count,
            self._expired_count,
            self._disconnected_count,
        )

    def live_brokers(self) -> Mapping[str, Live]:
        """Return what is known of each address."""
        return self._live

    def _place(self, broker: BrokerId) -> bool:
        """Put the address into its group and cluster; True if the group or the id is new there."""
        self._clusters.setdefault(broker.cluster, {})[broker.broker_name] = None
        group = self._groups.get(broker.broker_name)
        if group is None:
            group = BrokerData({}, broker.broker_name, broker.cluster)
            self._groups[broker.broker_name] = group
        addresses = group.broker_addrs
        for other_id in [i for i, a in addresses.items() if a == broker.address]:
            if other_id != broker.broker_id:
                del addresses[other_id]
        replaced = addresses.get(broker.broker_id)
        if replaced not in {None, broker.address}:
            self._live.pop(replaced, None)
        addresses[broker.broker_id] = broker.address
        return replaced is None

    def _put_queues(self, broker_name: str, topic: TopicConfig) -> None:
        queues = self._topics.setdefault(topic.topic_name, {})
        queues[broker_name] = QueueData(
            broker_name=broker_name,
            read_queue_nums=topic.read_queue_nums,
            write_queue_nums=topic.write_queue_nums,
            perm=topic.perm,
            topic_sys_flag=topic.topic_sys_flag,
        )

    def _master_of(self, broker_name: str) -> Master | None:
        address = self._groups[broker_name].broker_addrs.get(MASTER_ID)
        if address is None:
            return None
        return Master(address, self._live[address].ha_address)

    def _change_perm(self, broker_name: str, change: Callable[[int], int]) -> int:
        count = 0
        for queues in self._topics.values():
            queue = queues.get(broker_name)
            if queue is not None:
                queues[broker_name] = msgspec.structs.replace(queue, perm=change(queue.perm))
                count += 1
        return count

    def _drop(self, address: str) -> None:
        """Remove an address, and its group, clusters and topics as far as they become empty."""
        name = self._live.pop(address).broker.broker_name
        addresses = self._groups[name].broker_addrs
        for broker_id in [i for i, other in addresses.items() if other == address]:
            del addresses[broker_id]
        if addresses:
            return
        del self._groups[name]
        _discard_everywhere(self._clusters, name)
        _discard_everywhere(self._topics, name)


def _discard_everywhere(table: dict[str, dict[str, V]], name: str) -> None:
    """Remove `name` from every inner table, and the inner tables that become empty."""
    for key in [key for key, inner in table.items() if name in inner]:
        del table[key][name]
        if not table[key]:
            del table[key]


def _copy(group: BrokerData) -> BrokerData:
    return BrokerData(dict(group.broker_addrs), group.broker_name, group.cluster)


def _has_flags(flags: int, wanted: int, unwanted: int) -> bool:
    return flags & wanted == wanted and not flags & unwanted
