# SPDX-License-Identifier: Apache-2.0
"""Send one message to a topic, for a test or a repair."""

from typing import Final

from cometmq.client import Message
from cometmq.client.admin import AdminClient
from cometmq.client.errors import InvalidArgument
from cometmq.client.settings import ProducerOptions
from cometmq.console.login.roles import Role
from cometmq.console.pages.topics import PATH
from cometmq.console.web.action import Action, Field, Form
from cometmq.console.web.page import View
from cometmq.console.web.problems import bad, missing
from cometmq.insight.changes.change import Consequence, Done, Plan, Risk
from cometmq.insight.model import TopicKind
from cometmq.insight.words import command, counted, sized

GROUP: Final = "cometmq-console"
DELAY_LEVEL_MAX: Final = 18


async def prepare(view: View) -> Form:
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
        "message.send", "/topic/send", "Send the message", Role.OPERATOR, Risk.MEDIUM, prepare,
        section=PATH, by_post=True,
    ),
)  # fmt: skip
