# SPDX-License-Identifier: Apache-2.0
"""Looks up the groups that commands name, and refuses unknown ones."""

from cometmq.cli.outcome import MISSING
from cometmq.client.admin import AdminClient
from cometmq.client.errors import ClientError
from cometmq.insight.changes import groups
from cometmq.remoting.bodies.topic_config import SubscriptionGroupConfig


async def known_group(admin: AdminClient, group: str) -> SubscriptionGroupConfig:
    """Return the settings of a group; raise ClientError if no broker that answers knows it."""
    try:
        return await groups.known_group(admin, group)
    except groups.NoGroup as error:
        if not MISSING:
            raise
        raise ClientError(
            f"the brokers that answer do not know the consumer group {group}; others may know it"
        ) from error
