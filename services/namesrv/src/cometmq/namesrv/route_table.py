# SPDX-License-Identifier: Apache-2.0
"""Live brokers and their topics; pure, because time and connections are parameters.

"Group" means broker group. Invariants, of which kept masters break the first and the last:

- An address occurs at most once in a group.
- There are no groups without addresses, clusters without groups or topics without queues.
- The live brokers are those whose addresses the groups contain.

Kept masters: a group whose brokers register with an epoch (`groupEpoch`) fails over by itself. When
it loses its master, the master's address is kept in the routes for a while, so that clients that
request a route during the failover still find its queues. The next master replaces the address at
once. Before a registration, the caller asks `epochs` whether the group's epoch excludes it. Groups
without epochs, which include all RocketMQ groups, are treated as in RocketMQ.

Compatibility: topics come from masters (id 0) only, and only if their data version differs from the
stored version or the address is new. A topic that is missing from a registration is *not* removed,
because brokers may register single topics. Write permission removed by WIPE_WRITE_PERM_OF_BROKER
returns when the broker next registers a change.

Unlike RocketMQ, a broker's topics can be *in doubt*: then its next registration is read even if the
data version is known. This undoes what other programs change in a broker's name. Topics are in
doubt in three cases:

- One of them was deleted here (DELETE_TOPIC_IN_NAMESRV).
- Another connection has registered the same broker.
- A broker that was unknown has registered a single topic, which may not be its only one.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple, Protocol

import msgspec

from cometmq.namesrv.broker_groups import MASTER_ID, BrokerGroups, BrokerId, copy_of
from cometmq.namesrv.epochs import Epochs
from cometmq.namesrv.topic_routes import Topic, TopicRoutes
from cometmq.remoting.bodies.route import TopicRoute
from cometmq.remoting.bodies.topic_config import DataVersion
from cometmq.runtime.incremental import Steps

STEP_GROUPS: Final = 500
"""Number of groups of a route that are copied in one step of about 1 ms."""
DOUBT_MS: Final = 10_000
FORGOTTEN: Final = DataVersion(-1, -1)
"""A data version that no broker has: stored in place of one whose topics must be read again."""


class Connection(Protocol):
    """A broker's connection; the table only compares connections and never closes one."""

    def close(self) -> None: ...


class Registration(NamedTuple):
    broker: BrokerId
    ha_address: str
    data_version: DataVersion
    topics: Iterable[Topic]
    filter_servers: Sequence[str]
    epoch: int | None = None
    """None unless the broker belongs to a group with failover."""
    is_proven: bool = False
    """The broker has proven that it knows the key of its group."""


class Master(NamedTuple):
    """The addresses of a group's master, with which a slave's registration is answered."""

    address: str
    ha_address: str


class Live(msgspec.Struct, gc=False):
    """A registered broker and the time of its last registration or heartbeat."""

    broker: BrokerId
    ha_address: str
    data_version: DataVersion
    connection: Connection
    updated_ms: int
    filter_servers: tuple[str, ...] = ()
    epoch: int | None = None
    is_in_doubt: bool = False
    """Whether its topics are in doubt (see the module)."""

    def is_doubted(self, connection: Connection) -> bool:
        """Return whether to read a registration over this connection even if its version is
        known.
        """
        return self.is_in_doubt or self.connection is not connection


class RouteTable:
    def __init__(self, doubt_ms: int = DOUBT_MS) -> None:
        """`doubt_ms` is how long an unproven epoch excludes a broker that keeps registering."""
        self.epochs = Epochs(doubt_ms)
        self.groups = BrokerGroups()
        self.topics = TopicRoutes()
        self._live: dict[str, Live] = {}
        self._kept: dict[str, int] = {}  # group -> when its lost master leaves the routes
        self.registered_count = 0
        self.expired_count = 0
        """Number of brokers dropped because they were silent for too long."""
        self.disconnected_count = 0

    def registering(
        self,
        registration: Registration,
        *,
        connection: Connection,
        now_ms: int,
        keep_ms: int = 0,
    ) -> Steps[Master | None]:
        """Add or refresh a broker, with some of its topics per step; for a slave, return its master
        if known.

        If the broker is removed or replaced between two steps, the topics not yet read are left
        out. A master that registers as a slave is kept in the routes as master, too, for `keep_ms`:
        after a planned switchover, it forwards requests to the next master.
        """
        broker = registration.broker
        if self.topics.is_removed(broker.broker_name):
            yield from self.topics.sweeping()
        known = self._live.get(broker.address)
        if known is not None and known.broker.broker_name != broker.broker_name:
            self._drop(known.broker.address)  # an address belongs to one group
            known = None
        if registration.is_proven and not self.epochs.is_proven(broker.broker_name):
            self._drop_others(broker)
        self.epochs.note(
            broker.broker_name, registration.epoch, is_proven=registration.is_proven, now_ms=now_ms
        )
        if broker.broker_id == MASTER_ID:
            self._end_keeping(broker.broker_name)
        elif keep_ms > 0 and known is not None and self._is_leading_member(broker.address):
            self._kept[broker.broker_name] = now_ms + keep_ms
        is_master_kept = broker.broker_name in self._kept
        replaced = self.groups.place(broker, is_master_kept=is_master_kept)
        if replaced is not None and replaced != broker.address:
            self._live.pop(replaced, None)
        is_known = known is not None and known.data_version == registration.data_version
        is_in_doubt = known is not None and known.is_doubted(connection)
        live = self._live[broker.address] = Live(
            broker,
            registration.ha_address,
            DataVersion() if known is None else known.data_version,
            connection,
            now_ms,
            tuple(registration.filter_servers),
            registration.epoch,
            is_in_doubt,
        )
        self.registered_count += 1
        if broker.broker_id == MASTER_ID and (replaced is None or is_in_doubt or not is_known):
            address, name = broker.address, broker.broker_name
            count = yield from self.topics.putting(
                name, registration.topics, lambda: self._live.get(address) is live
            )
            if known is None:  # RocketMQ registers a new topic alone
                live.is_in_doubt = count == 1
            elif is_known and count:  # an unchanged version comes with all topics
                live.is_in_doubt = False
        live.data_version = registration.data_version
        return None if broker.broker_id == MASTER_ID else self._master_of(broker.broker_name)

    def unregister(self, broker: BrokerId) -> None:
        """Remove a broker that is shutting down.

        The address has to match, so that a late request from an old process cannot remove the new
        process that registered with the same id.
        """
        if self.groups.address_of(broker.broker_name, broker.broker_id) != broker.address:
            return
        if broker.broker_id == MASTER_ID and broker.broker_name in self._kept:
            self._end_keeping(broker.broker_name)
            self._remove_if_empty(broker.broker_name)
        else:
            self._drop(broker.address)

    def holder(self, broker: BrokerId, epoch: int | None = None) -> str | None:
        """Return another live address that is registered under this broker's name and id, if any.

        An address with an earlier epoch is not returned: this broker is its successor.
        """
        address = self.groups.address_of(broker.broker_name, broker.broker_id)
        is_kept = broker.broker_id == MASTER_ID and broker.broker_name in self._kept
        live = None if address is None else self._live.get(address)
        held = None if live is None else live.epoch
        is_succeeded = held is not None and epoch is not None and held < epoch
        return None if is_kept or is_succeeded or address == broker.address else address

    def query_data_version(
        self, address: str, version: DataVersion, *, connection: Connection, now_ms: int
    ) -> tuple[bool, DataVersion | None]:
        """Compare `version` with the stored one; return whether the broker has to register again,
        and the stored version.

        An equal version counts as a heartbeat. If the broker's topics are in doubt, the stored
        version becomes FORGOTTEN, so that the next registration is read completely.
        """
        live = self._live.get(address)
        if live is None:
            return True, None
        if live.data_version != version:
            return True, live.data_version
        live.updated_ms = now_ms
        if live.connection is not connection:
            return True, version
        if live.is_in_doubt:
            live.data_version, live.is_in_doubt = FORGOTTEN, False
            return True, version
        return False, version

    def disconnected(
        self, connection: Connection, *, now_ms: int = 0, keep_ms: int = 0
    ) -> list[str]:
        """Drop every broker that last used this connection; return their addresses.

        The address of a master with an epoch stays in the routes for `keep_ms`; then `expire`
        removes it.
        """
        gone = [address for address, live in self._live.items() if live.connection is connection]
        for address in gone:
            if keep_ms > 0 and self._is_leading_member(address):
                self._kept[self._live.pop(address).broker.broker_name] = now_ms + keep_ms
            else:
                self._drop(address)
        self.disconnected_count += len(gone)
        return gone

    def expire(
        self, *, now_ms: int, silence_ms_max: int, count_max: int | None = None
    ) -> list[Live]:
        """Drop brokers that have been silent for too long, at most `count_max` of them; the caller
        closes their connections.

        Remove kept masters from the routes when their time is over.
        """
        for name in [name for name, until_ms in self._kept.items() if until_ms <= now_ms]:
            self._end_keeping(name)
            self._remove_if_empty(name)
        silent = (it for it in self._live.values() if it.updated_ms + silence_ms_max < now_ms)
        gone = list(islice(silent, count_max))
        for live in gone:
            self._drop(live.broker.address)
        self.expired_count += len(gone)
        return gone

    def is_read(self, address: str, version: DataVersion, connection: Connection) -> bool:
        """Return whether the routes have the broker's topics of this version, without doubt."""
        live = self._live.get(address)
        return live is not None and live.data_version == version and not live.is_doubted(connection)

    def count_of(self, connection: Connection) -> int:
        return sum(live.connection is connection for live in self._live.values())

    def routing(self, topic: str) -> Steps[TopicRoute | None]:
        """Return the brokers and queues of a topic, None if it has none; read up to STEP_GROUPS
        groups per step.
        """
        groups, queues = self.groups.by_name, self.topics.of(topic)
        route = TopicRoute([], {}, None, [])
        for number, (name, queue) in enumerate(list(queues.items()), 1):
            if not number % STEP_GROUPS:
                yield
            group = groups.get(name)
            if group is None:
                continue
            route.broker_datas.append(copy_of(group))
            route.queue_datas.append(queue)
            for address in group.broker_addrs.values():
                live = self._live.get(address)
                if live is not None and live.filter_servers:
                    route.filter_server_table[address] = list(live.filter_servers)
        return route if route.broker_datas else None

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Remove a topic from one cluster, or from all."""
        names = None if cluster is None else self.groups.of_cluster(cluster)
        for broker_name in self.topics.delete(topic, names):
            self._doubt(broker_name)

    def topics_of_cluster(self, cluster: str) -> Steps[list[str]]:
        """Return the topics that at least one broker of the cluster has."""
        names = dict(self.groups.of_cluster(cluster))
        return self.topics.selecting(lambda queues: not names.keys().isdisjoint(queues))

    def live_brokers(self) -> Mapping[str, Live]:
        return self._live

    @property
    def filter_server_count(self) -> int:
        """The number of filter servers of all brokers, counted anew: few brokers have any."""
        return sum(len(it.filter_servers) for it in self._live.values())

    def filter_server_count_of(self, address: str) -> int:
        """Return the number of filter servers of one broker."""
        live = self._live.get(address)
        return 0 if live is None else len(live.filter_servers)

    def _doubt(self, broker_name: str) -> None:
        """Make the master of a group register all its topics again."""
        address = self.groups.address_of(broker_name)
        live = None if address is None else self._live.get(address)
        if live is not None:
            live.is_in_doubt = True

    def _drop_others(self, broker: BrokerId) -> None:
        """Drop all other brokers of a group, because `broker` is the first to prove that it knows
        the group's key.

        The other registrations may be forged. Real members return with their next registration,
        which carries a proof.
        """
        others = [
            address
            for address, live in self._live.items()
            if live.broker.broker_name == broker.broker_name and address != broker.address
        ]
        for address in others:
            self._drop(address)

    def _master_of(self, broker_name: str) -> Master | None:
        address = self.groups.address_of(broker_name)
        if address is None or broker_name in self._kept:
            return None
        return Master(address, self._live[address].ha_address)

    def _drop(self, address: str) -> None:
        """Remove an address, and any groups, clusters and topics that become empty."""
        name = self._live.pop(address).broker.broker_name
        self.groups.remove_address(name, address)
        if self.groups.address_of(name) is None:
            self._kept.pop(name, None)
        self._remove_if_empty(name)

    def _remove_if_empty(self, name: str) -> None:
        if self.groups.remove_if_empty(name):
            self.epochs.forget(name)
            self.topics.remove_group(name)

    def _is_leading_member(self, address: str) -> bool:
        """Return whether a live master of a group with epochs has this address."""
        live = self._live.get(address)
        return (
            live is not None
            and live.broker.broker_id == MASTER_ID
            and self.epochs.of(live.broker.broker_name) is not None
        )

    def _end_keeping(self, name: str) -> None:
        """Remove a kept master from its group; the caller removes the group if it is now empty."""
        if self._kept.pop(name, None) is not None:
            self.groups.by_name[name].broker_addrs.pop(MASTER_ID, None)
