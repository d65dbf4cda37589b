# SPDX-License-Identifier: Apache-2.0
"""Creates, alters and deletes topics, after showing the consequences."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from cometmq.client.admin import AdminClient
from cometmq.client.errors import InvalidArgument
from cometmq.client.message import check_topic
from cometmq.console.login.roles import Role
from cometmq.console.pages.topics import PATH, permission
from cometmq.console.web.action import Action, Consequence, Field, Form, Plan, Risk
from cometmq.console.web.page import View
from cometmq.console.web.problems import bad, missing
from cometmq.insight.model import Snapshot, Topic, TopicKind, Unknown, known
from cometmq.insight.words import command, counted, listed
from cometmq.remoting.bodies.topic_config import QUEUES_MAX, TopicConfig
from cometmq.remoting.message.flags import Perm

QUEUES_DEFAULT: Final = 8
_PERMS: Final = {"rw": int(Perm.READ | Perm.WRITE), "r": int(Perm.READ), "w": int(Perm.WRITE),
                 "none": 0}  # fmt: skip
_PERM_OPTIONS: Final = (
    ("rw", "send and consume"), ("r", "consume only"), ("w", "send only"), ("none", "nothing")
)  # fmt: skip


def _perm(view: View, default: str) -> str:
    word = view.text("perm", default)
    if word not in _PERMS:
        raise bad(f"perm must be one of {', '.join(_PERMS)}", field="perm")
    return word


# -- create ---------------------------------------------------------------------------------------


async def prepare_create(view: View) -> Form:
    name, queues = view.text("name"), view.number("queues", QUEUES_DEFAULT, low=1, high=QUEUES_MAX)
    perm = _perm(view, "rw")
    fields = [
        Field("name", "Name", value=name, is_needed=True,
              help="Letters, digits, - and _, % and |; at most 127."),
        Field("queues", "Queues per broker", "number", str(queues),
              help="At most this many consumers per broker read at the same time."),
        Field("perm", "Clients may", "select", perm, _PERM_OPTIONS),
    ]  # fmt: skip
    if not name:
        return Form(fields)
    refusal = ""
    try:
        check_topic(name)
    except InvalidArgument as error:
        refusal = str(error)
    existing = {} if refusal else await view.admin().topic_configs(name)
    masters = await view.admin().masters()
    if existing:
        refusal = f"the topic {name} exists already: alter it"
    elif not refusal:
        config = TopicConfig(read_queue_nums=queues, write_queue_nums=queues)
        after = dict.fromkeys(masters, config)
        refusal = await view.admin().too_many_queues(name, {}, after)
    left = _orphans(await view.snapshot(), name)

    async def perform(admin: AdminClient) -> str:
        await admin.create_topic(
            name, queue_count=queues, perm=_PERMS[perm], broker_names=sorted(masters)
        )
        return f"The topic {name} exists now, with {counted(queues, 'queue')} per broker."

    consequences = [Consequence(f"It is created on {listed(sorted(masters))}.")]
    if left:
        consequences.append(
            Consequence(f"Groups that read an older topic of this name go on at their old offsets,"
                        f" and may skip messages: {listed(left)}.", "warn")
        )  # fmt: skip
    return Form(
        fields,
        Plan(
            what=f"Create the topic {name}",
            subject=name,
            before={},
            after={"queues": queues, "perm": perm, "brokers": sorted(masters)},
            compared=sorted(masters),
            consequences=consequences,
            command=command(
                "topic create", name, options=("--queues", str(queues), "--perm", perm)
            ),
            perform=perform,
            leads_to=view.href("/topic", name=name) if not refusal else view.href(PATH),
            refusal=refusal,
        ),
    )


def _orphans(snapshot: Snapshot, name: str) -> list[str]:
    """Return the groups with an offset in a topic that does not exist."""
    return [
        group.name
        for group in known(snapshot.groups)
        if any(it.topic == name for it in group.topics)
    ]


# -- alter ----------------------------------------------------------------------------------------


async def prepare_alter(view: View) -> Form:
    """Plan other queues or rights of a topic, on all its brokers."""
    name = view.needed("name")
    before = await view.admin().topic_configs(name)
    if not before:
        raise missing(f"no broker has the topic {name}")
    one = next(iter(before.values()))
    read = view.number("read", one.read_queue_nums, low=1, high=QUEUES_MAX)
    write = view.number("write", one.write_queue_nums, low=1, high=QUEUES_MAX)
    perm = _perm(view, permission(one.perm))
    fields = [
        Field("name", "Topic", "hidden", name),
        Field("read", "Queues that consumers read", "number", str(read)),
        Field("write", "Queues to which producers send", "number", str(write)),
        Field("perm", "Clients may", "select", perm, _PERM_OPTIONS),
    ]
    if not view.text("read") and not view.text("write") and not view.text("perm"):
        return Form(
            fields, intro=f"The change of {name} applies at every broker that has the topic."
        )
    after = {
        broker: msgspec.structs.replace(
            config, read_queue_nums=read, write_queue_nums=write,
            perm=config.perm & ~_PERMS["rw"] | _PERMS[perm],
        )
        for broker, config in before.items()
    }  # fmt: skip
    refusal = "" if after != before else "the topic is already like this"
    refusal = refusal or await view.admin().too_many_queues(name, before, after)
    return Form(
        fields,
        Plan(
            what=f"Change the topic {name}",
            subject=name,
            before=_table(before),
            after=_table(after),
            consequences=await _alter_consequences(view, name, before, after),
            command=command(
                "topic alter",
                name,
                options=("--read-queues", str(read), "--write-queues", str(write), "--perm", perm),
            ),
            perform=_alteration(name, after),
            leads_to=view.href("/topic", name=name),
            refusal=refusal,
        ),
    )


def _alteration(name: str, after: Mapping[str, TopicConfig]) -> Any:
    async def perform(admin: AdminClient) -> str:
        masters = await admin.masters_to_change(None, list(after))
        await admin.change_each(
            masters.values(), lambda it: it.create_topic(after[it.name]), f"change {name}"
        )
        return f"The topic {name} is changed at {listed(sorted(after))}."

    return perform


def _table(configs: Mapping[str, TopicConfig]) -> dict[str, str]:
    return {
        f"{broker}: queues read / written, rights": (
            f"{it.read_queue_nums} / {it.write_queue_nums}, {permission(it.perm)}"
        )
        for broker, it in sorted(configs.items())
    }


async def _alter_consequences(
    view: View, name: str, before: Mapping[str, TopicConfig], after: Mapping[str, TopicConfig]
) -> list[Consequence]:
    found: list[Consequence] = []
    stats = await view.admin().topic_stats(name)
    hidden = {
        queue: it.max_offset - it.min_offset
        for queue, it in stats.items()
        if (own := after.get(queue.broker_name)) is not None
        and own.read_queue_nums <= queue.queue_id < before[queue.broker_name].read_queue_nums
    }
    if hidden:
        text = counted(sum(hidden.values()), "message")
        found.append(
            Consequence(f"Consumers no longer see {counted(len(hidden), 'queue')} with {text}."
                        " Lower the queues to which producers send first, and these once all"
                        " groups have read them.", "bad")
        )  # fmt: skip
    if any(it.write_queue_nums > it.read_queue_nums for it in after.values()):
        found.append(Consequence("Producers send to queues that nobody reads.", "bad"))
    lost = {
        word
        for broker, it in after.items()
        for flag, word in ((Perm.WRITE, "send"), (Perm.READ, "consume"))
        if before[broker].perm & ~it.perm & flag
    }
    found += [Consequence(f"Clients can no longer {word}.", "bad") for word in sorted(lost)]
    if any(it.write_queue_nums != before[broker].write_queue_nums for broker, it in after.items()):
        found.append(
            Consequence(
                "Messages with the same sharding key go to other queues from now on.", "warn"
            )
        )
    return found or [Consequence("Clients learn of it within 30 s.")]


# -- delete ---------------------------------------------------------------------------------------


async def prepare_delete(view: View) -> Form:
    name = view.needed("name")
    snapshot = await view.snapshot()
    found = snapshot.topic(name)
    if found is None:
        raise missing(f"there is no topic {name}")

    async def perform(admin: AdminClient) -> str:
        await admin.delete_topic(name)
        return f"The topic {name} is deleted."

    return Form(
        [Field("name", "Topic", "hidden", name)],
        Plan(
            what=f"Delete the topic {name} with its messages",
            subject=name,
            before={"brokers": list(found.brokers), "queues": found.write_queues},
            after=None,
            consequences=_delete_consequences(snapshot, found),
            command=command("topic delete", name),
            perform=perform,
            leads_to=view.href(PATH),
            refusal="the brokers need this topic themselves"
            if found.kind is TopicKind.SYSTEM
            else "",
        ),
    )


def _delete_consequences(snapshot: Snapshot, topic: Topic) -> list[Consequence]:
    messages = topic.messages
    text = "All messages" if isinstance(messages, Unknown) else counted(messages, "message")
    found = [Consequence(f"{text} can no longer be read.", "bad" if messages else "")]
    for group in known(snapshot.groups):
        own = next((it for it in group.topics if it.topic == topic.name), None)
        if own is None:
            continue
        members = group.members
        count = 0 if isinstance(members, Unknown) else len(members)
        lag = "an unknown number of messages" if isinstance(own.lag, Unknown) else counted(
            own.lag, "message"
        )  # fmt: skip
        found.append(
            Consequence(f"The group {group.name} has {counted(count, 'member')} and has not read"
                        f" {lag}. It keeps its offsets.", "bad" if count or own.lag else "warn")
        )  # fmt: skip
    if isinstance(topic.in_per_s, float) and topic.in_per_s > 0:
        found.append(
            Consequence("Producers send to it now. Brokers with autoCreateTopicEnable create it"
                        " again.", "bad")
        )  # fmt: skip
    return found


ACTIONS: Final = (
    Action("topic.create", "/topic/create", "Create the topic", Role.ADMIN, Risk.LOW,
           prepare_create, section=PATH),
    Action("topic.alter", "/topic/alter", "Change the topic", Role.ADMIN, Risk.MEDIUM,
           prepare_alter, section=PATH),
    Action("topic.delete", "/topic/delete", "Delete the topic", Role.ADMIN, Risk.HIGH,
           prepare_delete, section=PATH),
)  # fmt: skip
