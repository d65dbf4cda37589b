# SPDX-License-Identifier: Apache-2.0
"""Topics: rates, sizes, queues, and the groups that read them, with their lag."""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from cometmq.console.history.source import topic_key
from cometmq.console.pages.plotted import Drawing, plots
from cometmq.console.web.page import Page, Shown, View, silent_brokers
from cometmq.console.web.problems import missing
from cometmq.console.web.tables import Column
from cometmq.insight.changes.topics import permission_text
from cometmq.insight.model import Group, Snapshot, Topic, TopicKind, Unknown, known
from cometmq.insight.words import command, listed, rate
from cometmq.remoting.bodies.topic_config import TopicConfig
from cometmq.remoting.message.flags import Perm

PATH: Final = "/topics"
KINDS: Final = ("own", "all", *TopicKind)


class TopicRow(msgspec.Struct, frozen=True):
    """One topic in the list, with the groups that read it."""

    topic: Topic
    groups: Sequence[Group]

    @property
    def lag(self) -> int | Unknown:
        """The lag of the group with the most unread messages."""
        lags = [lag_in(group, self.topic.name) for group in self.groups]
        unknown = [it for it in lags if isinstance(it, Unknown)]
        return unknown[0] if unknown else max((it for it in lags if isinstance(it, int)), default=0)


def lag_in(group: Group, topic: str) -> int | Unknown:
    return next((it.lag for it in group.topics if it.topic == topic), 0)


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


_LAST: Final[Column[TopicRow]] = Column(
    "last", "Last message", lambda it: it.topic.last_write_ms, "moment"
)


def columns(view: View, rows: Sequence[TopicRow]) -> list[Column[TopicRow]]:
    """Return the columns of the list; that of the last message only if its time is known of some
    topic.
    """
    is_dated = any(isinstance(it.topic.last_write_ms, int) for it in rows)
    return [
        Column("name", "Topic", lambda it: it.topic.name,
               link=lambda it: view.href("/topic", name=it.topic.name)),
        Column("in", "In", lambda it: it.topic.in_per_s, "rate", help="Messages stored per second"),
        Column("messages", "Messages", lambda it: it.topic.messages, "number",
               help="Messages that still exist"),
        Column("groups", "Groups", lambda it: len(it.groups), "number"),
        Column("lag", "Largest lag", lambda it: it.lag, "number",
               help="Messages that the slowest group has not read",
               link=lambda it: view.href("/groups", find=it.topic.name) if it.groups else ""),
        *([_LAST] if is_dated else ()),
        Column("queues", "Queues", lambda it: it.topic.write_queues, "number",
               help="Queues to which producers send, on all brokers"),
        Column("perm", "Rights", lambda it: permission_text(it.topic.perm)),
        Column("brokers", "Brokers", lambda it: len(it.topic.brokers), "number"),
        Column("kind", "Kind", lambda it: it.topic.kind),
    ]  # fmt: skip


def rows_of(snapshot: Snapshot, kind: str) -> list[TopicRow]:
    """Return the topics of a kind with their groups."""
    groups = {group.name: group for group in known(snapshot.groups)}
    chosen = [it for it in known(snapshot.topics) if _is_of(it, kind)]
    return [TopicRow(it, [groups[name] for name in it.groups if name in groups]) for it in chosen]


def _is_of(topic: Topic, kind: str) -> bool:
    return kind == "all" or topic.kind == (TopicKind.NORMAL if kind == "own" else kind)


async def topics(view: View) -> Shown:
    snapshot = await view.snapshot()
    kind = view.text("kind", "own")
    rows = rows_of(snapshot, kind)
    table = view.table(
        rows,
        columns(view, rows),
        default="name",
        keep=("kind",),
        search=lambda it: it.topic.name,
    )
    return Shown(
        [row.topic for row in rows],
        "cometmq topic list" + ("" if kind == "own" else " --all"),
        snapshot.taken_ms,
        silent_brokers(snapshot),
        extra={"table": table, "kind": kind, "kinds": KINDS, "unknown": _unknown(snapshot)},
    )


def _unknown(snapshot: Snapshot) -> str:
    return snapshot.topics.reason if isinstance(snapshot.topics, Unknown) else ""


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


def reader_columns(view: View, topic: str) -> list[Column[Group]]:
    return [
        Column("name", "Group", lambda it: it.name,
               link=lambda it: view.href("/group", name=it.name)),
        Column("lag", "Lag", lambda it: lag_in(it, topic), "number"),
        Column("behind", "Behind", lambda it: _behind_in(it, topic), "duration",
               help="Age of the oldest unread message"),
        Column("members", "Members",
               lambda it: it.members if isinstance(it.members, Unknown) else len(it.members),
               "number"),
        Column("out", "Out", lambda it: it.out_per_s, "rate"),
    ]  # fmt: skip


def _behind_in(group: Group, topic: str) -> float | Unknown | None:
    return next((it.behind_s for it in group.topics if it.topic == topic), None)


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
    readers = [it for it in known(snapshot.groups) if it.name in found.groups]
    return Shown(
        {"topic": found, "queues": queues, "settings": configs, "groups": readers},
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
                readers, reader_columns(view, name), default="-lag", search=lambda it: it.name,
                keep=("name", "hours"), name="group_",
            ),
            **await plots(
                view,
                [Drawing("Messages stored per second", rate, {"stored": topic_key(name, "in")})],
            ),
        },
        title=f"Topic {name}",
    )  # fmt: skip


PAGES: Final = (
    Page(PATH, "Topics", "topics.html", topics, menu="Topics"),
    Page("/topic", "Topic", "topic.html", topic, section=PATH),
)
