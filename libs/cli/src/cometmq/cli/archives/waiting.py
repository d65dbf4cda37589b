# SPDX-License-Identifier: Apache-2.0
"""What backup and restore need to survive a failover: which errors are temporary, and the brokers
that serve now.
"""

from typing import Final

from cometmq.cli.verbs.patience import BUSY
from cometmq.client.admin import AdminClient
from cometmq.client.admin.broker import BrokerAdmin
from cometmq.client.cluster.routes import MASTER_ID
from cometmq.client.errors import NoRoute, SendFailed, broker_missing, no_route
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.errors import CometError, CommandError, Outage

PAUSE_S: Final = 0.5


def may_pass(error: CometError) -> bool:
    """Return whether waiting may help: servers are down, busy, or electing a master."""
    cause = (error.__cause__ or error) if isinstance(error, SendFailed) else error
    if isinstance(cause, CommandError):
        return cause.code in BUSY
    return isinstance(error, Outage | NoRoute)


async def brokers_of(admin: AdminClient, topic: str) -> dict[str, dict[int, BrokerAdmin]]:
    """Return the brokers that have a topic now, by name and id.

    Brokers without a master are not reported as missing, because an election may soon end.
    """
    route = await admin.namesrv.route(topic)
    if route is None:
        raise no_route(topic)
    return {
        data.broker_name: {
            number: admin.broker(address, name=data.broker_name)
            for number, address in data.broker_addrs.items()
        }
        for data in route.broker_datas
    }


async def reader_of(admin: AdminClient, topic: str, name: str) -> BrokerAdmin:
    """Return the master of a broker, or a slave if it has none now."""
    found = (await brokers_of(admin, topic)).get(name)
    if not found:
        raise broker_missing(name)
    return found[min(found)]


async def master_of(admin: AdminClient, place: MessageQueue) -> BrokerAdmin:
    """Return the master of a queue."""
    found = (await brokers_of(admin, place.topic)).get(place.broker_name, {})
    if MASTER_ID not in found:
        raise broker_missing(place.broker_name)
    return found[MASTER_ID]
