# SPDX-License-Identifier: Apache-2.0
"""Deletes the messages of a topic before an offset or a time, such as all dead letters."""

import re
from typing import Final

from cometmq.client.admin import AdminClient
from cometmq.client.admin.trims import Before, Trim, carry_out, plan_trim
from cometmq.client.errors import ClientError, InvalidArgument
from cometmq.console.login.roles import Role
from cometmq.console.pages.topics import PATH
from cometmq.console.web.action import Action, Consequence, Field, Form, Plan, Risk
from cometmq.console.web.page import View
from cometmq.console.web.problems import bad, missing
from cometmq.insight.preview import trim_losses, trim_place
from cometmq.insight.words import command, counted, sized
from cometmq.remoting.bodies.queues import MessageQueue

_PLACE: Final = re.compile(r"(\S{1,255}):(\d{1,5})")


async def prepare_trim(view: View) -> Form:
    name, where, place = view.needed("name"), view.text("before"), view.text("queue")
    fields = [
        Field("name", "Topic", "hidden", name),
        Field("before", "Delete the messages before", value=where, is_needed=True,
              help="@TIME, such as @2026-11-20T10:00Z or @7d (ago), end (all), or the offset of"
              " one queue."),
        Field("queue", "Only the queue", value=place, help="BROKER:NUMBER; empty: all queues."),
    ]  # fmt: skip
    if not await view.admin().topic_configs(name):
        raise missing(f"no broker has the topic {name}")
    if not where:
        return Form(
            fields,
            intro="Clients see the queues as after retention. Disk space is freed when retention"
            " reaches the messages in the log, which all topics share.",
        )
    try:
        before = _seen(view, name) or trim_place(where, now_ms=view.desk.clock.now_ms())
        trim = await plan_trim(view.admin(), name, before, _queue(name, place))
    except InvalidArgument as error:
        raise bad(str(error)) from error
    except ClientError as error:
        return Form(fields, _plan(view, Trim(name, (), {}), where, place, refusal=str(error)))
    refusal = "" if trim.messages else "there are no such messages"
    return Form(fields, _plan(view, trim, where, place, refusal=refusal))


def _queue(topic: str, place: str) -> MessageQueue | None:
    if not place:
        return None
    found = _PLACE.fullmatch(place)
    if found is None:
        raise bad(f"{place} is no queue: give BROKER:NUMBER")
    return MessageQueue(topic, found[1], int(found[2]))


def _text(queue: MessageQueue) -> str:
    return f"{queue.broker_name}:{queue.queue_id}"


def _seen(view: View, topic: str) -> Before | None:
    """Return the offsets in the confirmed plan, because later messages must not be deleted; None
    before a plan.
    """
    offsets: dict[MessageQueue, int] = {}
    for part in view.raw("seen").split():
        place, _, offset = part.rpartition("=")
        queue = _queue(topic, place)
        if queue is None or not (offset.isascii() and offset.isdigit()):
            raise bad(f"seen: {part} is not BROKER:NUMBER=OFFSET")
        offsets[queue] = int(offset)
    return Before(offsets=offsets) if offsets else None


def _plan(view: View, trim: Trim, where: str, place: str, *, refusal: str) -> Plan:
    topic, queues = trim.topic, [it for it in trim.queues if it.messages]
    what = counted(trim.messages, "message")
    losses = [f"{loss[0].upper()}{loss[1:]}." for loss in trim_losses(trim)]
    seen = " ".join(f"{_text(it.queue)}={it.before}" for it in queues)

    async def perform(admin: AdminClient) -> str:
        await carry_out(admin, trim)
        return f"{what} of {topic} {'is' if trim.messages == 1 else 'are'} deleted."

    return Plan(
        what=f"Delete {what} of {topic}",
        subject=topic,
        before={f"{_text(it.queue)}: first offset": it.first for it in queues},
        after={f"{_text(it.queue)}: first offset": it.before for it in queues},
        consequences=[
            Consequence(f"{what} ({sized(trim.size)}) can no longer be read.", "bad"),
            *(Consequence(loss, "bad") for loss in losses),
        ],
        command=command(
            "topic trim",
            topic,
            options=("--before", where, *(("--queue", place) if place else ())),
        ),
        perform=perform,
        leads_to=view.href("/topic", name=topic),
        refusal=refusal,
        asks=[Field("seen", "", "hidden", seen)],
        compared=seen,
    )


ACTIONS: Final = (
    Action("topic.trim", "/topic/trim", "Delete the messages", Role.ADMIN, Risk.HIGH,
           prepare_trim, section=PATH),
)  # fmt: skip
