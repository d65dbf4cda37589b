# SPDX-License-Identifier: Apache-2.0
"""Routes as clients use them: queues to send to and read from, and brokers; all is pure."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

import msgspec

from cometmq.client.errors import ClientError, broker_missing, master_missing, read_only
from cometmq.remoting import remarks
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.bodies.route import BrokerData, ClusterInfo, QueueData, TopicRoute
from cometmq.remoting.bodies.topic_config import QUEUES_MAX
from cometmq.remoting.errors import CommandError, RemoteProtocolError, TopicNotExist
from cometmq.remoting.message.flags import Perm
from cometmq.remoting.transport.addresses import is_address

MASTER_ID: Final = 0
ADDRESSES_MAX: Final = 1_024
"""Brokers of one topic or of all clusters; clients connect to each. A route of them takes 20 ms."""
_OF_ANOTHER_MASTER: Final = (remarks.NOT_THE_MASTER, remarks.ENDS_UNCONFIRMED)
_DIGITS_MAX: Final = 20
_QUEUE_REFUSED: Final = re.compile(r"(?:request )?queueId\[\d+\] is illegal")


class Route(msgspec.Struct, frozen=True):
    """The route of one topic, prepared for choosing queues."""

    topic: str
    publish_queues: tuple[MessageQueue, ...]
    subscribe_queues: tuple[MessageQueue, ...]
    brokers: Mapping[str, Mapping[int, str]]
    """Addresses by broker name and broker id."""
    queue_counts: Mapping[str, int] = {}
    """Number of queues of each broker, regardless of their permissions."""
    is_default: bool = False
    """Copied from the default topic: no broker has the topic yet, but a send may create it."""

    def has(self, queue: MessageQueue) -> bool:
        return queue.queue_id < self.queue_counts.get(queue.broker_name, 0)


def checked_route(topic: str, data: TopicRoute) -> TopicRoute:
    """Return a name server's response without malformed addresses, so that one wrong registration
    does not keep clients from the other brokers.

    Raise RemoteProtocolError if it claims more than QUEUES_MAX queues or ADDRESSES_MAX brokers.
    """
    # Before they are visited: an answer of 16 MiB may list millions, which took 15 s.
    order_count = (data.order_topic_conf or "").count(";")
    entries_count = max(len(data.broker_datas), len(data.queue_datas), order_count)
    _check_count(f"the route of {topic}", entries_count)
    count = sum(max(0, it.read_queue_nums, it.write_queue_nums) for it in data.queue_datas)
    count = max(count, sum(number for _, number in order_counts(data.order_topic_conf)))
    if count > QUEUES_MAX:
        names = ", ".join(sorted({it.broker_name for it in data.queue_datas}))
        raise RemoteProtocolError(
            f"the route of {topic} has {count:,} queues, more than {QUEUES_MAX:,}: correct the"
            f" topic at {names}, or its order configuration"
        )
    _check_count(f"the route of {topic}", _addresses(data.broker_datas))
    return msgspec.structs.replace(data, broker_datas=[*map(_reachable, data.broker_datas)])


def checked_cluster(data: ClusterInfo) -> ClusterInfo:
    """Return a name server's response without malformed addresses, and without the names of brokers
    that have no address in it.

    Raise RemoteProtocolError if it claims more than ADDRESSES_MAX brokers.
    """
    _check_count("the list of clusters", _addresses(data.broker_addr_table.values()))
    brokers = {name: _reachable(it) for name, it in data.broker_addr_table.items()}
    clusters = {
        cluster: [name for name in names if name in brokers]
        for cluster, names in data.cluster_addr_table.items()
    }
    return ClusterInfo(brokers, clusters)


def _addresses(brokers: Iterable[BrokerData]) -> int:
    return sum(max(1, len(it.broker_addrs)) for it in brokers)


def _check_count(what: str, count: int) -> None:
    if count > ADDRESSES_MAX:
        raise RemoteProtocolError(
            f"{what} has {count:,} brokers, more than {ADDRESSES_MAX:,}: check who registers"
            " them at the name servers"
        )


def _reachable(data: BrokerData) -> BrokerData:
    found = {number: it for number, it in data.broker_addrs.items() if is_address(it)}
    return msgspec.structs.replace(data, broker_addrs=found)


def route_of(topic: str, data: TopicRoute) -> Route:
    """Convert a name server's response to a route.

    Messages are sent to the queues of writable topics on brokers with a master. If the topic has an
    order configuration (`broker:count;broker:count`), it overrides the number of queues.
    """
    brokers = {broker.broker_name: dict(broker.broker_addrs) for broker in data.broker_datas}
    queues = sorted(data.queue_datas, key=lambda queue: queue.broker_name)
    ordered = _ordered_queues(topic, data.order_topic_conf)
    publish = ordered or [
        MessageQueue(topic, queue.broker_name, number)
        for queue in queues
        if queue.perm & Perm.WRITE and MASTER_ID in brokers.get(queue.broker_name, {})
        for number in range(queue.write_queue_nums)
    ]
    subscribe = [
        MessageQueue(topic, queue.broker_name, number)
        for queue in queues
        if queue.perm & Perm.READ
        for number in range(queue.read_queue_nums)
    ]
    counts = {
        queue.broker_name: max(queue.read_queue_nums, queue.write_queue_nums) for queue in queues
    }
    # A queue that is listed twice would be given to two members of a group.
    queues_of = (tuple(dict.fromkeys(publish)), tuple(dict.fromkeys(subscribe)))
    return Route(topic, *queues_of, brokers, counts)


def unsendable(route: Route) -> ClientError:
    """Return the error for a route without a queue to send to."""
    without = [name for name, ids in route.brokers.items() if MASTER_ID not in ids]
    return master_missing(without) if without else read_only(route.topic, route.brokers)


def as_default_route(topic: str, data: TopicRoute, *, queue_nums: int) -> Route | None:
    """Return the route that `topic` will have after a send creates it from the default topic, or
    None if no broker has the default topic.

    A broker creates topics only from a default topic with the permission INHERIT. With
    autoCreateTopicEnable=false, RocketMQ's brokers take that permission from TBW102 at the first
    send that they refuse, and ours register TBW102 without it.

    If the default topic has the permission on no broker, the route contains all brokers. The reason
    is that name servers forget INHERIT when an administrator restores the write permission of a
    broker (`addWritePerm`), although the broker still creates topics.
    """
    has_inherited = any(queue.perm & Perm.INHERIT for queue in data.queue_datas)
    queue_datas = []
    for queue in data.queue_datas:
        if has_inherited and queue.perm & Perm.WRITE and not queue.perm & Perm.INHERIT:
            continue
        count = min(queue_nums, queue.read_queue_nums)
        queue_datas.append(
            QueueData(
                broker_name=queue.broker_name,
                perm=queue.perm,
                read_queue_nums=count,
                write_queue_nums=count,
                topic_sys_flag=queue.topic_sys_flag,
            )
        )
    if not queue_datas:
        return None
    route = route_of(topic, TopicRoute(broker_datas=data.broker_datas, queue_datas=queue_datas))
    return msgspec.structs.replace(route, is_default=True)


def created_part(route: Route, broker_names: Collection[str]) -> Route:
    """Return a default route restricted to the brokers that have created the topic."""
    return msgspec.structs.replace(
        route,
        publish_queues=tuple(q for q in route.publish_queues if q.broker_name in broker_names),
        subscribe_queues=tuple(q for q in route.subscribe_queues if q.broker_name in broker_names),
        queue_counts={
            name: count for name, count in route.queue_counts.items() if name in broker_names
        },
    )


def _ordered_queues(topic: str, text: str | None) -> list[MessageQueue]:
    return [
        MessageQueue(topic, name, number)
        for name, count in order_counts(text)
        for number in range(count)
    ]


def order_counts(text: str | None) -> list[tuple[str, int]]:
    """Return the brokers of an order configuration with their numbers of queues."""
    items = [item.rpartition(":") for item in (text or "").split(";")]
    return [
        (name, int(count[:_DIGITS_MAX]))
        for name, colon, count in items
        if colon and count.isascii() and count.isdigit()
    ]


def contradicts(error: Exception) -> bool:
    """Return whether a broker refused a request because it lacks a topic or queue in the route.

    Brokers refuse an unknown queue with a general error code, so this function also checks the
    remark.
    """
    if isinstance(error, TopicNotExist):
        return True
    return isinstance(error, CommandError) and _QUEUE_REFUSED.match(error.remark) is not None


def names_former_master(error: Exception) -> bool:
    """Return whether a broker refuses because its group has, or soon will have, a new master.

    A fenced master, for example one that was frozen, returns at its address and accepts connections
    and heartbeats, so only its refusals reveal the change.
    """
    return isinstance(error, CommandError) and any(
        part in error.remark for part in _OF_ANOTHER_MASTER
    )


class BrokerAddresses:
    """Addresses by broker name and broker id."""

    def __init__(self) -> None:
        self._brokers: dict[str, Mapping[int, str]] = {}

    def get(self, broker_name: str) -> Mapping[int, str]:
        """Return the addresses of a broker name by id; empty if the name is unknown."""
        return self._brokers.get(broker_name, {})

    def update(self, brokers: Mapping[str, Mapping[int, str]]) -> None:
        self._brokers.update(brokers)

    def clear(self) -> None:
        self._brokers.clear()

    def all(self, *, with_slaves: bool) -> Iterator[str]:
        """Yield the addresses of all known masters, and on request of their slaves."""
        for broker in self._brokers.values():
            for broker_id, address in broker.items():
                if with_slaves or broker_id == MASTER_ID:
                    yield address

    def has_master(self, broker_name: str) -> bool:
        return MASTER_ID in self.get(broker_name)

    def master(self, broker_name: str) -> str:
        """Return the address of the master; raise BrokerMissing if there is none."""
        address = self._ids(broker_name).get(MASTER_ID)
        if address is None:
            raise master_missing([broker_name])
        return address

    def any_of(self, broker_name: str, *, preferred_id: int = MASTER_ID) -> tuple[int, str]:
        """Return the id and address of the preferred broker of a name, or of another member."""
        addresses = self._ids(broker_name)
        for broker_id in (preferred_id, preferred_id + 1):
            if broker_id in addresses:
                return broker_id, addresses[broker_id]
        return min(addresses.items())

    def _ids(self, broker_name: str) -> Mapping[int, str]:
        addresses = self.get(broker_name)
        if not addresses:
            raise broker_missing(broker_name)
        return addresses
