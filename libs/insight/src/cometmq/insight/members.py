# SPDX-License-Identifier: Apache-2.0
"""The connected members of a consumer group."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Final

import msgspec

from cometmq.client.admin import AdminClient
from cometmq.insight.reading import each
from cometmq.insight.words import counted, listed
from cometmq.remoting.bodies.connections import ConsumerConnections
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.bodies.topic_config import SubscriptionGroupConfig
from cometmq.remoting.errors import CometError, ConsumerNotOnline
from cometmq.remoting.names import BOOT_GROUPS, is_system_group

MEMBER_TIMEOUT_S: Final = 2.0
"""Timeout for a member's answer about its queues, which a broker requests from it."""
NOBODY: Final = "nobody"


class Owners(msgspec.Struct, frozen=True):
    """The members that read each queue of a group, as the members report."""

    found: Mapping[MessageQueue, Sequence[str]] = {}
    """Client ids by queue; several if members disagree, as while queues are moved."""
    silent: Sequence[str] = ()
    """The members that did not report their queues."""
    is_online: bool = False
    """Whether members are connected that share the queues."""

    def of(self, queue: MessageQueue) -> list[str] | None:
        """Return the owners of a queue: empty if no connected member owns it; None if they are not
        known, or if no member is connected.
        """
        owners = self.found.get(queue)
        if owners is None and self.is_online and not self.silent:
            return []
        return None if owners is None else list(owners)


def owner_words(owners: Sequence[str] | None) -> str | None:
    """Return the owners of a queue, as all tables show them."""
    return None if owners is None else ", ".join(owners) or NOBODY


def silent_notes(owners: Owners) -> list[str]:
    """Return a line about the members that did not report their queues."""
    if not owners.silent:
        return []
    asked = counted(len(owners.silent), "member")
    return [f"{asked} did not say which queues they have: {listed(owners.silent)}"]


async def owners_of(admin: AdminClient, group: str, client_ids: Collection[str]) -> Owners:
    """Ask each of these members which queues it owns."""

    async def queues_of(client_id: str) -> list[MessageQueue] | None:
        try:
            async with asyncio.timeout(MEMBER_TIMEOUT_S):
                info = await admin.running_info(group, client_id)
        except (CometError, TimeoutError):
            return None
        return [queue for queue, it in info.mq_table.items() if not it.droped]

    clients = sorted(set(client_ids))
    found: dict[MessageQueue, list[str]] = {}
    silent = []
    for name, queues in zip(clients, await each(clients, queues_of), strict=True):
        if queues is None:
            silent.append(name)
        for queue in queues or ():
            found.setdefault(queue, []).append(name)
    return Owners(found, silent, is_online=bool(clients))


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
    def sharers(self) -> list[str]:
        """Return the client ids of the members that share the queues; none with BROADCASTING,
        because each member then reads all queues.
        """
        if self.online is None or self.model == "BROADCASTING":
            return []
        return [it.client_id for it in self.online.connection_set]

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
