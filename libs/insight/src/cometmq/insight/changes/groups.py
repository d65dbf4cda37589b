# SPDX-License-Identifier: Apache-2.0
"""Changes of consumer groups: create, alter and delete; and of the connections of a client."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any, Final

import msgspec

from cometmq.client.admin import AdminClient
from cometmq.client.admin.broker import BrokerAdmin
from cometmq.client.admin.groups import check_deletable, find_group, known_groups
from cometmq.client.errors import ClientError, InvalidArgument
from cometmq.client.message import check_group
from cometmq.insight.changes.change import (
    NAME,
    Change,
    Consequence,
    Done,
    Group,
    Only,
    OnlyCluster,
    Plan,
    Risk,
    arg,
    bad,
    configs_at,
    warn,
)
from cometmq.insight.members import is_ours, members_of
from cometmq.insight.queue_states import queue_states
from cometmq.insight.words import command, counted, listed
from cometmq.remoting.bodies.topic_config import SubscriptionGroupConfig
from cometmq.remoting.errors import CometError, RequestCodeNotSupported
from cometmq.remoting.names import dead_letter_topic, is_system_group, retry_topic
from cometmq.remoting.spelling import did_you_mean

RETRIES_MAX: Final = 1_000_000
_Retries = Annotated[
    int | None,
    arg(
        "Retries before a message becomes a dead letter; 0 and -1 mean none. cometmq consume keeps"
        " to it; Python and Java clients send their own limit with a message (default 16).",
        "Retries",
        ge=-1,
        le=RETRIES_MAX,
    ),
]
_Enabled = Annotated[bool | None, arg("Whether the group may consume.", "Members may read")]
_Broadcast = Annotated[
    bool | None, arg("Whether the group may use broadcasting.", "Members may broadcast")
]


class NoGroup(ClientError):
    """No broker knows a group."""


def check_not_reserved(group: str) -> None:
    """Raise ClientError for a group in which servers and tools store positions of their own."""
    if is_system_group(group):
        raise ClientError(
            f"{group} is a system group, which servers and tools use themselves: it cannot be"
            " created, changed, deleted or used to consume"
        )


async def known_group(
    admin: AdminClient, group: str, *, other_than: str = ""
) -> SubscriptionGroupConfig:
    """Return the settings of a group; raise NoGroup if no broker knows it.

    The error may name a similar group, but not `other_than`, which the user names as well.
    """
    config = await find_group(admin, group)
    if config is None:
        check_not_reserved(group)
        known = [it for it in await known_groups(admin) if is_ours(it) and it != other_than]
        advice = did_you_mean(group, known) or _new_group_text(group)
        raise NoGroup(f"no broker knows the consumer group {group}{advice}")
    return config


def _new_group_text(group: str) -> str:
    try:
        check_group(group)
    except InvalidArgument as error:
        return f", and none can have this name: {error}"
    return f": check the name, or create it: {command('group create', group)}"


def broadcasting_text(group: str) -> str:
    """Return why a group has no progress that could be shown."""
    return (
        f"{group} consumes in broadcasting mode: each member receives every message and keeps its"
        " own offsets, so brokers do not know the progress"
    )


def _state(configs: Mapping[str, SubscriptionGroupConfig]) -> list[dict[str, Any]]:
    """Return the settings that a user sees, by broker."""
    return [
        {
            "broker": name,
            "retries": it.retry_max_times,
            "enabled": it.consume_enable,
            "broadcast_enabled": it.consume_broadcast_enable,
        }
        for name, it in configs.items()
    ]


class CreateGroup(Change, frozen=True, kw_only=True):
    """Create a consumer group; fails if a broker already has it (see alter).

    \b
    EXAMPLE
      cometmq group create billing --retries 5
    """

    name = "group.create"
    risk = Risk.LOW
    is_new = True

    group: Group
    cluster: OnlyCluster = None
    retries: _Retries = 16
    enabled: _Enabled = True
    broadcast: _Broadcast = True

    async def _plan(self, admin: AdminClient) -> Plan:
        group = self.group
        check_group(group)
        check_not_reserved(group)
        masters = await admin.masters_to_change(self.cluster)
        existing = await configs_at(admin, masters, group, lambda it: it.groups())
        refusal = ""
        if existing:
            found = ", ".join(
                f"{it['broker']} ({it['retries']} retries,"
                f" {'enabled' if it['enabled'] else 'disabled'})"
                for it in _state(existing)
            )
            rest = ", which also creates it at the other brokers"
            refusal = (
                f"the consumer group {group} exists at {found}; to change it, use cometmq group"
                f" alter{rest if len(existing) < len(masters) else ''}"
            )
        config = SubscriptionGroupConfig(
            group_name=group,
            retry_max_times=self.retries or 0,
            consume_enable=self.enabled is not False,
            consume_broadcast_enable=self.broadcast is not False,
        )

        async def perform(admin: AdminClient) -> Done:
            await admin.create_group(config, cluster=self.cluster)
            return Done(f"The group {group} exists now.")

        text = "It begins at the end of its topics, unless its members ask for the first message."
        return Plan(
            f"create the group {group}",
            group,
            {},
            {"group": group, "enabled": config.consume_enable, "retries": self.retries},
            perform,
            [Consequence(text)],
            refusal=refusal,
            at=sorted(masters),
            resume=f"alter it: {AlterGroup(group=group, retries=self.retries).command()}",
        )


class AlterGroup(Change, frozen=True, kw_only=True):
    """Change the given settings of a consumer group.

    A broker without the group gets it, with settings copied from another broker, or with those that
    brokers use for a group that has only offsets.

    \b
    EXAMPLE
      cometmq group alter billing --no-enabled
    """

    name = "group.alter"
    asks_if_bad = True
    either = ("retries", "enabled", "broadcast")

    group: Group
    cluster: OnlyCluster = None
    retries: _Retries = None
    enabled: _Enabled = None
    broadcast: _Broadcast = None

    @classmethod
    async def suggested(
        cls, admin: AdminClient, given: Mapping[str, str]
    ) -> Mapping[str, str | Sequence[str]]:
        """Return the present settings."""
        config = await known_group(admin, given["group"])
        flags = {"enabled": config.consume_enable, "broadcast": config.consume_broadcast_enable}
        return {
            "retries": str(config.retry_max_times),
            **{name: "yes" if it else "no" for name, it in flags.items()},
        }

    async def _plan(self, admin: AdminClient) -> Plan:
        group = self.group
        check_not_reserved(group)
        masters = await admin.masters_to_change(self.cluster)
        existing = await configs_at(admin, masters, group, lambda it: it.groups())
        template = next(iter(existing.values()), None) or await known_group(admin, group)
        before = {name: existing.get(name, template) for name in masters}
        given = {
            "retry_max_times": self.retries, "consume_enable": self.enabled,
            "consume_broadcast_enable": self.broadcast,
        }  # fmt: skip
        changes = {name: it for name, it in given.items() if it is not None}
        after = {name: msgspec.structs.replace(it, **changes) for name, it in before.items()}
        found = []
        is_closed = self.enabled is False and template.consume_enable
        if is_closed and (count := (await members_of(admin, group, template)).count):
            found.append(bad(f"{counted(count, 'member')} can no longer read."))
        if self.retries is not None and self.retries < template.retry_max_times:
            found.append(warn("Failing messages become dead letters earlier."))

        async def perform(admin: AdminClient) -> Done:
            homes = await admin.masters_to_change(None, list(after))
            what = f"change the group {group}"
            await admin.change_each(
                homes.values(), lambda it: it.create_group(after[it.name]), what
            )
            return Done(f"The group {group} is changed.")

        is_same = after == before == existing
        return Plan(
            f"change {'nothing of ' if is_same else ''}the group {group}",
            group,
            _state(existing),
            _state(after),
            perform,
            found,
            idle="the group is already like this" if is_same else "",
            at=sorted(masters),
            compared=existing,
        )


class DeleteGroup(Change, frozen=True, kw_only=True):
    """Delete a consumer group; asks for confirmation.

    A broker that is down keeps the group and brings it back when it starts; cluster --expect shows
    whether all brokers are there.

    Its retry and dead-letter topics stay unless --topics is given, because they may hold messages.

    Fails if members are connected, because they would continue without offsets or create the group
    again.

    \b
    EXAMPLE
      cometmq group delete billing --dry-run
    """

    name = "group.delete"
    risk = Risk.HIGH

    group: Group
    cluster: OnlyCluster = None
    offsets: Annotated[
        bool, arg("Whether to delete its offsets, too.", flags="--offsets --keep-offsets")
    ] = True
    topics: Annotated[bool, arg("Also delete its retry and dead-letter topics.")] = False
    force: Annotated[
        bool, arg("Delete the group even if members are connected.", only=Only.COMMANDS)
    ] = False

    async def _plan(self, admin: AdminClient) -> Plan:
        group = self.group
        check_not_reserved(group)
        masters = await admin.masters_to_change(self.cluster)
        existing = await configs_at(admin, masters, group, lambda it: it.groups())
        count = (await members_of(admin, group, await known_group(admin, group))).count
        members = f" with {counted(count, 'connected member')}" if count else ""
        refusal = (
            f"the consumer group {group} is in use{members}; stop them first (cometmq group"
            f" describe {group}), or give --force"
        )
        place = (masters.values(), self.cluster)
        await check_deletable(admin, group, *place, with_offsets=self.offsets)
        own = sorted({retry_topic(group), dead_letter_topic(group)} & set(await admin.topics()))
        found = []
        with suppress(CometError):
            if lag := sum(it.lag for it in await queue_states(admin, group)):
                found.append(bad(f"It has not read {counted(lag, 'message')}."))
        if own:
            fate = "are deleted, too." if self.topics else "stay until they are deleted."
            text = f"Its retry topic and its dead letters {fate}"
            found.append(bad(text) if self.topics else Consequence(text))
        begins = "begins anew" if self.offsets else "continues where it was"
        found.append(Consequence(f"If it comes back, it {begins}."))

        async def perform(admin: AdminClient) -> Done:
            await admin.delete_group(
                group, remove_offsets=self.offsets, cluster=self.cluster, is_forced=self.force
            )
            for topic in own if self.topics else ():
                await admin.delete_topic(topic, cluster=self.cluster)
            fate = "topics_deleted" if self.topics else "topics_kept"
            facts = {"deleted": group, "offsets_deleted": self.offsets, fate: own}
            return Done(f"The group {group} is deleted.", facts)

        return Plan(
            f"delete the consumer group {group}{members}",
            group,
            _state(existing),
            None,
            perform,
            found,
            refusal=refusal if members and not self.force else "",
            at=sorted(masters),
        )


class DisconnectClient(Change, frozen=True, kw_only=True):
    """Close the connections of a consumer or a producer; asks for confirmation.

    Its library connects again within seconds; messages that it has not acknowledged are delivered
    again. RocketMQ's own brokers cannot do this.

    \b
    EXAMPLE
      cometmq group disconnect 10.0.0.9@4711#1
    """

    name = "client.disconnect"
    verb = "group disconnect"
    needs = "operator"

    client: Annotated[str, arg("Client id, as group describe shows it.", "Client", **NAME)]

    async def _plan(self, admin: AdminClient) -> Plan:
        client = self.client
        masters = await admin.masters_to_change()

        async def close(broker: BrokerAdmin) -> int | None:
            try:
                return await broker.disconnect(client)
            except RequestCodeNotSupported:
                return None

        async def perform(admin: AdminClient) -> Done:
            homes = await admin.masters_to_change(None, list(masters))
            counts = dict(
                zip(homes, await admin.change_each(homes.values(), close, f"disconnect {client}"),
                    strict=True)
            )  # fmt: skip
            unable = [name for name, count in counts.items() if count is None]
            if len(unable) == len(counts):
                raise ClientError(
                    "RocketMQ's brokers cannot close the connections of a client: stop its program"
                )
            if not any(counts.values()):
                raise ClientError(f"no client {client} is connected")
            closed = counted(sum(it or 0 for it in counts.values()), "connection")
            more = f" RocketMQ's brokers cannot do this: {listed(unable)}." if unable else ""
            rows = [{"broker": name, "closed": count} for name, count in counts.items()]
            return Done(f"{closed} of {client} were closed.{more}", rows)

        return Plan(
            f"close the connections of {client}",
            client,
            {},
            {},
            perform,
            [
                Consequence(
                    "Its library connects again within seconds; to keep it away, stop the program,"
                    " or take its account's rights."
                ),
                warn(
                    "Its queues go to other members meanwhile, and messages that it has not"
                    " acknowledged are delivered again."
                ),
            ],
            at=sorted(masters),
            leads_to="/connections",
        )


CHANGES: Final = (CreateGroup, AlterGroup, DeleteGroup, DisconnectClient)
