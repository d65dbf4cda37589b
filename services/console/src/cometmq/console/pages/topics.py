# SPDX-License-Identifier: Apache-2.0
"""Topics: rates, sizes, queues, and the groups that read them, with their lag."""

from collections.abc import Mapping
from typing import Final

import msgspec

from cometmq.client import Message
from cometmq.client.admin import AdminClient
from cometmq.client.errors import InvalidArgument
from cometmq.client.settings import ProducerOptions
from cometmq.console.history.source import topic_key
from cometmq.console.login.roles import Role
from cometmq.console.pages.plotted import Drawing, plots
from cometmq.console.web.action import Action, Field, Form
from cometmq.console.web.page import Page, Shown, View, silent_brokers
from cometmq.console.web.problems import bad, missing
from cometmq.insight.changes.change import Consequence, Done, Plan, Risk
from cometmq.insight.changes.topics import permission_text
from cometmq.insight.model import Group, TopicKind, Unknown, known
from cometmq.insight.views.cluster import counted_rows, lag_in
from cometmq.insight.views.view import Column, address
from cometmq.insight.words import command, counted, listed, rate, sized
from cometmq.remoting.bodies.topic_config import TopicConfig
from cometmq.remoting.message.flags import Perm

PATH: Final = "/topics"
GROUP: Final = "cometmq-console"
DELAY_LEVEL_MAX: Final = 18


async def send(view: View) -> Form:
    name, body = view.needed("name"), view.raw("body").replace("\r\n", "\n")
    tag, keys = view.text("tag"), view.text("keys").split()
    level = view.number("delay", 0, high=DELAY_LEVEL_MAX)
    fields = [
        Field("name", "Topic", "hidden", name),
        Field("body", "Body", "area", body),
        Field("tag", "Tag", value=tag),
        Field("keys", "Keys, separated by spaces", value=" ".join(keys)),
        Field("delay", "Delay level; 0: deliver at once", "number", str(level)),
    ]
    topic = (await view.snapshot()).topic(name)
    if topic is None:
        raise missing(f"there is no topic {name}, or no broker that knows it answers")
    if not body:
        return Form(fields, intro=f"Send one message to {name}.")
    try:
        message = Message(name, body.encode(), tag=tag or None, keys=tuple(keys), delay_level=level)
    except InvalidArgument as error:
        raise bad(str(error)) from error

    async def perform(admin: AdminClient) -> Done:
        from cometmq.client import Producer  # noqa: PLC0415  # 0.3 MiB

        given = admin.options
        options = ProducerOptions(
            namesrv=given.namesrv, credentials=given.credentials, tls=given.tls
        )
        async with Producer(GROUP, options=options, log=view.desk.log) as producer:
            sent = await producer.send(message)
        return Done(f"The message {sent.message_id} is stored in {name}.")

    options = ["--tag", tag] if tag else []
    options += [word for key in keys for word in ("--key", key)]
    options += ["--delay-level", str(level)] if level else []
    groups = counted(len(topic.groups), "group")
    state = {"size": sized(len(message.body)), "tag": tag, "keys": keys, "delay level": level}
    return Form(
        fields,
        Plan(
            what=f"Send a message to {name}",
            subject=name,
            before={},
            after=state,
            consequences=[Consequence(f"{groups} of {name} may get it; it cannot be taken back.")],
            command=command("produce", name, body, options=options),
            perform=perform,
            leads_to=view.href("/messages", topic=name),
            refusal="" if topic.kind is TopicKind.NORMAL else f"{name} is no topic of applications",
        ),
    )


ACTIONS: Final = (
    Action(
        "message.send", "/topic/send", "Send the message", Role.OPERATOR, Risk.MEDIUM, send,
        section=PATH, by_post=True,
    ),
)  # fmt: skip


def closed(name: str, configs: Mapping[str, TopicConfig]) -> list[str]:
    """Return what clients may not do with a topic, where, and the remedy."""
    remedy = command("topic alter", name, options=("--perm", "rw"))
    found = []
    for right, word, what in (
        (Perm.WRITE, "write", "Producers cannot send to it"),
        (Perm.READ, "read", "Consumers cannot read it"),
    ):
        if at := [broker for broker, it in configs.items() if not it.perm & right]:
            found.append(f"{what} at {listed(at)}: it has no {word} permission there ({remedy}).")
    return found


class QueueRow(msgspec.Struct, frozen=True):
    broker: str
    number: int
    first: int
    end: int
    last_ms: int


QUEUES: Final[list[Column[QueueRow]]] = [
    Column("broker", "Broker", lambda it: it.broker),
    Column("queue", "Queue", lambda it: it.number, "number"),
    Column("messages", "Messages", lambda it: it.end - it.first, "number"),
    Column("first", "First offset", lambda it: it.first, "number"),
    Column("end", "End offset", lambda it: it.end, "number"),
    Column("last", "Last message", lambda it: it.last_ms or None, "moment"),
]


def _behind_in(group: Group, topic: str) -> float | Unknown | None:
    return next((it.behind_s for it in group.topics if it.topic == topic), None)


def readers(topic: str) -> list[Column[Group]]:
    """Return the columns of the groups that read a topic."""
    return [
        Column("name", "Group", lambda it: it.name,
               link=lambda it: address("/group", name=it.name)),
        Column("lag", "Lag", lambda it: lag_in(it, topic), "number"),
        Column("behind", "Behind", lambda it: _behind_in(it, topic), "duration",
               help="Age of the oldest unread message"),
        Column("members", "Members", lambda it: counted_rows(it.members), "number"),
        Column("out", "Out", lambda it: it.out_per_s, "rate"),
    ]  # fmt: skip


async def topic(view: View) -> Shown:
    name = view.needed("name")
    snapshot = await view.snapshot()
    found = snapshot.topic(name)
    if found is None:
        raise missing(f"there is no topic {name}, or no broker that has it answers")
    queues = [
        QueueRow(
            queue.broker_name,
            queue.queue_id,
            it.min_offset,
            it.max_offset,
            it.last_update_timestamp,
        )
        for queue, it in (await view.admin().topic_stats(name)).items()
    ]
    configs = await view.admin().topic_configs(name)
    groups = [it for it in known(snapshot.groups) if it.name in found.groups]
    return Shown(
        {"topic": found, "queues": queues, "settings": configs, "groups": groups},
        command("topic describe", name),
        snapshot.taken_ms,
        silent_brokers(snapshot),
        extra={
            "topic": found,
            "last_ms": max((it.last_ms for it in queues), default=0) or None,
            "configs": configs,
            "attributed": any(it.attributes for it in configs.values()),
            "closed": closed(name, configs),
            "permission": permission_text,
            "queues": view.table(
                queues, QUEUES, default="broker", search=lambda it: it.broker,
                keep=("name", "hours"), name="queue_",
            ),
            "readers": view.table(
                groups, readers(name), default="-lag", search=lambda it: it.name,
                keep=("name", "hours"), name="group_",
            ),
            **await plots(
                view,
                [Drawing("Messages stored per second", rate, {"stored": topic_key(name, "in")})],
            ),
        },
        title=f"Topic {name}",
    )  # fmt: skip


PAGES: Final = (Page("/topic", "Topic", "topic.html", topic, section=PATH),)
