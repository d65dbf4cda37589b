# SPDX-License-Identifier: Apache-2.0
"""Topics: rates, sizes, queues, and the groups that read them, with their lag."""

from collections.abc import Mapping
from typing import Final

import msgspec

from cometmq.console.history.source import topic_key
from cometmq.console.pages.plotted import Drawing, plots
from cometmq.console.web.page import Page, Shown, View, silent_brokers
from cometmq.console.web.problems import missing
from cometmq.insight.changes.topics import permission_text
from cometmq.insight.model import Group, Unknown, known
from cometmq.insight.views.cluster import counted_rows, lag_in
from cometmq.insight.views.view import Column, address
from cometmq.insight.words import command, listed, rate
from cometmq.remoting.bodies.topic_config import TopicConfig
from cometmq.remoting.message.flags import Perm

PATH: Final = "/topics"


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
