# SPDX-License-Identifier: Apache-2.0
"""Administration of consumer groups and their members, on all brokers."""

from cometmq.client.admin.known_groups import (
    check_deletable,
    check_disconnected,
    check_known,
    settings_of_groups,
)
from cometmq.client.admin.scope import AdminBase
from cometmq.client.arguments import check_kind, checked_header, whole
from cometmq.client.message import check_group
from cometmq.client.settings import MessageModel
from cometmq.remoting.bodies.connections import ConsumerConnections, ProducerConnections
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.bodies.running_info import ConsumerRunningInfo
from cometmq.remoting.bodies.stats import QueueTimeSpan
from cometmq.remoting.bodies.topic_config import SubscriptionGroupConfig
from cometmq.remoting.errors import CommandError, ConsumerNotOnline, ServerError


class GroupAdmin(AdminBase):
    """Manages consumer groups: changes go to every master, queries to all brokers concerned."""

    async def groups(self) -> dict[str, SubscriptionGroupConfig]:
        """Return the consumer groups for which a master stores settings."""
        return await settings_of_groups(self)

    async def create_group(
        self, config: SubscriptionGroupConfig, *, cluster: str | None = None
    ) -> None:
        """Create or change a consumer group on every master.

        Raise BrokerMissing, before any change, if a broker has no master.
        """
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
