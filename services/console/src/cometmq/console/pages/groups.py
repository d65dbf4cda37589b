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
from cometmq.insight.consumer_groups import OWN_OFFSETS, loss_facts
from cometmq.insight.members import Owners, owner_words, owners_of
from cometmq.insight.model import Member, Unknown
from cometmq.insight.queue_states import QueueState, queue_states, time_to_loss, unread_since_ms
from cometmq.insight.views.cluster import loss_cell, retry_rates
from cometmq.insight.views.view import Column, address
from cometmq.insight.words import command, count, lasting, rate
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.bodies.running_info import ConsumerRunningInfo, ProcessQueueInfo
from cometmq.remoting.integers import whole
from cometmq.remoting.names import retry_topic
from cometmq.remoting.versions import version_name

PATH: Final = "/groups"


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


def member_columns(group: str) -> list[Column[Member]]:
    return [
        Column("id", "Client id", lambda it: it.client_id,
               link=lambda it: address("/group/member", name=group, client=it.client_id)),
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
    since_ms = None
    lag: int | Unknown = OWN_OFFSETS
    behind_s: float | Unknown | None = OWN_OFFSETS
    loss_s: float | Unknown | None = OWN_OFFSETS
    if not found.is_broadcasting:
        known_s = [it.behind_s for it in states if it.behind_s is not None]
        since_ms, behind_s = unread_since_ms(states), max(known_s, default=None)
        lag, loss_s = sum(it.lag for it in states), await time_to_loss(view.admin(), states)
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
            "loss": loss_cell(loss_s),
            "retried": retry_rates(snapshot).get(retry_topic(name), 0),
            "topics": [it.topic for it in found.topics],
            "lag": lag,
            "behind_s": behind_s,
            "since_ms": since_ms,
            "queues": view.table(
                states, queue_columns(owners), default="-lag", keep=("name", "hours"),
                name="queue_",
                search=lambda it: f"{it.queue.topic} {it.queue.broker_name}",
            ),
            "members": view.table(
                members, member_columns(name), default="id", keep=("name", "hours"),
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
    Page("/group", "Group", "group.html", group, section=PATH),
    Page("/group/member", "Member", "member.html", member, section=PATH),
)
