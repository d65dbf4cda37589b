# SPDX-License-Identifier: Apache-2.0
"""Changes of topics: create, clone and alter."""

from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, Final, Literal

import msgspec

from cometmq.client.admin import AdminClient
from cometmq.client.admin.broker import BrokerAdmin
from cometmq.client.errors import ClientError, NoRoute
from cometmq.client.message import check_topic
from cometmq.insight.changes.change import (
    NAME,
    Change,
    Consequence,
    Done,
    Only,
    OnlyBrokers,
    OnlyCluster,
    Plan,
    Risk,
    Topic,
    arg,
    bad,
    configs_at,
)
from cometmq.insight.queue_states import (
    offsets_by_group,
    outlived_note,
)
from cometmq.insight.words import command, counted, listed
from cometmq.remoting.bodies.topic_config import QUEUES_MAX, TopicConfig
from cometmq.remoting.errors import CometError
from cometmq.remoting.message.flags import Perm
from cometmq.remoting.names import (
    DLQ_PREFIX,
    REPLY_SUFFIX,
    RESERVED_TOPIC_PREFIX,
    RETRY_PREFIX,
    is_system_topic,
)

QUEUES_DEFAULT: Final = 8
"""The default of RocketMQ's updateTopic."""
PERMISSIONS: Final = {
    "rw": int(Perm.READ | Perm.WRITE), "r": int(Perm.READ), "w": int(Perm.WRITE), "none": 0,
}  # fmt: skip
_PURPOSES: Final = {RETRY_PREFIX: "retries", DLQ_PREFIX: "dead letters"}
_LOSSES: Final = {Perm.WRITE: "Producers can no longer send to",
                  Perm.READ: "Consumers can no longer read"}  # fmt: skip
_Permission = Literal["rw", "r", "w", "none"]
_MAY: Final = arg(
    "What clients may do: rw, r, w or none.",
    "Clients may",
    labels=("send and consume", "consume only", "send only", "nothing"),
)
_QUEUES: Final = {"ge": 1, "le": QUEUES_MAX}


def permission_text(perm: int) -> str:
    """Return a permission as rw, r, w or none."""
    return ("r" if perm & Perm.READ else "") + ("w" if perm & Perm.WRITE else "") or "none"


def is_servers_topic(name: str) -> bool:
    """Return whether servers of any cluster create a topic of this name."""
    is_special = name.startswith((RETRY_PREFIX, DLQ_PREFIX, RESERVED_TOPIC_PREFIX))
    return is_system_topic(name) or is_special or name.endswith(REPLY_SUFFIX)


async def check_exists(admin: AdminClient, topic: str) -> None:
    """Raise NoRoute if no broker has the topic, without the client's advice to create it."""
    try:
        await admin.route(topic)
    except NoRoute as error:
        raise NoRoute(
            f"no broker has the topic {topic}: check the name; if a broker is down, start it first"
            " (cometmq topic list and cometmq cluster show them)"
        ) from error


def state_of(configs: Mapping[str, TopicConfig]) -> list[dict[str, Any]]:
    """Return the settings that a user sees, by broker."""
    return [
        {
            "broker": name,
            "read_queues": it.read_queue_nums,
            "write_queues": it.write_queue_nums,
            "permission": permission_text(it.perm),
        }
        for name, it in sorted(configs.items())
    ]


async def _put(
    admin: AdminClient, configs: Mapping[str, TopicConfig], what: str, *, is_new: bool = False
) -> None:
    masters = await admin.masters_to_change(None, list(configs))
    await admin.change_each(
        masters.values(), lambda it: it.create_topic(configs[it.name], is_new=is_new), what
    )


# -- create ---------------------------------------------------------------------------------------


class CreateTopic(Change, frozen=True, kw_only=True):
    """Create a topic; fails if a broker already has it (see alter).

    Warns about groups that have offsets from an earlier topic of this name, because they will skip
    messages.

    \b
    EXAMPLE
      cometmq topic create orders --queues 8
    """

    name = "topic.create"
    risk = Risk.LOW
    is_new = True

    topic: Topic
    cluster: OnlyCluster = None
    brokers: OnlyBrokers = ()
    queues: Annotated[
        int, arg("Queues per broker: so many consumers read at the same time.", **_QUEUES)
    ] = QUEUES_DEFAULT
    perm: Annotated[_Permission, _MAY] = "rw"

    async def _plan(self, admin: AdminClient) -> Plan:
        topic = self.topic
        check_topic(topic)
        masters = await admin.masters_to_change(self.cluster, self.brokers or None)
        existing = await configs_at(admin, masters, topic, lambda it: it.topics())
        config = TopicConfig(read_queue_nums=self.queues, write_queue_nums=self.queues)
        added = dict.fromkeys(masters, config)
        refusal = _exists_text(topic, existing, masters)
        refusal = refusal or await admin.too_many_queues(topic, {}, added)
        offsets = await offsets_by_group(admin, masters.values(), topic)
        names = sorted(masters)

        async def perform(admin: AdminClient) -> Done:
            await admin.create_topic(
                topic, queue_count=self.queues, perm=PERMISSIONS[self.perm], broker_names=names
            )
            each = counted(self.queues, "queue")
            return Done(f"The topic {topic} exists now, with {each} per broker.")

        after = {"topic": topic, "brokers": names, "queues": self.queues * len(names)}
        return Plan(
            f"create the topic {topic}",
            topic,
            {},
            {**after, "permission": self.perm},
            perform,
            [Consequence(f"It is created on {listed(names)}.")],
            _group_topic_notes(topic) + ([outlived_note(topic, offsets)] if offsets else []),
            refusal,
            at=names,
            compared=names,
        )


def _exists_text(topic: str, existing: Mapping[str, TopicConfig], masters: Collection[str]) -> str:
    """Return why a topic cannot be created, with the right command; empty if it does not exist."""
    if topic in masters:
        return (
            f"{topic} is the name of a broker, which has a topic of this name for tests of itself;"
            " choose a different name"
        )
    if not existing:
        return ""
    found = ", ".join(
        f"{name} ({it.read_queue_nums} read and {it.write_queue_nums} write queues,"
        f" {permission_text(it.perm)})"
        for name, it in existing.items()
    )
    text = f"the topic {topic} exists at {found}; to change it, use {command('topic alter', topic)}"
    if rest := tuple(name for name in masters if name not in existing):
        create = CreateTopic(topic=topic, brokers=rest).command()
        text += f"; to create it at the other brokers, use {create}"
    return text


def _group_topic_notes(topic: str) -> list[str]:
    """Return a note for a topic that brokers create themselves for a consumer group."""
    return [
        f"{topic} is the topic of the {purpose} of the group {group}; brokers create it when it is"
        f" needed; to create the group: {command('group create', group)}"
        for prefix, purpose in _PURPOSES.items()
        if topic.startswith(prefix)
        for group in [topic.removeprefix(prefix)]
    ]


class CloneTopic(Change, frozen=True, kw_only=True):
    """Create a topic with the settings that another has at each of its brokers.

    Messages and groups are not copied; the order configuration is.

    \b
    EXAMPLE
      cometmq topic clone orders orders-test
    """

    name = "topic.clone"
    has_form = False
    risk = Risk.LOW

    source: Annotated[str, arg("Name of the topic whose settings are taken.", **NAME)]
    topic: Annotated[str, arg("Name of the new topic.", **NAME)]

    async def _plan(self, admin: AdminClient) -> Plan:
        name = self.topic
        check_topic(name)
        masters = await admin.masters_to_change()
        tables = await admin.ask_all(masters.values(), lambda it: it.topics())
        existing = {it.name: topics[name] for it, topics in tables if name in topics}
        configs = {
            it.name: msgspec.structs.replace(topics[self.source], topic_name=name)
            for it, topics in tables
            if self.source in topics
        }
        if not configs:
            raise NoRoute(f"no broker has the topic {self.source}")
        refusal = _exists_text(name, existing, masters)
        if is_servers_topic(name):
            refusal = f"{name} is a name of topics that servers create: choose another"
        order_config = await admin.order_config(self.source)

        async def perform(admin: AdminClient) -> Done:
            await _put(admin, configs, f"create the topic {name}", is_new=True)
            try:
                if order_config is not None:
                    await admin.set_order_config(name, order_config)
            except CometError as error:
                raise ClientError(
                    f"{name} is created, but without the order configuration of {self.source}:"
                    f" {error}"
                ) from error
            return Done(f"The topic {name} exists now, with the settings of {self.source}.")

        return Plan(
            f"create the topic {name} like {self.source}",
            name,
            {},
            state_of(configs),
            perform,
            refusal=refusal or await admin.too_many_queues(name, {}, configs),
            at=sorted(configs),
        )


# -- alter ----------------------------------------------------------------------------------------


class AlterTopic(Change, frozen=True, kw_only=True):
    """Change the given settings of a topic on the brokers that have it.

    Consumers do not see messages in a queue that is not read. To add queues, use --queues, which
    changes read and write queues together. To remove queues without losing messages, set
    --write-queues, wait until the groups have consumed the other queues, and then set --read-queues
    with --force. The command asks for confirmation before it removes permission to read or write.

    \b
    EXAMPLE
      cometmq topic alter orders --queues 16 --dry-run
    """

    name = "topic.alter"
    asks_if_bad = True
    forced = "Allow queues that hold messages or get new ones but are not read."
    either = ("queues", "read_queues", "write_queues", "perm")

    topic: Topic
    cluster: OnlyCluster = None
    brokers: OnlyBrokers = ()
    queues: Annotated[
        int | None, arg("Read and write queues per broker.", only=Only.COMMANDS, **_QUEUES)
    ] = None
    read_queues: Annotated[int | None, arg("Queues that consumers read.", **_QUEUES)] = None
    write_queues: Annotated[int | None, arg("Queues that producers send to.", **_QUEUES)] = None
    perm: Annotated[_Permission | None, _MAY] = None

    @classmethod
    async def suggested(
        cls, admin: AdminClient, given: Mapping[str, str]
    ) -> Mapping[str, str | Sequence[str]]:
        """Return the present settings."""
        configs = await admin.topic_configs(given["topic"])
        if not configs:
            raise NoRoute(f"no broker has the topic {given['topic']}")
        one = next(iter(configs.values()))
        counts = {"read_queues": one.read_queue_nums, "write_queues": one.write_queue_nums}
        return {name: str(it) for name, it in counts.items()} | {"perm": permission_text(one.perm)}

    def _applied_to(self, config: TopicConfig) -> TopicConfig:
        rights = PERMISSIONS["rw"]
        perm = config.perm if self.perm is None else config.perm & ~rights | PERMISSIONS[self.perm]
        return msgspec.structs.replace(
            config,
            read_queue_nums=self.read_queues or self.queues or config.read_queue_nums,
            write_queue_nums=self.write_queues or self.queues or config.write_queue_nums,
            perm=perm,
        )

    async def _plan(self, admin: AdminClient) -> Plan:
        topic = self.topic
        masters = await admin.masters_to_change(self.cluster, self.brokers or None)
        before = await configs_at(admin, masters, topic, lambda it: it.topics())
        if not before:
            text = f"no broker has the topic {topic}; to create it, use cometmq topic create"
            raise NoRoute(text)
        after = {name: self._applied_to(config) for name, config in before.items()}
        what = f"change {'' if after != before else 'nothing of '}the topic {topic}"
        doubts = await _hidden(masters, before, after) or _newly_unread(before, after)
        found = [bad(it) for it in (*doubts, *_cut_off(before, after))]
        if any(it.write_queue_nums != before[name].write_queue_nums for name, it in after.items()):
            text = "Messages with the same sharding key go to other queues from now on."
            found.append(Consequence(text))

        async def perform(admin: AdminClient) -> Done:
            await _put(admin, after, what)
            return Done(f"The topic {topic} is changed at {listed(sorted(after))}.")

        return Plan(
            what,
            topic,
            state_of(before),
            state_of(after),
            perform,
            found or [Consequence("Clients learn of it within 30 s.")],
            refusal=await admin.too_many_queues(topic, before, after),
            idle="" if after != before else "the topic is already like this",
            doubt=" ".join(doubts),
            at=sorted(after),
        )


async def _hidden(
    masters: Mapping[str, BrokerAdmin],
    before: Mapping[str, TopicConfig],
    after: Mapping[str, TopicConfig],
) -> list[str]:
    """Return a sentence about the queues that lose their readers, and the messages in them."""
    hidden: list[str] = []
    for name, config in after.items():
        first, end = config.read_queue_nums, before[name].read_queue_nums
        if first >= end:
            continue
        stats = (await masters[name].topic_stats(config.topic_name)).offset_table
        counts = {queue.queue_id: it.max_offset - it.min_offset for queue, it in stats.items()}
        hidden += [
            f"{name}:{it} ({counted(counts.get(it, 0), 'message')})" for it in range(first, end)
        ]
    advice = "lower the write queues first, and these once all groups have read them"
    return [f"Consumers lose {', '.join(hidden)}: {advice}."] if hidden else []


def _newly_unread(before: Mapping[str, TopicConfig], after: Mapping[str, TopicConfig]) -> list[str]:
    """Return a sentence about the queues that are written to but not read, if a change adds any."""
    unread = {
        name: range(it.read_queue_nums, it.write_queue_nums)
        for name, it in after.items()
        if not before[name].read_queue_nums <= it.read_queue_nums <= it.write_queue_nums
        <= before[name].write_queue_nums
    }  # fmt: skip
    queues = [
        f"{name}:{it[0]}" + (f" to {name}:{it[-1]}" if len(it) > 1 else "")
        for name, it in unread.items()
        if it
    ]
    if not queues:
        return []
    text = (
        f"Producers would send to {', '.join(queues)}, which no consumer reads; to change read and"
        f" write queues together, give --queues {max(it.stop for it in unread.values())}."
    )
    return [text]


def _cut_off(before: Mapping[str, TopicConfig], after: Mapping[str, TopicConfig]) -> list[str]:
    """Return a sentence about the clients that a change of the permission cuts off."""
    return [
        f"{loss} its queues at {', '.join(names)}."
        for flag, loss in _LOSSES.items()
        if (names := [name for name in after if before[name].perm & ~after[name].perm & flag])
    ]


CHANGES: Final = (CreateTopic, CloneTopic, AlterTopic)
