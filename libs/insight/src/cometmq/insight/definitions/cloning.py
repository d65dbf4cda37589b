# SPDX-License-Identifier: Apache-2.0
"""Creates a topic with the settings that another topic has on each of its brokers."""

from collections.abc import Mapping

import msgspec

from cometmq.client.admin import AdminClient
from cometmq.client.admin.broker import BrokerAdmin
from cometmq.client.errors import ClientError, NoRoute
from cometmq.client.message import check_topic
from cometmq.insight.definitions.state import is_servers_topic
from cometmq.remoting.bodies.topic_config import TopicConfig
from cometmq.remoting.errors import CometError


class Clone(msgspec.Struct, frozen=True):
    """A checked request to create a topic."""

    source: str
    name: str
    masters: Mapping[str, BrokerAdmin]
    configs: Mapping[str, TopicConfig]
    """The settings to create, by broker."""
    order_config: str | None


async def prepare_clone(admin: AdminClient, source: str, name: str) -> Clone:
    """Check that a topic can be cloned; raise NoRoute if it does not exist, and ClientError if the
    new one does.
    """
    check_topic(name)
    if is_servers_topic(name):
        raise ClientError(f"{name} is a name of topics that servers create: choose another")
    masters = await admin.masters_to_change()
    if name in masters:
        raise ClientError(f"{name} is the name of a broker: choose another")
    tables = await admin.ask_all(masters.values(), lambda it: it.topics())
    homes = [it.name for it, topics in tables if name in topics]
    if homes:
        raise ClientError(f"the topic {name} exists already at {', '.join(homes)}")
    configs = {it.name: topics[source] for it, topics in tables if source in topics}
    if not configs:
        raise NoRoute(f"no broker has the topic {source}")
    copies = {it: msgspec.structs.replace(one, topic_name=name) for it, one in configs.items()}
    if refusal := await admin.too_many_queues(name, {}, copies):
        raise ClientError(refusal)
    return Clone(
        source,
        name,
        masters,
        copies,
        await admin.order_config(source),
    )


async def clone(admin: AdminClient, wanted: Clone) -> None:
    """Create the topic at each broker, then its order configuration; raise ClientError if one
    fails.
    """
    await admin.change_each(
        [admin.broker(wanted.masters[it].address, name=it) for it in wanted.configs],
        lambda it: it.create_topic(wanted.configs[it.name], is_new=True),
        f"create the topic {wanted.name}",
    )
    if wanted.order_config is not None:
        try:
            await admin.set_order_config(wanted.name, wanted.order_config)
        except CometError as error:
            raise ClientError(
                f"{wanted.name} is created, but without the order configuration of"
                f" {wanted.source}: {error}"
            ) from error
