# SPDX-License-Identifier: Apache-2.0
"""The connected members of a consumer group."""

import msgspec

from cometmq.client.admin import AdminClient
from cometmq.remoting.bodies.connections import ConsumerConnections
from cometmq.remoting.bodies.topic_config import SubscriptionGroupConfig
from cometmq.remoting.errors import ConsumerNotOnline
from cometmq.remoting.names import BOOT_GROUPS, is_system_group


class GroupMembers(msgspec.Struct, frozen=True):
    """The settings of a group and its connected members."""

    group: str
    config: SubscriptionGroupConfig
    online: ConsumerConnections | None

    @property
    def count(self) -> int:
        """Return the number of connected members."""
        return len(self.online.connection_set) if self.online is not None else 0

    @property
    def model(self) -> str | None:
        """Return the message model, or None if no member is connected."""
        return self.online.message_model if self.online is not None else None

    @property
    def topics(self) -> set[str]:
        """Return the topics to which connected members have subscribed."""
        return set(self.online.subscription_table) if self.online is not None else set()


def is_ours(group: str) -> bool:
    """Return whether a group was created by users, rather than by the servers for their own use."""
    return group not in BOOT_GROUPS and not is_system_group(group)


async def members_of(
    admin: AdminClient, group: str, config: SubscriptionGroupConfig
) -> GroupMembers:
    """Ask the brokers for the connected members."""
    try:
        return GroupMembers(group, config, await admin.consumer_connections(group))
    except ConsumerNotOnline:
        return GroupMembers(group, config, None)
