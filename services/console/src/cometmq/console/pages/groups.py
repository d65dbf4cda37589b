# SPDX-License-Identifier: Apache-2.0
"""Consumer groups: members, subscriptions that disagree, lag per queue and over time."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from cometmq.console.history.source import group_key
from cometmq.console.login.roles import Role
from cometmq.console.pages.plotted import Drawing, plots
from cometmq.console.web.page import Page, Shown, View, silent_brokers
from cometmq.console.web.problems import missing
from cometmq.console.web.rendering import wants_json
from cometmq.console.web.tables import Column
from cometmq.insight.consumer_groups import loss_facts, loss_words
from cometmq.insight.judge import RISK_S, Status, judge
from cometmq.insight.members import Owners, owner_words, owners_of
from cometmq.insight.model import Group, Member, Snapshot, TopicKind, Unknown, known
from cometmq.insight.queue_states import QueueState, queue_states, time_to_loss, unread_since_ms
from cometmq.insight.rules.consuming import facts_of
from cometmq.insight.words import command, count, lasting, rate
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.bodies.running_info import ConsumerRunningInfo, ProcessQueueInfo
from cometmq.remoting.integers import whole
from cometmq.remoting.names import retry_topic
from cometmq.remoting.versions import version_name

PATH: Final = "/groups"


def columns(view: View, snapshot: Snapshot) -> list[Column[Group]]:
    """Return the columns of the list: which groups are in trouble, since when, and how urgent it
    is. They fit on a laptop's screen; the group's page has the other figures.
    """
    rates, now_ms = _retry_rates(snapshot), snapshot.taken_ms
    return [
        Column("name", "Group", lambda it: it.name,
               link=lambda it: view.href("/group", name=it.name)),
        Column("state", "State", lambda it: state_of(it, now_ms),
               tone=lambda it: _tone(state_of(it, now_ms))),
        Column("lag", "Lag", lambda it: it.lag, "number", help="Messages that it has not read"),
        Column("behind", "Behind", lambda it: it.behind_s, "duration",
               help="Age of its oldest unread message"),
        Column("still", "Not reading since", lambda it: it.still_since, "pause",
               help="Since when its committed offsets have stayed, though messages are unread"),
        Column("loss", "Time to loss", lambda it: loss(it.loss_s), "loss",
               tone=lambda it: _loss_tone(it.loss_s),
               help="Until its oldest unread message may be deleted for its age"),
        Column("retried", "Retried", lambda it: rates.get(retry_topic(it.name), 0), "rate",
               help="Failed messages that are delivered again, per second"),
        Column("dead", "Dead letters", lambda it: it.dead_letters, "number",
               link=lambda it: view.href("/dead-letters/group", group=it.name)
               if it.dead_letters
               else ""),
        Column("members", "Members", member_count, "number"),
    ]  # fmt: skip


def _retry_rates(snapshot: Snapshot) -> dict[str, float | Unknown]:
    """Return how many failed messages are delivered again per second, by retry topic."""
    return {it.name: it.in_per_s for it in known(snapshot.topics) if it.kind is TopicKind.RETRY}


def loss(loss_s: float | Unknown | None) -> float | Unknown | str:
    """Return the time to loss for a cell; `never` instead of None."""
    return loss_words(None) if loss_s is None else loss_s


def _loss_tone(loss_s: float | Unknown | None) -> str:
    if loss_s is None or isinstance(loss_s, Unknown):
        return ""
    return "bad" if loss_s < RISK_S else ""


def member_count(group: Group) -> int | Unknown:
    return group.members if isinstance(group.members, Unknown) else len(group.members)


def state_of(group: Group, now_ms: int) -> str:
    """Return the worst problem of a group in a word or two, or that it has none."""
    if not group.is_enabled:
        return "disabled"
    status = judge(facts_of(group, now_ms))
    if group.disagreements and status is not Status.LOST:
        return "members disagree"
    return "no members" if status is Status.OK and not member_count(group) else status.word


def _tone(state: str) -> str:
    if state in {"no members", "disabled", "members disagree"}:
        return {"no members": "", "disabled": "warn"}.get(state, "bad")
    status = next(it for it in Status if it.word == state)
    return {"ok": "good", "info": "", "warn": "warn"}.get(status.severity, "bad")


async def groups(view: View) -> Shown:
    snapshot = await view.snapshot()
    with_all = view.is_set("all")
    rows = [it for it in known(snapshot.groups) if with_all or not it.is_system]
    table = view.table(
        rows,
        columns(view, snapshot),
        default="-lag",
        keep=("all",),
        search=lambda it: " ".join([it.name, *(one.topic for one in it.topics)]),
    )
    unknown = snapshot.groups.reason if isinstance(snapshot.groups, Unknown) else ""
    rates = _retry_rates(snapshot)
    told = [
        msgspec.structs.asdict(it)
        | {
            "state": state_of(it, snapshot.taken_ms),
            "retried_per_s": rates.get(retry_topic(it.name), 0),
        }
        for it in (rows if wants_json(view.request) else ())
    ]
    return Shown(
        told,
        "cometmq lag",
        snapshot.taken_ms,
        silent_brokers(snapshot),
        extra={"table": table, "with_all": with_all, "unknown": unknown},
    )


def queue_columns(owners: Owners) -> list[Column[QueueState]]:
    return [
        *QUEUES,
        Column("owners", "Owners", lambda it: owner_words(owners.of(it.queue)),
               tone=lambda it: "warn" if owners.of(it.queue) == [] else "",
               help="The members that have the queue, as they say themselves"),
    ]  # fmt: skip


QUEUES: Final[list[Column[QueueState]]] = [
    Column("topic", "Topic", lambda it: it.queue.topic),
    Column("broker", "Broker", lambda it: it.queue.broker_name),
    Column("queue", "Queue", lambda it: it.queue.queue_id, "number"),
    Column("lag", "Lag", lambda it: it.lag, "number", tone=lambda it: "warn" if it.lag else ""),
    Column("behind", "Behind", lambda it: it.behind_s, "duration"),
    Column("committed", "Committed", lambda it: it.committed, "number"),
    Column("first", "First", lambda it: it.min_offset, "number"),
    Column("end", "End", lambda it: it.max_offset, "number"),
    Column("lost", "Lost", lambda it: it.lost_count, "number",
           tone=lambda it: "bad" if it.lost_count else "",
           help="Messages that were deleted before the group read them"),
    Column("skips", "Will skip", lambda it: it.skip_count, "number",
           tone=lambda it: "bad" if it.skip_count else ""),
]  # fmt: skip


def member_columns(view: View, group: str) -> list[Column[Member]]:
    return [
        Column("id", "Client id", lambda it: it.client_id,
               link=lambda it: view.href("/group/member", name=group, client=it.client_id)),
        Column("address", "Address", lambda it: it.address.lstrip("/")),
        Column("language", "Language", lambda it: it.language),
        Column("version", "Version", lambda it: version_name(it.version)),
        Column("brokers", "Connected to", lambda it: it.brokers),
    ]  # fmt: skip


async def group(view: View) -> Shown:
    name = view.needed("name")
    snapshot = await view.snapshot()
    found = snapshot.group(name)
    if found is None:
        raise missing(f"there is no group {name}, or no broker that knows it answers")
    wrong = [
        it for it in view.desk.findings.of(snapshot) if it.subject.partition(" in ")[0] == name
    ]
    states = await queue_states(view.admin(), name)
    since_ms = None if found.is_broadcasting else unread_since_ms(states)
    loss_s = found.loss_s
    if isinstance(loss_s, Unknown) and not found.is_broadcasting:
        loss_s = await time_to_loss(view.admin(), states)
    online = None if isinstance(found.members, Unknown) else [it.client_id for it in found.members]
    owners = await owners_of(view.admin(), name, () if found.is_broadcasting else online or ())
    members: Sequence[Member] = () if isinstance(found.members, Unknown) else found.members
    return Shown(
        {
            "group": found,
            "queues": states,
            "owners": [{"queue": it.queue, "owners": owners.of(it.queue)} for it in states],
            "oldest_unread_ms": since_ms,
            **loss_facts(loss_s),
        },
        command("group describe", name),
        snapshot.taken_ms,
        silent_brokers(snapshot),
        extra={
            "group": found,
            "findings": wrong,
            "loss": loss(loss_s),
            "retried": _retry_rates(snapshot).get(retry_topic(name), 0),
            "topics": [it.topic for it in found.topics],
            "behind_s": _behind(found, states),
            "since_ms": since_ms,
            "queues": view.table(
                states, queue_columns(owners), default="-lag", keep=("name", "hours"),
                name="queue_",
                search=lambda it: f"{it.queue.topic} {it.queue.broker_name}",
            ),
            "members": view.table(
                members, member_columns(view, name), default="id", keep=("name", "hours"),
                name="member_", search=lambda it: f"{it.client_id} {it.address} {it.language}",
            ),
            **await plots(
                view,
                [
                    Drawing("Unread messages", count, {"lag": group_key(name, "lag")}),
                    Drawing("Age of the oldest unread message", lasting,
                            {"behind": group_key(name, "behind")}),
                    Drawing("Messages read per second", rate, {"read": group_key(name, "out")}),
                ],
            ),
        },
        title=f"Group {name}",
    )  # fmt: skip


def _behind(group: Group, states: Sequence[QueueState]) -> float | Unknown:
    """Return the age of the oldest unread message, from the snapshot or else from the queues."""
    known_s = [it.behind_s for it in states if it.behind_s is not None]
    if isinstance(group.behind_s, Unknown) and len(known_s) == len(states) and states:
        return max(known_s)
    return group.behind_s


async def member(view: View) -> Shown:
    """Show the running info of a connected member; its stacks only to operators."""
    name, client = view.needed("name"), view.needed("client")
    with_stack = view.is_set("stack") and view.user.role >= Role.OPERATOR
    info = await view.admin().running_info(name, client, with_stacks=with_stack)
    return Shown(
        {
            "properties": info.properties,
            "queues": _queue_rows(info),
            "stack": info.jstack if with_stack else "",
        },
        command("mqadmin consumerStatus", options=("-g", name, "-i", client))
        + (" -s" if with_stack else ""),
        view.desk.clock.now_ms(),
        extra={
            "name": name,
            "client": client,
            "info": info,
            "queues": view.table(
                info.mq_table.items(),
                HELD,
                default="queue",
                keep=("name", "client", "stack"),
                search=lambda it: _place(it[0]),
            ),
            "properties": [_fact(*it) for it in sorted(info.properties.items())],
            "with_stack": with_stack,
        },
        title=f"Member {client}",
    )


def _place(queue: MessageQueue) -> str:
    return f"{queue.topic} {queue.broker_name}:{queue.queue_id}"


def _fact(name: str, value: str) -> tuple[str, str | int, str]:
    if name.endswith("TIMESTAMP") and value.isdecimal():
        return name, whole(value) or 0, "moment"
    return name, value, "text"


HELD: Final[list[Column[tuple[MessageQueue, ProcessQueueInfo]]]] = [
    Column("queue", "Queue", lambda it: _place(it[0])),
    Column("held", "Held", lambda it: it[1].cached_msg_count, "number",
           help="Messages that the member has pulled, and not consumed yet"),
    Column("first", "First held", lambda it: _held(it[1], it[1].cached_msg_min_offset), "number",
           help="Its offset"),
    Column("last", "Last held", lambda it: _held(it[1], it[1].cached_msg_max_offset), "number"),
    Column("committed", "Committed", lambda it: it[1].commit_offset, "number"),
    Column("consumed", "Last consumed", lambda it: it[1].last_consume_timestamp, "moment"),
    Column("pulled", "Last pulled", lambda it: it[1].last_pull_timestamp, "moment"),
    Column("locked", "Locked", lambda it: it[1].locked, "flag",
           help="Whether no other member may read it: only of orderly groups"),
    Column("dropped", "Given up", lambda it: it[1].droped, "flag",
           help="Whether another member gets the queue"),
]  # fmt: skip


def _held(info: ProcessQueueInfo, offset: int) -> int | None:
    return offset if info.cached_msg_count else None


def _queue_rows(info: ConsumerRunningInfo) -> list[Mapping[str, Any]]:
    return [
        {
            "queue": _place(queue),
            **msgspec.to_builtins(found),
        }
        for queue, found in sorted(info.mq_table.items())
    ]


PAGES: Final = (
    Page(PATH, "Consumer groups", "groups.html", groups, menu="Groups"),
    Page("/group", "Group", "group.html", group, section=PATH),
    Page("/group/member", "Member", "member.html", member, section=PATH),
)
