# SPDX-License-Identifier: Apache-2.0
"""The addresses of each broker group, and the groups of each cluster; pure.

A cluster exists as long as it has a group. A caller that removes an address must call
`remove_if_empty` afterwards.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from cometmq.remoting.bodies.route import BrokerData, ClusterInfo

MASTER_ID: Final = 0


class BrokerId(NamedTuple):
    """The identity under which a broker registers."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str


class BrokerGroups:
    def __init__(self) -> None:
        self.by_name: dict[str, BrokerData] = {}
        self._clusters: dict[str, dict[str, None]] = {}
        self._clusters_of: dict[str, set[str]] = {}  # by group

    @property
    def cluster_count(self) -> int:
        return len(self._clusters)

    def of_cluster(self, cluster: str) -> Mapping[str, None]:
        """Return the names of a cluster's groups as the keys of a mapping, in order of arrival."""
        return self._clusters.get(cluster, {})

    def address_of(self, name: str, broker_id: int = MASTER_ID) -> str | None:
        """Return the address of a broker, by default the master's; None if there is none."""
        group = self.by_name.get(name)
        return None if group is None else group.broker_addrs.get(broker_id)

    def place(self, broker: BrokerId, *, is_master_kept: bool) -> str | None:
        """Add an address to its group and cluster; return the address that had its id before.

        An address has one broker id in its group: others are removed, except the master's id if
        `is_master_kept`.
        """
        self._clusters.setdefault(broker.cluster, {})[broker.broker_name] = None
        self._clusters_of.setdefault(broker.broker_name, set()).add(broker.cluster)
        group = self.by_name.get(broker.broker_name)
        if group is None:
            group = BrokerData({}, broker.broker_name, broker.cluster)
            self.by_name[broker.broker_name] = group
        addresses = group.broker_addrs
        stays = {broker.broker_id, MASTER_ID if is_master_kept else None}
        for other_id in [i for i, a in addresses.items() if a == broker.address]:
            if other_id not in stays:
                del addresses[other_id]
        replaced = addresses.get(broker.broker_id)
        addresses[broker.broker_id] = broker.address
        return replaced

    def remove_address(self, name: str, address: str) -> None:
        addresses = self.by_name[name].broker_addrs
        for broker_id in [i for i, other in addresses.items() if other == address]:
            del addresses[broker_id]

    def remove_if_empty(self, name: str) -> bool:
        """Remove a group without addresses, and any cluster that becomes empty; return whether the
        group was removed.
        """
        if self.by_name[name].broker_addrs:
            return False
        del self.by_name[name]
        for cluster in self._clusters_of.pop(name):
            del self._clusters[cluster][name]
            if not self._clusters[cluster]:
                del self._clusters[cluster]
        return True

    def cluster_info(self) -> ClusterInfo:
        return ClusterInfo(
            broker_addr_table={name: copy_of(group) for name, group in self.by_name.items()},
            cluster_addr_table={name: list(groups) for name, groups in self._clusters.items()},
        )

    def system_topics(self) -> tuple[list[str], str | None]:
        """Return the names of all clusters and groups, which RocketMQ lists as topics, and the
        address of any broker.
        """
        names = dict.fromkeys(
            name for cluster, groups in self._clusters.items() for name in (cluster, *groups)
        )
        addresses = (a for group in self.by_name.values() for a in group.broker_addrs.values())
        return list(names), next(addresses, None)


def copy_of(group: BrokerData) -> BrokerData:
    """Return a copy that later registrations do not change."""
    return BrokerData(dict(group.broker_addrs), group.broker_name, group.cluster)
