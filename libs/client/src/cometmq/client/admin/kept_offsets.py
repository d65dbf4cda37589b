# SPDX-License-Identifier: Apache-2.0
"""The offsets of groups that brokers keep when a topic is deleted, as in RocketMQ.

If the topic is created again, the groups continue from these offsets and skip the messages before
them.
"""

from collections.abc import Collection, Iterable

from cometmq.client.admin.broker import BrokerAdmin
from cometmq.client.admin.scope import AdminBase
from cometmq.client.errors import ClientError
from cometmq.remoting.errors import ConsumerNotOnline
from cometmq.remoting.visible import command


async def groups_in(admin: AdminBase, masters: Collection[BrokerAdmin], topic: str) -> set[str]:
    """Return the groups that consume a topic or have an offset in it; the topic may have been
    deleted.

    Raise an error if a master does not answer.
    """
    found: set[str] = set()
    for _, groups in await admin.ask_all(masters, lambda it: it.groups_of(topic)):
        found.update(groups)
    for _, table in await admin.ask_all(masters, lambda it: it.consumer_offsets()):
        places = (place.partition("@") for place in table.offset_table)
        found.update(group for name, _, group in places if name == topic)
    return found


async def check_disconnected(
    masters: Collection[BrokerAdmin],
    groups: Iterable[str],
    *,
    harm: str = "would commit old offsets again",
    way_out: str = "",
) -> None:
    """Raise ClientError if a group has connected members; `harm` describes what they would do."""
    for group in sorted(groups):
        members: set[str] = set()
        for master in masters:
            try:
                found = await master.consumer_connections(group)
            except ConsumerNotOnline:
                continue
            members.update(connection.client_id for connection in found.connection_set)
        if members:
            has = "a connected member" if len(members) == 1 else f"{len(members)} connected members"
            raise ClientError(
                f"the consumer group {group} has {has}, which {harm}; stop the members first"
                f" ({command('group describe', group)}){way_out}"
            )


async def clear_offsets(master: BrokerAdmin, topic: str, groups: Collection[str]) -> None:
    """Set the groups' committed offsets in a topic to 0; the topic may have been deleted."""
    table = (await master.consumer_offsets()).offset_table
    for group in sorted(groups):
        for queue_id, offset in sorted(table.get(f"{topic}@{group}", {}).items()):
            if offset:
                await master.commit_offset(group, topic, queue_id, 0)
