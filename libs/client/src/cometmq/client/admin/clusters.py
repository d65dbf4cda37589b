# SPDX-License-Identifier: Apache-2.0
"""Administration of clusters: brokers with statistics, and the expiry of certificates."""

import asyncio

import msgspec

from cometmq.client.admin.figures import BrokerFigures, read_figures
from cometmq.client.admin.scope import AdminBase
from cometmq.remoting.errors import CometError


class ClusterMember(msgspec.Struct, frozen=True):
    """One broker of a cluster, with its statistics or the reason why they are missing."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    figures: BrokerFigures | None
    failure: CometError | None


class ClusterAdmin(AdminBase):
    """Lists the brokers of clusters, and returns when TLS certificates expire."""

    async def members(self, cluster: str | None = None) -> list[ClusterMember]:
        """Return the brokers of one cluster or of all, sorted by cluster, name and id."""
        clusters = (await self.cluster()).cluster_addr_table
        groups = await self.broker_groups(cluster)
        async with asyncio.TaskGroup() as tasks:
            members = [
                tasks.create_task(self._member(of, name, broker_id, broker.address))
                for of, names in sorted(clusters.items())
                if cluster in (None, of)
                for name in sorted(names)
                for broker_id, broker in groups.get(name, {}).items()
            ]
        return [member.result() for member in members]

    def expiries_s(self) -> dict[str, float]:
        """Return when certificates in this client's own TLS files expire, in seconds since 1970, by
        setting.
        """
        return self._running().remoting.expiries_s()

    def peer_expiry_s(self, address: str) -> float | None:
        """Return when the certificate that a server has shown to this client expires, in seconds
        since 1970; None if there is no TLS connection to the address.
        """
        return self._running().remoting.peer_expiry_s(address)

    async def _member(self, cluster: str, name: str, broker_id: int, address: str) -> ClusterMember:
        figures, failure = None, None
        try:
            figures = read_figures(await self.broker(address, name=name).runtime_info())
        except CometError as error:
            failure = error
        return ClusterMember(cluster, name, broker_id, address, figures, failure)
