# SPDX-License-Identifier: Apache-2.0
"""Administration of consumer groups and their members, on all brokers."""

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from cometmq.client.admin.broker import BrokerAdmin
from cometmq.client.admin.scope import AdminBase
from cometmq.client.arguments import check_kind, checked_header, whole
from cometmq.client.errors import ClientError, InvalidArgument
from cometmq.client.message import check_group, check_named
from cometmq.client.settings import MessageModel
from cometmq.remoting.bodies.connections import ConsumerConnections, ProducerConnections
from cometmq.remoting.bodies.offsets import ConsumerOffsetTable
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.bodies.running_info import ConsumerRunningInfo
from cometmq.remoting.bodies.stats import QueueTimeSpan
from cometmq.remoting.bodies.topic_config import SubscriptionGroupConfig
from cometmq.remoting.errors import CommandError, ConsumerNotOnline, ServerError
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
    """Return the groups for which a master stores settings or an offset.

    A client can commit offsets without ever joining its group; brokers then store no settings.
    """
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
    """Return `settings` and the other groups in `names`, with the settings of new groups."""
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


class GroupAdmin(AdminBase):
    """Manages consumer groups: changes go to every master, queries to all brokers concerned."""

    async def groups(self) -> dict[str, SubscriptionGroupConfig]:
        """Return the consumer groups for which a master stores settings."""
        return await settings_of_groups(self)

    async def create_group(
        self, config: SubscriptionGroupConfig, *, cluster: str | None = None
    ) -> None:
        """Create or change a group on every master; BrokerMissing before if one is missing."""
        check_kind(config, SubscriptionGroupConfig, "config")
        check_group(config.group_name)
        _check_numbers(checked_header(config))
        masters = (await self.masters_to_change(cluster)).values()
        await self.change_each(
            masters, lambda it: it.create_group(config), f"create the group {config.group_name}"
        )

    async def delete_group(
        self,
        group: str,
        *,
        remove_offsets: bool = False,
        cluster: str | None = None,
        is_missing_ok: bool = False,
        is_forced: bool = False,
    ) -> None:
        """Delete a consumer group on every master, optionally with its offsets.

        Its retry and dead-letter topics stay until `delete_topic` deletes them.

        Before any change, raise BrokerMissing if a broker has no master. Unless `is_missing_ok` is
        set, also raise InvalidArgument if no master has the group's settings; with
        `remove_offsets`, a committed offset suffices. Unless `is_forced` is set, raise ClientError
        if members are connected.
        """
        masters = (await self.masters_to_change(cluster)).values()
        if not is_missing_ok:
            await check_deletable(self, group, masters, cluster, with_offsets=remove_offsets)
        if not is_forced:
            await check_disconnected(
                masters,
                [group],
                harm="would continue without offsets or create the group again",
                way_out=", or give is_forced=True",
            )
        await self.change_each(
            masters,
            lambda it: it.delete_group(group, remove_offsets=remove_offsets),
            f"delete the group {group}",
        )

    async def consumer_connections(self, group: str) -> ConsumerConnections:
        """Return the connected members of a group; raise ConsumerNotOnline if there are none."""
        found: ConsumerConnections | None = None
        for _, answer in await self.ask_each(
            (await self.masters()).values(),
            lambda it: it.consumer_connections(group),
            skip=(ConsumerNotOnline, ServerError),  # this broker does not know the group
        ):
            if found is None:
                found = answer
            known = {connection.client_id for connection in found.connection_set}
            found.connection_set += [c for c in answer.connection_set if c.client_id not in known]
        if found is None:
            raise ConsumerNotOnline(f"the consumer group[{group}] not online")
        return found

    async def is_broadcasting(self, group: str) -> bool:
        """Return whether members are connected that consume in broadcasting mode.

        They keep their own offsets, so brokers know nothing of their progress.
        """
        try:
            members = await self.consumer_connections(group)
        except CommandError:
            return False
        return members.message_model == MessageModel.BROADCASTING

    async def producer_connections(self, group: str, topic: str) -> ProducerConnections:
        """Return the connected members of a producer group; raise ServerError if there are none."""
        found = ProducerConnections()
        refusal: ServerError | None = None
        for broker in await self._brokers_of(topic):
            try:
                answer = await broker.producer_connections(group)
            except ServerError as error:
                refusal = error  # this broker does not know the group, but a different one may
                continue
            known = {connection.client_id for connection in found.connection_set}
            found.connection_set += [c for c in answer.connection_set if c.client_id not in known]
        if refusal is not None and not found.connection_set:
            raise refusal
        return found

    async def consuming_groups(self, topic: str) -> list[str]:
        """Return the groups that consume a topic or have an offset in it."""
        found: set[str] = set()
        for _, groups in await self.ask_brokers_of(topic, lambda it: it.groups_of(topic)):
            found.update(groups)
        return sorted(found)

    async def time_spans(self, topic: str, group: str) -> list[QueueTimeSpan]:
        """Return when the first, last and last-consumed messages of each queue were stored.

        Raise InvalidArgument if no broker knows the group.
        """
        found: list[QueueTimeSpan] = []
        answers = await self.ask_brokers_of(topic, lambda it: it.time_spans(topic, group))
        for _, spans in answers:
            found += spans
        if not any(span.consume_time_stamp > 0 for span in found):
            await check_known(self, group)  # brokers answer for any group
        return found

    async def running_info(
        self, group: str, client_id: str, *, with_stacks: bool = False
    ) -> ConsumerRunningInfo:
        """Return the running info of a connected consumer, which a broker requests from it.

        A member may be connected to only some of the brokers, so each broker is tried.
        """
        refusal: CommandError = ConsumerNotOnline(f"the consumer group[{group}] not online")
        for master in (await self.masters()).values():
            try:
                return await master.running_info(group, client_id, with_stacks=with_stacks)
            except CommandError as error:
                refusal = error
        raise refusal

    async def member_offsets(
        self, topic: str, group: str, *, client_id: str | None = None
    ) -> dict[str, dict[MessageQueue, int]]:
        """Ask the connected members of a group for their offsets; return them by client id."""
        found: dict[str, dict[MessageQueue, int]] = {}
        for broker in await self._brokers_of(topic):
            for member, offsets in (
                await broker.member_offsets(topic, group, client_id=client_id)
            ).items():
                found.setdefault(member, {}).update(offsets)
        return found


def _check_numbers(config: SubscriptionGroupConfig) -> None:
    """Raise InvalidArgument for a negative number.

    With a negative `retry_max_times`, every failed message would become a dead letter at once. In
    consumer options, by contrast, -1 means the default.
    """
    for name in (
        "retry_max_times",
        "retry_queue_nums",
        "broker_id",
        "which_broker_when_consume_slowly",
    ):
        whole(getattr(config, name), name)
