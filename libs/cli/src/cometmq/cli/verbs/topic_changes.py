# SPDX-License-Identifier: Apache-2.0
"""Topic and group settings on each broker, messages that they hide from consumers, and clones."""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Annotated, TypeVar

import msgspec
import typer

from cometmq.cli.admin import CommandAdmin
from cometmq.cli.connecting import DEFAULT_NAMESRV, DryRunOption, Namesrv, ask
from cometmq.cli.output import AsJson, Cell, print_rows
from cometmq.client.admin import AdminClient
from cometmq.client.admin.broker import BrokerAdmin
from cometmq.client.errors import NoRoute
from cometmq.insight.words import counted
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.bodies.route import QueueData, TopicRoute
from cometmq.remoting.bodies.stats import TopicOffset
from cometmq.remoting.bodies.topic_config import TopicConfig
from cometmq.remoting.errors import TopicNotExist
from cometmq.remoting.message.flags import Perm
from cometmq.remoting.visible import command

C = TypeVar("C")


class Change(msgspec.Struct, frozen=True):
    """The topic settings to change; None leaves a setting unchanged, and so do 0 queues."""

    read_queues: int | None = None
    write_queues: int | None = None
    perm: int | None = None

    def applied_to(self, config: TopicConfig) -> TopicConfig:
        """Return the settings after the change."""
        return msgspec.structs.replace(
            config,
            read_queue_nums=self.read_queues or config.read_queue_nums,
            write_queue_nums=self.write_queues or config.write_queue_nums,
            perm=config.perm if self.perm is None else self.perm,
        )


class UnreadQueues(msgspec.Struct, frozen=True):
    """A topic's queues, on one broker, that producers write to but consumers do not read."""

    broker: str
    first: int
    end: int

    def has(self, queue: MessageQueue) -> bool:
        """Return whether a queue is in this range."""
        return queue.broker_name == self.broker and self.first <= queue.queue_id < self.end

    def __str__(self) -> str:
        queues = f"{self.broker}:{self.first}"
        if self.end - self.first > 1:
            queues += f" to {self.broker}:{self.end - 1}"
        return queues


class HiddenQueue(msgspec.Struct, frozen=True):
    """A queue that consumers no longer read after a change."""

    broker: str
    queue_id: int
    message_count: int

    def __str__(self) -> str:
        return f"{self.broker}:{self.queue_id} ({counted(self.message_count, 'message')})"


async def check_exists(admin: AdminClient, topic: str) -> None:
    """Raise NoRoute if no broker has the topic, without the client's advice to create it."""
    try:
        await admin.route(topic)
    except NoRoute as error:
        raise NoRoute(
            f"no broker has the topic {topic}: check the name; if a broker is down, start it first"
            " (cometmq topic list and cometmq cluster show them)"
        ) from error


async def configs_at(
    admin: AdminClient,
    masters: Mapping[str, BrokerAdmin],
    name: str,
    table_of: Callable[[BrokerAdmin], Awaitable[Mapping[str, C]]],
) -> dict[str, C]:
    """Return the settings of a topic or group on each broker that has it; all must answer."""
    tables = await admin.ask_all(masters.values(), table_of)
    return {broker.name: table[name] for broker, table in tables if name in table}


def attribute_notes(configs: Mapping[str, TopicConfig]) -> list[str]:
    """Return a line with the attributes of a topic for each broker on which it has some."""
    return [
        f"attributes at {name}: {config.attributes_text}"
        for name, config in configs.items()
        if config.attributes
    ]


async def hidden_queues(
    masters: Mapping[str, BrokerAdmin],
    before: Mapping[str, TopicConfig],
    after: Mapping[str, TopicConfig],
) -> list[HiddenQueue]:
    """Return the queues that lose their readers, with the number of messages in them."""
    hidden: list[HiddenQueue] = []
    for name, config in after.items():
        first, end = config.read_queue_nums, before[name].read_queue_nums
        if first >= end:
            continue
        stats = (await masters[name].topic_stats(config.topic_name)).offset_table
        counts = {queue.queue_id: it.max_offset - it.min_offset for queue, it in stats.items()}
        hidden += [HiddenQueue(name, number, counts.get(number, 0)) for number in range(first, end)]
    return hidden


def cut_off_text(
    topic: str, before: Mapping[str, TopicConfig], after: Mapping[str, TopicConfig]
) -> str:
    """Describe the clients that a permission change cuts off from a topic; empty if none."""
    parts: list[str] = []
    for flag, loss in (
        (Perm.WRITE, "producers can no longer send to"),
        (Perm.READ, "consumers can no longer read"),
    ):
        names = [name for name in after if before[name].perm & ~after[name].perm & flag]
        if names:
            parts.append(f"{loss} its queues at {', '.join(names)}")
    return f"{topic}: {'; '.join(parts)}" if parts else ""


# -- queues that are written and not read -----------------------------------------------------


def newly_unread(
    before: Mapping[str, TopicConfig], after: Mapping[str, TopicConfig]
) -> list[UnreadQueues]:
    """Return the queues that are written to but not read, on brokers where a change adds any."""
    return [
        unread
        for name, config in after.items()
        if (unread := _unread(name, config))
        and not ((old := _unread(name, before[name])) and _covers(old, unread))
    ]


async def loss_text(
    topic: str,
    masters: Mapping[str, BrokerAdmin],
    before: Mapping[str, TopicConfig],
    after: Mapping[str, TopicConfig],
) -> str:
    """Describe the messages that a change takes from consumers; empty if none."""
    if hidden := await hidden_queues(masters, before, after):
        return f"{topic}: consumers lose " + ", ".join(map(str, hidden))
    if not (unread := newly_unread(before, after)):
        return ""
    queue_count = max(it.end for it in unread)
    return (
        f"{topic}: producers would send to {', '.join(map(str, unread))}, which no consumer reads;"
        f" to change read and write queues together, give --queues {queue_count}"
    )


async def unread_notes(
    admin: AdminClient, topics: Iterable[str], waiting: Mapping[MessageQueue, int] | None = None
) -> list[str]:
    """Return a line for each topic with queues that consumers do not read, or may not read.

    `waiting` are the queues with messages that a group has not consumed, and their number: brokers
    also report queues that the topic no longer has.
    """
    waiting = waiting or {}
    notes: list[str] = []
    for topic in sorted(set(topics)):
        try:
            route = await admin.route(topic)
            places = [data for data in route.queue_datas if data.perm & Perm.READ]
            ends = _ends(topic, waiting)
            unread = [
                it
                for data in places
                if (it := _unread(data.broker_name, data, ends.get(data.broker_name, 0)))
            ]
            offsets = await admin.topic_stats(topic) if unread else {}
        except (NoRoute, TopicNotExist):
            continue  # deleted meanwhile, or only the offsets of the group are left
        if unread:
            notes.append(_unread_note(topic, unread, offsets, waiting))
        notes += unreadable_notes(topic, route)
    return notes


def at_brokers(names: Iterable[str]) -> list[str]:
    """Return the options that choose brokers."""
    return [word for name in names for word in ("-b", name)]


def closed_notes(topic: str, route: TopicRoute) -> list[str]:
    """Return a line about the brokers to which producers may not send messages of a topic."""
    names = sorted(it.broker_name for it in route.queue_datas if not it.perm & Perm.WRITE)
    if not names:
        return []
    remedy = command("topic alter", topic, options=("--perm", "rw", *at_brokers(names)))
    line = (
        f"{topic}: producers may not send to it at {', '.join(names)}; to allow it: {remedy} (or,"
        " if wipeWritePerm has removed the permission of a broker, addWritePerm)"
    )
    return [line]


def unreadable_notes(topic: str, route: TopicRoute) -> list[str]:
    """Return a line about the brokers on which consumers may not read a topic, if there are any.

    Such a broker accepts heartbeats, and clients skip its queues, so nothing else reveals the
    problem.
    """
    names = sorted(it.broker_name for it in route.queue_datas if not it.perm & Perm.READ)
    if not names:
        return []
    remedy = command("topic alter", topic, options=("--perm", "rw", *at_brokers(names)))
    line = (
        f"{topic}: consumers may not read its queues at {', '.join(names)}, and get none of their"
        f" messages; to allow it: {remedy} (or, if the setting brokerPermission of a broker forbids"
        " it, change that)"
    )
    return [line]


def _unread_note(
    topic: str,
    unread: Collection[UnreadQueues],
    offsets: Mapping[MessageQueue, TopicOffset],
    waiting: Mapping[MessageQueue, int],
) -> str:
    counts = {queue: it.max_offset - it.min_offset for queue, it in offsets.items()}
    counts |= {queue: n for queue, n in waiting.items() if queue.topic == topic}
    total = sum(n for queue, n in counts.items() if any(it.has(queue) for it in unread))
    held = "messages sent there wait"
    if total:
        held = f"{counted(total, 'message')} {'wait' if total > 1 else 'waits'} there"
    options = ("--read-queues", str(max(it.end for it in unread)))
    return (
        f"{topic}: no consumer reads {', '.join(map(str, unread))}, so {held};"
        f" to have them read: {command('topic alter', topic, options=options)}"
    )


def _ends(topic: str, waiting: Mapping[MessageQueue, int]) -> dict[str, int]:
    """Return, by broker, one more than the number of the highest queue with waiting messages."""
    ends: dict[str, int] = {}
    for queue, count in waiting.items():
        if count and queue.topic == topic:
            ends[queue.broker_name] = max(queue.queue_id + 1, ends.get(queue.broker_name, 0))
    return ends


def _unread(
    broker: str, config: TopicConfig | QueueData, used_count: int = 0
) -> UnreadQueues | None:
    """Return the queues that are written or have waiting messages, but are not read."""
    end = max(config.write_queue_nums, used_count)
    if end <= config.read_queue_nums:
        return None
    return UnreadQueues(broker, config.read_queue_nums, end)


def _covers(old: UnreadQueues, new: UnreadQueues) -> bool:
    return old.first <= new.first and new.end <= old.end


def permission_text(perm: int) -> str:
    """Return a permission as rw, r, w or none."""
    return ("r" if perm & Perm.READ else "") + ("w" if perm & Perm.WRITE else "") or "none"


def described(config: TopicConfig) -> str:
    """Return the queues and the permission of a topic, in a few words."""
    return (
        f"{config.read_queue_nums}/{config.write_queue_nums} queues, {permission_text(config.perm)}"
    )


def exists_text(
    topic: str, existing: Mapping[str, TopicConfig], masters: Mapping[str, BrokerAdmin]
) -> str:
    """Return the error for an existing topic, with its brokers, its settings, and the right
    command.
    """
    if topic in masters:
        return (
            f"{topic} is the name of a broker, which has a topic of this name for tests of itself;"
            " choose a different name"
        )
    found = ", ".join(
        f"{name} ({it.read_queue_nums} read and {it.write_queue_nums} write queues,"
        f" {permission_text(it.perm)})"
        for name, it in existing.items()
    )
    alter = command("topic alter", topic)
    text = f"the topic {topic} exists at {found}; to change it, use {alter}"
    rest = [name for name in masters if name not in existing]
    if rest:
        create = command("topic create", topic, options=at_brokers(rest))
        text += f"; to create it at the other brokers, use {create}"
    return text


# -- clone ------------------------------------------------------------------------------------


def clone_topic(
    source: Annotated[str, typer.Argument(help="Name of the topic whose settings are taken.")],
    name: Annotated[str, typer.Argument(help="Name of the new topic.")],
    namesrv: Namesrv = DEFAULT_NAMESRV,
    *,
    dry_run: DryRunOption = False,
    as_json: AsJson = False,
) -> None:
    """Create a topic with the settings that another has at each of its brokers.

    Messages and groups are not copied; the order configuration is.

    \b
    EXAMPLE
      cometmq topic clone orders orders-test
    """

    async def question(admin: CommandAdmin) -> list[list[Cell]]:
        from cometmq.insight.definitions.cloning import (  # noqa: PLC0415  # only this needs it
            clone,
            prepare_clone,
        )

        found = await prepare_clone(admin, source, name)
        admin.resume = lambda rest: (
            "create it there, too: "
            + command("topic create", name, options=at_brokers(it.name for it in rest))
        )
        admin.preview = {broker: described(it) for broker, it in found.configs.items()}
        await clone(admin, found)
        return [
            [broker, it.read_queue_nums, it.write_queue_nums, permission_text(it.perm)]
            for broker, it in found.configs.items()
        ]

    columns = ("Broker", "Read queues", "Write queues", "Permission")
    print_rows(columns, ask(namesrv, question), as_json=as_json, title=name)
