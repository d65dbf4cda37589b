# SPDX-License-Identifier: Apache-2.0
"""Views of a snapshot: topics, consumer groups and connected clients."""

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec

from cometmq.insight.changes.change import arg
from cometmq.insight.changes.topics import permission_text
from cometmq.insight.consumer_groups import loss_words
from cometmq.insight.judge import RISK_S, Status, judge
from cometmq.insight.model import (
    Group,
    Member,
    Producer,
    Snapshot,
    Topic,
    TopicKind,
    Unknown,
    known,
)
from cometmq.insight.rules.clients import unexpected_refusals
from cometmq.insight.rules.consuming import facts_of
from cometmq.insight.views.view import Column, Facts, Found, View, address
from cometmq.remoting.names import retry_topic
from cometmq.remoting.refusals import plain_remark
from cometmq.remoting.versions import version_name

NAMES_MAX: Final = 20
"""The most names in one row of JSON, such as the groups of a topic."""


def _found(snapshot: Snapshot, kind: str, rows: Sequence[Any], empty: str) -> Found:
    known_all = getattr(snapshot, kind)
    is_known = not isinstance(known_all, Unknown)
    notes = [] if is_known else [f"the {kind} are unknown: {known_all.reason}"]
    return Found(rows, notes, empty, snapshot)


def counted_rows(rows: Sequence[Any] | Unknown) -> int | Unknown:
    """Return how many rows there are."""
    return rows if isinstance(rows, Unknown) else len(rows)


# -- topics ---------------------------------------------------------------------------------------


class TopicRow(NamedTuple):
    """One topic, with the groups that read it."""

    topic: Topic
    groups: Sequence[Group]

    @property
    def lag(self) -> int | Unknown:
        """The lag of the group with the most unread messages."""
        lags = [lag_in(group, self.topic.name) for group in self.groups]
        unknown = [it for it in lags if isinstance(it, Unknown)]
        return unknown[0] if unknown else max((it for it in lags if isinstance(it, int)), default=0)


def lag_in(group: Group, topic: str) -> int | Unknown:
    """Return how many messages of a topic a group has not read."""
    return next((it.lag for it in group.topics if it.topic == topic), 0)


class Topics(View, frozen=True, kw_only=True):
    """List topics with sizes, rates, queues and the groups that read them."""

    name = "topics"
    verb = "topic list"
    sort = "name"

    kind: Annotated[
        Literal["own", "all", "normal", "retry", "dead letters", "system"],
        arg("own is the same as normal."),
    ] = "own"

    columns = (
        Column("name", "Topic", lambda it: it.topic.name,
               link=lambda it: address("/topic", name=it.topic.name)),
        Column("in", "In", lambda it: it.topic.in_per_s, "rate", help="Messages stored per second"),
        Column("messages", "Messages", lambda it: it.topic.messages, "number",
               help="Messages that still exist"),
        Column("groups", "Groups", lambda it: len(it.groups), "number"),
        Column("lag", "Largest lag", lambda it: it.lag, "number",
               help="Messages that the slowest group has not read",
               link=lambda it: address("/groups", find=it.topic.name) if it.groups else ""),
        Column("last", "Last message", lambda it: it.topic.last_write_ms, "moment",
               is_rare=True),
        Column("queues", "Queues", lambda it: it.topic.write_queues, "number",
               help="Queues to which producers send, on all brokers"),
        Column("perm", "Rights", lambda it: permission_text(it.topic.perm)),
        Column("brokers", "Brokers", lambda it: len(it.topic.brokers), "number"),
        Column("kind", "Kind", lambda it: it.topic.kind),
    )  # fmt: skip

    async def ask(self, facts: Facts) -> Found:
        """Return the topics of the kind."""
        snapshot = await facts.snapshot()
        groups = {group.name: group for group in known(snapshot.groups)}
        kind = TopicKind.NORMAL if self.kind == "own" else self.kind
        rows = [
            TopicRow(it, [groups[name] for name in it.groups if name in groups])
            for it in known(snapshot.topics)
            if kind in {"all", it.kind}
        ]
        return _found(snapshot, "topics", rows, "there is no topic of this kind")

    @classmethod
    def object_of(cls, row: TopicRow, columns: Sequence[Column[Any]]) -> dict[str, Any]:
        """Return all that is known of the topic."""
        return msgspec.structs.asdict(row.topic)


# -- groups ---------------------------------------------------------------------------------------


class GroupRow(NamedTuple):
    """One consumer group, at the time of a snapshot."""

    group: Group
    now_ms: int
    retried: float | Unknown
    """How many failed messages are delivered again per second."""

    @property
    def state(self) -> str:
        """The worst problem of the group in a word or two, or that it has none."""
        group = self.group
        if not group.is_enabled:
            return "disabled"
        status = judge(facts_of(group, self.now_ms))
        if group.disagreements and status is not Status.LOST:
            return "members disagree"
        no_member = status is Status.OK and not counted_rows(group.members)
        return "no members" if no_member else status.word

    @property
    def tone(self) -> str:
        """The tone of its state."""
        tones = {"no members": "", "disabled": "warn", "members disagree": "bad"}
        if (state := self.state) in tones:
            return tones[state]
        severity = next(it.severity for it in Status if it.word == state)
        return {"ok": "good", "info": "", "warn": "warn"}.get(severity, "bad")


def retry_rates(snapshot: Snapshot) -> dict[str, float | Unknown]:
    """Return how many failed messages are delivered again per second, by retry topic."""
    return {it.name: it.in_per_s for it in known(snapshot.topics) if it.kind is TopicKind.RETRY}


def loss_cell(loss_s: float | Unknown | None) -> float | Unknown | str:
    """Return the time to loss for a cell; `never` instead of None."""
    return loss_words(None) if loss_s is None else loss_s


def _is_urgent(loss_s: float | Unknown | None) -> bool:
    return isinstance(loss_s, int | float) and loss_s < RISK_S


class Groups(View, frozen=True, kw_only=True):
    """List consumer groups with their state, lag in messages and seconds, and time to loss."""

    name = "groups"
    verb = "lag"
    sort = "-lag"

    topic: Annotated[str | None, arg("Only groups that read this topic.", flags="-t --topic")] = (
        None
    )
    all: Annotated[bool, arg("Include system groups.")] = False

    columns = (
        Column("name", "Group", lambda it: it.group.name,
               link=lambda it: address("/group", name=it.group.name)),
        Column("state", "State", lambda it: it.state, tone=lambda it: it.tone),
        Column("lag", "Lag", lambda it: it.group.lag, "number",
               help="Messages that it has not read"),
        Column("behind", "Behind", lambda it: it.group.behind_s, "duration",
               help="Age of its oldest unread message"),
        Column("still", "Not reading since", lambda it: it.group.still_since, "pause",
               help="Since when its committed offsets have stayed, though messages are unread"),
        Column("loss", "Time to loss", lambda it: loss_cell(it.group.loss_s), "loss",
               tone=lambda it: "bad" if _is_urgent(it.group.loss_s) else "",
               help="Until its oldest unread message may be deleted for its age"),
        Column("retried", "Retried", lambda it: it.retried, "rate",
               help="Failed messages that are delivered again, per second"),
        Column("dead", "Dead letters", lambda it: it.group.dead_letters, "number",
               link=lambda it: address("/dead-letters/group", group=it.group.name)
               if it.group.dead_letters else ""),
        Column("members", "Members", lambda it: counted_rows(it.group.members), "number"),
    )  # fmt: skip

    async def ask(self, facts: Facts) -> Found:
        """Return the groups."""
        snapshot = await facts.snapshot()
        rates, now_ms = retry_rates(snapshot), snapshot.taken_ms
        rows = [
            GroupRow(it, now_ms, rates.get(retry_topic(it.name), 0))
            for it in known(snapshot.groups)
            if (self.all or not it.is_system)
            and (self.topic is None or any(one.topic == self.topic for one in it.topics))
        ]
        return _found(snapshot, "groups", rows, "there is no consumer group yet")

    @classmethod
    def text_of(cls, row: GroupRow) -> str:
        """Return its name and those of its topics."""
        return " ".join([row.group.name, *(it.topic for it in row.group.topics)])

    @classmethod
    def object_of(cls, row: GroupRow, columns: Sequence[Column[Any]]) -> dict[str, Any]:
        """Return all that is known of the group, and the number of its members."""
        own = {"members": counted_rows(row.group.members), "state": row.state}
        return msgspec.structs.asdict(row.group) | own | {"retried_per_s": row.retried}


# -- clients --------------------------------------------------------------------------------------


class ClientRow(NamedTuple):
    """One client in one of its groups."""

    role: str
    group: str
    member: Member | Producer
    refusal: str
    """What a broker has refused it lately."""

    @property
    def is_consumer(self) -> bool:
        """Whether it has a page of its own."""
        return self.role == "consumer"


class Clients(View, frozen=True, kw_only=True):
    """List the connected producers and consumers, once per group."""

    name = "clients"
    verb = "top connections"
    sort = "group"

    columns = (
        Column("group", "Group", lambda it: it.group),
        Column("role", "Role", lambda it: it.role),
        Column("client_id", "Client id", lambda it: it.member.client_id, "id",
               lambda it: address("/group/member", name=it.group, client=it.member.client_id)
               if it.is_consumer else ""),
        Column("tools", "Change", lambda _: "Disconnect", needs="operator", is_page_only=True,
               link=lambda it: address("/client/disconnect", client=it.member.client_id)),
        Column("address", "Address", lambda it: it.member.address.lstrip("/")),
        Column("version", "Version",
               lambda it: f"{it.member.language} {version_name(it.member.version)}"),
        Column("brokers", "Connected to", lambda it: list(it.member.brokers)),
        Column("refused", "Last refusal", lambda it: it.refusal, "prose",
               tone=lambda it: "warn" if it.refusal else "",
               help="what a broker refused this connection lately; see Push-back"),
    )  # fmt: skip

    async def ask(self, facts: Facts) -> Found:
        """Return all connected clients."""
        snapshot = await facts.snapshot()
        refused = {
            it.peer: plain_remark(it.remark) or "refused"
            for it in known(unexpected_refusals(snapshot))
        }
        clients: list[tuple[str, str, Member | Producer]] = [
            ("producer", it.group, it) for it in known(snapshot.producers)
        ]
        clients += [
            ("consumer", group.name, it)
            for group in known(snapshot.groups)
            for it in known(group.members)
        ]
        rows = [ClientRow(*it, refused.get(it[2].address.lstrip("/"), "")) for it in clients]
        gaps = gaps_of(snapshot)
        empty = "no client is known" if gaps else "no client is connected"
        return Found(rows, [f"not known: {it}" for it in gaps], empty, snapshot)


def gaps_of(snapshot: Snapshot) -> list[str]:
    """Return the reasons why clients may be missing, one line each."""
    notes = []
    if isinstance(snapshot.producers, Unknown):
        notes.append(f"producers: {snapshot.producers.reason}")
    if isinstance(snapshot.groups, Unknown):
        notes.append(f"consumers: {snapshot.groups.reason}")
    untold = [it.members for it in known(snapshot.groups) if isinstance(it.members, Unknown)]
    if untold:
        notes.append(f"members of {len(untold):,} groups: {untold[0].reason}")
    return notes


VIEWS: Final = (Topics, Groups, Clients)
