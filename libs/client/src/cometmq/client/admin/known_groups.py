# SPDX-License-Identifier: Apache-2.0
"""The consumer groups that brokers know: those with settings, and those with only an offset.

A client can commit offsets without ever joining its group; brokers then store no settings for it. A
name that is known in neither way is usually misspelt, and is rejected.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from cometmq.client.admin.broker import BrokerAdmin
from cometmq.client.admin.scope import AdminBase
from cometmq.client.errors import ClientError, InvalidArgument
from cometmq.client.message import check_group, check_named
from cometmq.remoting.bodies.offsets import ConsumerOffsetTable
from cometmq.remoting.bodies.topic_config import SubscriptionGroupConfig
from cometmq.remoting.errors import ConsumerNotOnline
from cometmq.remoting.names import DLQ_PREFIX, RETRY_PREFIX
from cometmq.remoting.spelling import did_you_mean
from cometmq.remoting.visible import command

NEW_GROUP: Final = "is_new_group=True sets the first offsets of a new group"


async def settings_of_groups(admin: AdminBase) -> dict[str, SubscriptionGroupConfig]:
    """Return the groups for which a master stores settings."""
    found: dict[str, SubscriptionGroupConfig] = {}
    masters = (await admin.masters()).values()
    for _, groups in await admin.ask_each(masters, lambda it: it.groups()):
        found.update(groups)
    return dict(sorted(found.items()))


async def known_groups(admin: AdminBase) -> dict[str, SubscriptionGroupConfig]:
    """Return the groups for which a master stores settings or an offset."""
    return with_offsets_only(await settings_of_groups(admin), await _groups_with_offsets(admin))


async def find_group(admin: AdminBase, group: str) -> SubscriptionGroupConfig | None:
    """Return the settings of one group as `known_groups` does; None if no master knows it.

    The offsets, a much larger table, are read only if no master has settings.
    """
    if (found := (await settings_of_groups(admin)).get(group)) is not None:
        return found
    return with_offsets_only({}, await _groups_with_offsets(admin)).get(group)


def with_offsets_only(
    settings: Mapping[str, SubscriptionGroupConfig], names: Iterable[str]
) -> dict[str, SubscriptionGroupConfig]:
    """Return `settings` and the other groups in `names`, with the settings that brokers use for
    them.
    """
    bare = {name for name in names if name not in settings and _can_be_joined(name)}
    added = {name: SubscriptionGroupConfig(group_name=name) for name in bare}
    return dict(sorted({**settings, **added}.items()))


async def check_known(admin: AdminBase, group: str, advice: str = "") -> None:
    """Raise InvalidArgument unless a master stores settings or an offset for the group."""
    check_named(group, "group")
    known = set(await settings_of_groups(admin))
    if group in known:
        return
    known |= await _groups_with_offsets(admin)
    if group not in known:
        more = f" ({advice})" if advice else ""
        raise InvalidArgument(
            f"no broker knows the consumer group {group}{did_you_mean(group, known)}{more}"
        )


async def check_deletable(
    admin: AdminBase,
    group: str,
    masters: Collection[BrokerAdmin],
    cluster: str | None,
    *,
    with_offsets: bool,
) -> None:
    """Raise InvalidArgument unless one of the masters stores something of the group to delete.

    Offsets count only if `with_offsets` is set. Raise an error if a master does not answer, because
    it may know the group. Brokers accept names from heartbeats that clients refuse; such groups can
    be deleted, too.
    """
    known: set[str] = set()
    for _, groups in await admin.ask_all(masters, lambda it: it.groups()):
        known.update(groups)
    if group in known:
        return
    for _, offsets in await admin.ask_all(masters, lambda it: it.consumer_offsets()):
        known.update(_groups_of(offsets))
    if group in known and not with_offsets:
        raise InvalidArgument(
            f"the consumer group {group} has only offsets, and these were to be kept: nothing was"
            " deleted"
        )
    if group not in known:
        check_named(group, "group")
        inside = "" if cluster is None else f" of the cluster {cluster}"
        raise InvalidArgument(
            f"no broker{inside} knows the consumer group {group}: nothing was deleted"
            f"{did_you_mean(group, known)}"
        )


async def _groups_with_offsets(admin: AdminBase) -> set[str]:
    found: set[str] = set()
    masters = (await admin.masters()).values()
    for _, offsets in await admin.ask_each(masters, lambda it: it.consumer_offsets()):
        found |= _groups_of(offsets)
    return found


def _groups_of(offsets: ConsumerOffsetTable) -> set[str]:
    return {place.rpartition("@")[2] for place in offsets.offset_table}


def _can_be_joined(name: str) -> bool:
    """Return whether consumers can use the name; brokers keep offsets under any name."""
    try:
        check_group(name)
    except InvalidArgument:
        return False
    return not name.startswith((RETRY_PREFIX, DLQ_PREFIX))


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
