# SPDX-License-Identifier: Apache-2.0
"""`cometmq lag --report`: the status of every consumer group, as one HTML page.

A single look at the cluster shows no trend. The Spark reports (docs/guides/lag-report.md) keep
snapshots and warn before messages are lost.
"""

import socket
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from cometmq.cli.admin import CommandAdmin
from cometmq.cli.consuming.progress import AbsentBrokers, absence, note_left_out
from cometmq.cli.lookup import known_group
from cometmq.cli.outcome import MISSING
from cometmq.cli.output import Cell
from cometmq.cli.verbs.pages import Part, Report
from cometmq.client.admin import AdminClient
from cometmq.insight.findings import findings
from cometmq.insight.history import History
from cometmq.insight.judge import STATES, Status, judge
from cometmq.insight.model import Group, GroupTopic, Snapshot, Unknown, known
from cometmq.insight.queue_states import NOT_READ, QueueState, queue_states, time_to_loss
from cometmq.insight.reading import each
from cometmq.insight.rules.brokers import unreachable
from cometmq.insight.rules.consuming import facts_of
from cometmq.insight.snapshot import look
from cometmq.insight.words import counted, lasting
from cometmq.remoting.errors import CometError
from cometmq.runtime.version import VERSION

COLUMNS: Final = (
    "Status", "Group", "Unread", "Oldest unread", "Members", "Lost", "Dead letters", "Topics",
    "Why",
)  # fmt: skip


class GroupRow(msgspec.Struct, frozen=True):
    """A group and its status; if brokers are missing, its figures are lower bounds."""

    group: Group
    status: Status
    missing: Sequence[str] = ()
    why: Sequence[str] = ()


class LagReport(msgspec.Struct, frozen=True):
    """The consumer groups at one time, worst first."""

    snapshot: Snapshot
    groups: Sequence[GroupRow]
    missing_brokers: Sequence[str] = ()
    """All brokers that did not answer; groups that only they know are not in the report."""

    @property
    def troubled(self) -> int:
        """Return the number of groups that need attention."""
        return sum(it.status.is_bad or it.status is Status.UNKNOWN for it in self.groups)


async def collect(
    admin: CommandAdmin, group: str | None = None, topic: str | None = None
) -> LagReport:
    """Collect the state of one group, or of all groups that users created."""
    if group is not None:
        await known_group(admin, group)
    await admin.masters()  # names the brokers without one
    snapshot = await look(admin)
    note_silent(admin, snapshot)
    if isinstance(snapshot.groups, Unknown):
        raise CometError(f"the groups are unknown: {snapshot.groups.reason}")
    wanted = [it for it in snapshot.groups if it.name == group or (not group and not it.is_system)]
    snapshot = msgspec.structs.replace(snapshot, groups=await with_ages(admin, wanted))
    absent, rows = AbsentBrokers(admin), []
    for it in known(snapshot.groups):
        if topic is not None:
            it = _in_topic(it, topic)  # noqa: PLW2901  # the same group, with fewer topics
        topics = {one.topic for one in it.topics} | {one.topic for one in it.subscriptions}
        missing = await absent.of(it.name, topics, topic)
        facts = facts_of(it, snapshot.taken_ms)
        status = judge(facts - {"known"} if missing else facts)
        why = [absence(missing)] if missing else []
        if status is Status.UNKNOWN and isinstance(it.lag, Unknown):
            why.append(it.lag.reason)
            note_left_out(it.name, it.lag.reason)
        rows.append(GroupRow(it, status, missing, why))
    rows.sort(key=lambda it: (list(Status).index(it.status), -_lag(it.group), it.group.name))
    return LagReport(snapshot, rows, absent.names)


def note_silent(admin: CommandAdmin, snapshot: Snapshot) -> None:
    """Record the masters without which a snapshot was taken, with remedies."""
    why = {it.subject: f"{it.text}; {it.remedy}" for it in unreachable(snapshot, History())}
    for broker in snapshot.brokers:
        text = why.get(f"{broker.name}:{broker.broker_id}")
        if broker.is_master and text is not None:
            admin.unanswered[broker.name] = text
            MISSING.setdefault(broker.address, text)
    for name, text in snapshot.incomplete.items():
        admin.unanswered[name] = text
        MISSING.setdefault(f"{name} incomplete", f"broker {name} answers only in part: {text}")


async def with_ages(admin: AdminClient, groups: Sequence[Group]) -> list[Group]:
    """Return groups with the ages of their oldest unread messages; snapshots lack those that no
    broker has measured, or measures at all.
    """
    kept_s: dict[str, float | None] = {}

    async def aged(group: Group) -> Group:
        if not (group.lag and isinstance(group.lag, int) and isinstance(group.behind_s, Unknown)):
            return group
        try:
            states = await queue_states(admin, group.name)
            loss_s = await time_to_loss(admin, states, kept_s)
        except CometError as error:
            why = Unknown(str(error))
            return msgspec.structs.replace(group, lag=why, behind_s=why)
        topics = [
            msgspec.structs.replace(it, behind_s=_oldest(states, it.topic)) for it in group.topics
        ]
        oldest = _oldest(states, None)
        return msgspec.structs.replace(group, topics=topics, behind_s=oldest, loss_s=loss_s)

    return await each(groups, aged)


def _oldest(states: Sequence[QueueState], topic: str | None) -> float | Unknown:
    """Return the age of the oldest unread message, of one topic or of all."""
    ages = [it.behind_s for it in states if it.lag and topic in (None, it.queue.topic)]
    known_s = [it for it in ages if it is not None]
    return max(known_s) if known_s else NOT_READ if ages else 0.0


def _in_topic(group: Group, topic: str) -> Group:
    topics = [it for it in group.topics if it.topic == topic]
    only = topics[0] if topics else GroupTopic(topic, 0, 0, 0, 0.0)
    return msgspec.structs.replace(group, topics=topics, lag=only.lag, behind_s=only.behind_s)


def _lag(group: Group) -> int:
    return group.lag if isinstance(group.lag, int) else 0


def report_of(found: LagReport) -> Report:
    """Return the report for a page."""
    statuses = {it.status for it in found.groups}
    meanings: list[list[Cell]] = [[it.word, STATES[it].meaning] for it in Status if it in statuses]
    told: dict[str, list[str]] = {}
    for finding in findings(found.snapshot):
        told.setdefault(finding.subject, []).append(f"{finding.text}: {finding.remedy}")
    rows = [_row(it, told) for it in found.groups]
    where = " known to the brokers that answered" if found.missing_brokers else ""
    none = f"No consumer group{where or ' exists'}."
    notes = []
    if found.missing_brokers:
        gap = "no answer, or no master. This page lacks the groups that only missing brokers know"
        notes = [f"{absence(found.missing_brokers)}: {gap}, and figures lack their messages."]
    return Report(
        taken_ms=found.snapshot.taken_ms,
        namesrv=found.snapshot.namesrv,
        host=socket.gethostname(),
        program=f"cometmq {VERSION}",
        verdict=_verdict(found) if rows else none,
        parts=[
            Part("groups", "Groups", COLUMNS, rows, none),
            Part("legend", "Legend", ("Status", "Meaning"), meanings, ""),
        ],
        title="Consumer groups",
        notes=notes,
    )


def _verdict(found: LagReport) -> str:
    if not found.troubled:
        return f"Every group{' on this page' if found.missing_brokers else ''} keeps up."
    verb = "needs" if found.troubled == 1 else "need"
    return f"{found.troubled:,} of {counted(len(found.groups), 'group')} {verb} a look."


def _row(row: GroupRow, told: Mapping[str, Sequence[str]]) -> list[Cell]:
    group = row.group
    least = "at least " if row.missing else ""
    own = (group.name, *(f"{group.name} in {it.topic}" for it in group.topics))
    why = [*row.why, *(text for subject in own for text in told.get(subject, ()))]
    has_offsets = not (group.is_broadcasting or isinstance(group.lag, Unknown))
    return [
        row.status.word,
        group.name,
        f"{least}{group.lag:,}" if has_offsets else None,
        _age(group.behind_s) if has_offsets else None,
        len(known(group.members)),
        group.lost,
        None if isinstance(group.dead_left, Unknown) else group.dead_left,
        "; ".join(map(_topic, group.topics)) or None,
        "; ".join(why) or None,
    ]


def _age(age_s: float | Unknown) -> str:
    return "unknown" if isinstance(age_s, Unknown) else lasting(age_s)


def _topic(topic: GroupTopic) -> str:
    queues = counted(topic.queues, "queue")
    if not topic.lag or isinstance(topic.lag, Unknown):
        return f"{topic.topic}: {'unknown' if topic.lag else 'nothing unread'} in {queues}"
    return f"{topic.topic}: {topic.lag:,} unread in {queues}, the oldest for {_age(topic.behind_s)}"
