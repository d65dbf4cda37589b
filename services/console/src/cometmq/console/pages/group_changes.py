# SPDX-License-Identifier: Apache-2.0
"""Moves, creates, alters and deletes consumer groups, after showing the consequences."""

import asyncio
from typing import Any, Final, NamedTuple

import msgspec

from cometmq.client.admin import END, AdminClient
from cometmq.client.admin.broker import BrokerAdmin
from cometmq.client.errors import InvalidArgument
from cometmq.client.message import check_group
from cometmq.console.login.roles import Role
from cometmq.console.pages.groups import PATH, member_count
from cometmq.console.web.action import Action, Consequence, Field, Form, Plan, Risk
from cometmq.console.web.page import View
from cometmq.console.web.problems import bad, missing
from cometmq.insight.model import Group, Unknown
from cometmq.insight.queue_states import QueueState, queue_states
from cometmq.insight.times import shown
from cometmq.insight.words import command, counted
from cometmq.remoting.bodies.topic_config import SubscriptionGroupConfig
from cometmq.remoting.names import retry_topic

FIRST: Final = "first"
LAST: Final = "last"
RETRIES_MAX: Final = 1_000


class Move(NamedTuple):
    """The effect of a reset on one queue."""

    queue: str
    now: int
    then: int

    @property
    def again(self) -> int:
        """Messages that are delivered again."""
        return max(0, self.now - self.then)

    @property
    def skipped(self) -> int:
        """Unread messages that are never delivered."""
        return max(0, self.then - self.now)


async def _group(view: View) -> Group:
    name = view.needed("name")
    found = (await view.snapshot()).group(name)
    if found is None:
        raise missing(f"there is no group {name}, or no broker that knows it answers")
    return found


# -- reset ----------------------------------------------------------------------------------------


async def prepare_reset(view: View) -> Form:
    """Plan to move a group to other offsets in one topic."""
    group = await _group(view)
    retries = retry_topic(group.name)  # rarely meant, so it is offered last
    topics = sorted((it.topic for it in group.topics), key=lambda it: (it == retries, it))
    own = [it for it in topics if it != retries] or topics
    topic = view.text("topic", own[0] if len(own) == 1 else "")
    where = view.text("to")
    never_forward = view.is_set("backwards")
    fields = [
        Field("name", "Group", "hidden", group.name),
        Field("topic", "Topic", "select", topic, [(it, it) for it in topics]),
        Field("to", "Continue at", value=where, is_needed=True,
              help="first, last, a time such as 2026-11-20T10:00Z, or an age such as 90m."),
        Field("backwards", "Never move a queue forward", "check", "1" if never_forward else ""),
    ]  # fmt: skip
    if not where:
        return Form(fields, intro=f"The group {group.name} continues elsewhere in a topic.")
    if topic not in topics:
        raise bad(f"the group {group.name} does not read the topic {topic}")
    now_ms = view.desk.clock.now_ms()
    at_ms = _time(view, where, now_ms)
    states = list(await queue_states(view.admin(), group.name, topic))
    moves = await _moves(view, states, at_ms, never_forward=never_forward)
    text = {0: "the first message", END: "the end"}.get(at_ms) or f"{shown(at_ms)}"

    async def perform(admin: AdminClient) -> str:
        moved = await admin.reset_offsets(group.name, topic, at_ms, is_forced=not never_forward)
        return f"The group {group.name} continues at {text} in {counted(len(moved), 'queue')}."

    return Form(
        fields,
        Plan(
            what=f"Move {group.name} in {topic} to {text}",
            subject=group.name,
            before={it.queue: it.now for it in moves},
            after={it.queue: it.then for it in moves},
            consequences=_reset_consequences(group, moves),
            command=command(
                "group reset",
                group.name,
                topic,
                options=("--to", where, *(("--backwards",) if never_forward else ())),
            ),
            perform=perform,
            leads_to=view.href("/group", name=group.name),
            refusal="" if moves else f"the group has no offset in {topic} at a broker that answers",
            compared=[it.queue for it in moves],  # offsets move while the group reads
        ),
    )


def _time(view: View, where: str, now_ms: int) -> int:
    if where in {FIRST, LAST}:
        return 0 if where == FIRST else END
    return view.moment("to", now_ms=now_ms, words=(FIRST, LAST)) or 0


async def _moves(
    view: View, states: list[QueueState], at_ms: int, *, never_forward: bool
) -> list[Move]:
    masters = await view.admin().masters()

    async def move(state: QueueState) -> Move:
        queue = state.queue
        if at_ms == END:
            then = state.max_offset
        elif at_ms == 0:
            then = state.min_offset
        else:
            broker = masters[queue.broker_name]
            then = await broker.search_offset(queue.topic, queue.queue_id, at_ms)
        if never_forward:
            then = min(then, state.committed)
        return Move(f"{queue.broker_name}:{queue.queue_id}", state.committed, then)

    async with asyncio.TaskGroup() as tasks:
        asked = [tasks.create_task(move(it)) for it in states if it.queue.broker_name in masters]
    return [task.result() for task in asked]


def _reset_consequences(group: Group, moves: list[Move]) -> list[Consequence]:
    again, skipped = sum(it.again for it in moves), sum(it.skipped for it in moves)
    found = []
    if again:
        found.append(
            Consequence(f"{counted(again, 'message')} {_is(again)} delivered again.", "warn")
        )
    if skipped:
        text = f"{counted(skipped, 'message')} that the group has not read {_is(skipped)} skipped."
        found.append(Consequence(text, "bad"))
    if not again and not skipped:
        found.append(Consequence("Nothing is delivered again, and nothing is skipped."))
    if member_count(group):
        found.append(Consequence("Connected members continue there within a few seconds."))
    return found


def _is(count: int) -> str:
    return "is" if count == 1 else "are"


# -- create and alter -----------------------------------------------------------------------------


def _retries_field(retries: int) -> Field:
    return Field(
        "retries", "Deliveries after the first, before a message is a dead letter", "number",
        str(retries),
        help="Members of Python and Java send their own limit, 16 unless they set another.",
    )  # fmt: skip


async def prepare_create(view: View) -> Form:
    name = view.text("name")
    retries = view.number("retries", 16, high=RETRIES_MAX)
    fields = [
        Field("name", "Name", value=name, is_needed=True),
        _retries_field(retries),
    ]  # fmt: skip
    if not name:
        return Form(fields)
    refusal = ""
    try:
        check_group(name)
    except InvalidArgument as error:
        refusal = str(error)
    if not refusal and name in await view.admin().groups():
        refusal = f"the group {name} exists already: alter it"

    async def perform(admin: AdminClient) -> str:
        config = SubscriptionGroupConfig(group_name=name, retry_max_times=retries)
        await admin.create_group(config)
        return f"The group {name} exists now."

    return Form(
        fields,
        Plan(
            what=f"Create the group {name}",
            subject=name,
            before={},
            after={"retries": retries},
            consequences=[Consequence("It begins at the end of its topics, unless its members ask"
                                      " for the first message.")],
            command=command("group create", name, options=("--retries", str(retries))),
            perform=perform,
            leads_to=view.href(PATH, find=name),
            refusal=refusal,
        ),
    )  # fmt: skip


async def prepare_alter(view: View) -> Form:
    group = await _group(view)
    configs = await _configs_of(view.admin(), group.name)
    if not configs:
        raise missing(f"no broker has settings of the group {group.name}: create it")
    before = next(iter(configs.values()))
    retries = view.number("retries", before.retry_max_times, high=RETRIES_MAX)
    enabled = view.text("enabled", "yes" if before.consume_enable else "no")
    fields = [
        Field("name", "Group", "hidden", group.name),
        _retries_field(retries),
        Field("enabled", "Members may read", "select", enabled, (("yes", "yes"), ("no", "no"))),
    ]  # fmt: skip
    if not view.text("retries") and not view.text("enabled"):
        text = f"The change of {group.name} applies at every broker."
        return Form(fields, intro=text)
    changes = {"retry_max_times": retries, "consume_enable": enabled == "yes"}
    after = msgspec.structs.replace(before, **changes)
    is_like_this = all(msgspec.structs.replace(it, **changes) == it for it in configs.values())

    async def change(broker: BrokerAdmin) -> None:
        own = (await broker.groups()).get(group.name, before)  # brokers may differ in the others
        await broker.create_group(msgspec.structs.replace(own, **changes))

    async def perform(admin: AdminClient) -> str:
        masters = (await admin.masters_to_change()).values()
        await admin.change_each(masters, change, f"change the group {group.name}")
        return f"The group {group.name} is changed."

    consequences = []
    if before.consume_enable and not after.consume_enable:
        text = f"{counted(_count(group), 'member')} can no longer read."
        consequences.append(Consequence(text, "bad"))
    if retries < before.retry_max_times:
        consequences.append(Consequence("Failing messages become dead letters earlier.", "warn"))
    flag = "--enabled" if after.consume_enable else "--no-enabled"
    return Form(
        fields,
        Plan(
            what=f"Change the group {group.name}",
            subject=group.name,
            before=_settings(before),
            after=_settings(after),
            consequences=consequences,
            command=command("group alter", group.name, options=("--retries", str(retries), flag)),
            perform=perform,
            leads_to=view.href("/group", name=group.name),
            refusal="the group is already like this" if is_like_this else "",
            compared=configs,
        ),
    )


async def _configs_of(admin: AdminClient, name: str) -> dict[str, SubscriptionGroupConfig]:
    masters = (await admin.masters()).values()
    tables = await admin.ask_each(masters, lambda it: it.groups())
    return {broker.name: table[name] for broker, table in tables if name in table}


def _count(group: Group) -> int:
    return 0 if isinstance(group.members, Unknown) else len(group.members)


def _settings(config: SubscriptionGroupConfig) -> dict[str, Any]:
    return {
        "retries": config.retry_max_times,
        "members may read": "yes" if config.consume_enable else "no",
    }


# -- delete ---------------------------------------------------------------------------------------


async def prepare_delete(view: View) -> Form:
    group = await _group(view)
    with_offsets = view.text("offsets", "keep") == "remove"
    fields = [
        Field("name", "Group", "hidden", group.name),
        Field("offsets", "Its offsets", "select", "remove" if with_offsets else "keep",
              (("keep", "keep"), ("remove", "remove"))),
    ]  # fmt: skip

    async def perform(admin: AdminClient) -> str:
        await admin.delete_group(group.name, remove_offsets=with_offsets)
        return f"The group {group.name} is deleted."

    lag = "an unknown number of messages" if isinstance(group.lag, Unknown) else counted(
        group.lag, "message"
    )  # fmt: skip
    return Form(
        fields,
        Plan(
            what=f"Delete the group {group.name}",
            subject=group.name,
            before={"retries": group.retries},
            after=None,
            consequences=[
                Consequence(f"It has not read {lag}.", "bad" if group.lag else ""),
                Consequence("Its retry topic and its dead letters stay until they are deleted."),
                Consequence("If it comes back, it begins anew." if with_offsets else
                            "If it comes back, it continues where it was.",
                            "warn" if with_offsets else ""),
            ],
            command=command(
                "group delete",
                group.name,
                options=("--offsets" if with_offsets else "--keep-offsets",),
            ),
            perform=perform,
            leads_to=view.href(PATH),
            refusal=f"the group has {counted(_count(group), 'connected member')}: stop them first"
            if _count(group)
            else "the brokers need this group themselves"
            if group.is_system
            else "",
        ),
    )  # fmt: skip


ACTIONS: Final = (
    Action("group.reset", "/group/reset", "Move the group", Role.OPERATOR, Risk.MEDIUM,
           prepare_reset, section=PATH),
    Action("group.create", "/group/create", "Create the group", Role.ADMIN, Risk.LOW,
           prepare_create, section=PATH),
    Action("group.alter", "/group/alter", "Change the group", Role.ADMIN, Risk.MEDIUM,
           prepare_alter, section=PATH),
    Action("group.delete", "/group/delete", "Delete the group", Role.ADMIN, Risk.HIGH,
           prepare_delete, section=PATH),
)  # fmt: skip
