# SPDX-License-Identifier: Apache-2.0
"""Tools that read the state of a cluster: brokers, findings, topics, groups, delays, meanings."""

from collections.abc import Sequence
from typing import Annotated, Any, Final, TypeVar

import msgspec

from cometmq.cli.mcp.tool import Arguments, Limit, Name, Nothing, Session, Text, Tool, missing, said
from cometmq.cli.verbs.explain import explained
from cometmq.client.errors import ClientError
from cometmq.insight.finding import Finding
from cometmq.insight.model import (
    Broker,
    BrokerState,
    DelayLevel,
    Group,
    GroupTopic,
    HalfMessages,
    Member,
    Refusal,
    Snapshot,
    Subscription,
    Topic,
    TopicKind,
    Unknown,
    known,
)
from cometmq.insight.queue_states import QueueState, missed_notes, queue_states
from cometmq.insight.rules.clients import unexpected_refusals
from cometmq.insight.words import counted

T = TypeVar("T")

NAMES_MAX: Final = 20
"""The most names in one row, such as the groups of a topic."""
ROWS_MAX: Final = 200


def _rows(rows: Sequence[T] | Unknown) -> Sequence[T]:
    if isinstance(rows, Unknown):
        raise ClientError(f"they are not known: {rows.reason}")
    return rows


def _count(rows: Sequence[Any] | Unknown) -> int | Unknown:
    return rows if isinstance(rows, Unknown) else len(rows)


def _notes(snapshot: Snapshot) -> list[str]:
    """Return notes on what the snapshot lacks, which concern all its figures."""
    silent = [
        f"{it}: no master answers; its figures are missing" for it in snapshot.missing_brokers
    ]
    return [*silent, *snapshot.notes][:ROWS_MAX]


# -- cluster --------------------------------------------------------------------------------------


class ClusterView(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster at one moment. `unknown` is not 0: its reason says why a figure is missing."""

    namesrv: str
    taken_ms: int
    brokers: Sequence[Broker]
    topics: int | Unknown
    groups: int | Unknown
    producers: int | Unknown
    half_messages: Sequence[HalfMessages] | Unknown
    refusals: Sequence[Refusal] | Unknown
    notes: Sequence[str]


async def _cluster(session: Session, _: Nothing) -> ClusterView:
    found = await session.snapshot()
    refusals = unexpected_refusals(found)
    return ClusterView(
        namesrv=found.namesrv,
        taken_ms=found.taken_ms,
        brokers=[_brief(it) for it in found.brokers[:ROWS_MAX]],
        topics=_count(found.topics),
        groups=_count(found.groups),
        producers=_count(found.producers),
        half_messages=found.half_messages,
        refusals=refusals if isinstance(refusals, Unknown) else refusals[:ROWS_MAX],
        notes=_notes(found),
    )


def _brief(broker: Broker) -> Broker:
    """Return a broker without its settings and the raw form of its figures."""
    if not isinstance(broker.state, BrokerState):
        return broker
    state = msgspec.structs.replace(broker.state, runtime={}, settings=None)
    return msgspec.structs.replace(broker, state=state)


class Findings(msgspec.Struct, frozen=True):
    """What is wrong, worst first; an empty list means that nothing is."""

    findings: Sequence[Finding]
    taken_ms: int
    notes: Sequence[str]


async def _findings(session: Session, _: Nothing) -> Findings:
    found = await session.snapshot()
    rows = session.findings.of(found)
    notes = _notes(found)
    if len(rows) > ROWS_MAX:
        notes.insert(0, f"only the worst {ROWS_MAX} of {len(rows):,} findings are listed")
    return Findings(rows[:ROWS_MAX], found.taken_ms, notes)


# -- topics and groups ----------------------------------------------------------------------------


class TopicsWanted(Arguments, frozen=True, kw_only=True):
    """Which topics to list."""

    find: Annotated[Text, said("Part of the name.")] = ""
    kind: Annotated[TopicKind | None, said("Null for all kinds.")] = TopicKind.NORMAL
    limit: Limit = 50


class Topics(msgspec.Struct, frozen=True):
    """Topics by name."""

    total: int
    """How many match; more than are listed if `limit` is smaller."""
    topics: Sequence[Topic]
    notes: Sequence[str]


async def _topics(session: Session, wanted: TopicsWanted) -> Topics:
    found = await session.snapshot()
    rows = [
        msgspec.structs.replace(it, groups=it.groups[:NAMES_MAX])
        for it in sorted(_rows(found.topics), key=lambda it: it.name)
        if wanted.find in it.name and wanted.kind in {None, it.kind}
    ]
    return Topics(len(rows), rows[: wanted.limit], _notes(found))


class GroupsWanted(Arguments, frozen=True, kw_only=True):
    """Which groups to list."""

    find: Annotated[Text, said("Part of the name.")] = ""
    topic: Annotated[Text, said("Only groups that read this topic.")] = ""
    with_system: bool = False
    limit: Limit = 50


class GroupRow(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one group."""

    name: str
    members: int | Unknown
    model: str | None
    topics: Sequence[GroupTopic]
    lag: int | Unknown
    behind_s: float | Unknown
    out_per_s: float | Unknown
    dead_letters: int | Unknown
    is_enabled: bool


class Groups(msgspec.Struct, frozen=True):
    """Groups, those with the largest lag first."""

    total: int
    """How many match; more than are listed if `limit` is smaller."""
    groups: Sequence[GroupRow]
    notes: Sequence[str]


def _by_lag(group: Group) -> tuple[int, str]:
    return (0 if isinstance(group.lag, Unknown) else -group.lag, group.name)


async def _groups(session: Session, wanted: GroupsWanted) -> Groups:
    found = await session.snapshot()
    rows = sorted(
        (
            it
            for it in _rows(found.groups)
            if wanted.find in it.name
            and (wanted.with_system or not it.is_system)
            and (not wanted.topic or any(one.topic == wanted.topic for one in it.topics))
        ),
        key=_by_lag,
    )
    shown = [
        GroupRow(
            name=it.name,
            members=_count(it.members),
            model=it.model,
            topics=it.topics[:NAMES_MAX],
            lag=it.lag,
            behind_s=it.behind_s,
            out_per_s=it.out_per_s,
            dead_letters=it.dead_letters,
            is_enabled=it.is_enabled,
        )
        for it in rows[: wanted.limit]
    ]
    return Groups(len(rows), shown, _notes(found))


class OneGroup(Arguments, frozen=True, kw_only=True):
    """The group to show."""

    group: Name


class QueueLag(msgspec.Struct, frozen=True):
    """The progress of a group in one queue."""

    topic: str
    broker: str
    queue_id: int
    first: int
    committed: int
    end: int
    lag: int
    behind_s: float | None


class GroupView(msgspec.Struct, frozen=True):
    """One group; its members are in the tool `members`."""

    group: Group
    queues: Sequence[QueueLag]
    """Those with the largest lag first, at most 200."""
    notes: Sequence[str]


async def _group_of(session: Session, name: str) -> tuple[Snapshot, Group]:
    found = await session.snapshot()
    group = found.group(name)
    if group is None:
        raise missing("group", name)
    return found, group


async def _group(session: Session, wanted: OneGroup) -> GroupView:
    found, group = await _group_of(session, wanted.group)
    states = await queue_states(session.reader, group.name)
    notes = [*missed_notes(group.name, states), *_notes(found)]
    states.sort(key=lambda it: (-it.lag, it.queue))
    members: Sequence[Member] | Unknown = group.members
    if not isinstance(members, Unknown) and len(members) > NAMES_MAX:
        notes.append(f"only {NAMES_MAX} of {counted(len(members), 'member')} are in `group`")
        members = members[:NAMES_MAX]
    brief = msgspec.structs.replace(group, members=members)
    return GroupView(brief, [_queue(it) for it in states[:ROWS_MAX]], notes)


def _queue(state: QueueState) -> QueueLag:
    queue = state.queue
    return QueueLag(
        queue.topic,
        queue.broker_name,
        queue.queue_id,
        state.min_offset,
        state.committed,
        state.max_offset,
        state.lag,
        state.behind_s,
    )


class Members(msgspec.Struct, frozen=True):
    """The connected members of a group."""

    total: int
    members: Sequence[Member]
    model: str | None
    subscriptions: Sequence[Subscription]
    disagreements: Sequence[str]
    """How the members' subscriptions differ: then messages are missed."""
    notes: Sequence[str]


async def _members(session: Session, wanted: OneGroup) -> Members:
    found, group = await _group_of(session, wanted.group)
    members = _rows(group.members)
    return Members(
        len(members),
        members[:ROWS_MAX],
        group.model,
        group.subscriptions[:ROWS_MAX],
        group.disagreements[:NAMES_MAX],
        _notes(found),
    )


# -- delayed messages, meanings -------------------------------------------------------------------


class Delayed(msgspec.Struct, frozen=True):
    """The delay levels in which messages wait."""

    waiting: int
    levels: Sequence[DelayLevel] | Unknown
    notes: Sequence[str]


async def _delayed(session: Session, _: Nothing) -> Delayed:
    found = await session.snapshot()
    waiting = sum(it.waiting for it in known(found.delayed))
    return Delayed(waiting, found.delayed, _notes(found))


class Question(Arguments, frozen=True, kw_only=True):
    """What to explain."""

    text: Annotated[
        str,
        msgspec.Meta(
            min_length=1,
            max_length=2_000,
            description="A code (14), its name (SYSTEM_BUSY), an event of a log (disk.full), or a"
            " server's remark.",
        ),
    ]


class Meanings(msgspec.Struct, frozen=True):
    """What a code, an event or a remark means, and what to do."""

    meanings: Sequence[dict[str, Any]]


async def _explain(_: Session, wanted: Question) -> Meanings:
    return Meanings([dict(it) for it in explained(wanted.text.strip())])


TOOLS: Final = (
    Tool("cluster", "Brokers with roles, rates, disks and copies; counts; refused requests.",
         Nothing, ClusterView, _cluster),
    Tool("findings", "What is wrong in the cluster, since when, and what to do. Begin here.",
         Nothing, Findings, _findings),
    Tool("topics", "Topics with sizes, rates, queues and the groups that read them.",
         TopicsWanted, Topics, _topics),
    Tool("groups", "Consumer groups with lag in messages and seconds, the largest first.",
         GroupsWanted, Groups, _groups),
    Tool("group", "One consumer group: lag by topic and queue, lost and skipped messages.",
         OneGroup, GroupView, _group),
    Tool("members", "The connected members of a consumer group, and what they subscribe to.",
         OneGroup, Members, _members),
    Tool("delayed", "Messages that wait for their delivery time, by delay level.",
         Nothing, Delayed, _delayed),
    Tool("explain", "What a response code, a log event or a server's remark means.",
         Question, Meanings, _explain),
)  # fmt: skip
