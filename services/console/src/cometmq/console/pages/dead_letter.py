# SPDX-License-Identifier: Apache-2.0
"""Sends a corrected copy of one dead letter, whose body is edited as text."""

import re
from typing import Final

import msgspec

from cometmq.client.admin import AdminClient
from cometmq.client.message import MessageExt
from cometmq.console.login.roles import Role
from cometmq.console.web.action import Action, Field, Form
from cometmq.console.web.page import View
from cometmq.console.web.problems import bad, missing
from cometmq.insight.changes.change import Consequence, Done, Link, Plan, Risk
from cometmq.insight.changes.messages import why_not_sent
from cometmq.insight.words import command, sized
from cometmq.remoting.errors import QueryNotFound
from cometmq.remoting.message.properties import PropertyKey
from cometmq.remoting.names import dead_letter_topic

TEXT_BYTES_MAX: Final = 256 << 10
KEYS_CHARS_MAX: Final = 4_000
_CONTROL: Final = re.compile("[^\\n\\t -~\xa0-\U0010ffff]")
"""A character that a browser loses or does not show."""


def editable(body: bytes) -> str | None:
    """Return a body as text for a form; None if a browser would not keep all its characters."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return None
    plain = text.replace("\r\n", "\n")
    is_mixed = plain != text and text.count("\n") != text.count("\r\n")
    return None if is_mixed or _CONTROL.search(plain) else plain


async def edit(view: View) -> Form:
    """Plan to send one dead letter with a corrected body, tag or keys."""
    group, message_id = view.needed("group"), view.needed("id")
    await view.check_readable(dead_letter_topic(group))
    message = await _dead_letter(view.admin(), group, message_id)
    hidden = [Field("group", "Group", "hidden", group), Field("id", "Id", "hidden", message_id)]
    text = editable(message.body)
    if text is None or len(message.body) > TEXT_BYTES_MAX:
        return Form(hidden, intro=_not_editable(message, group))
    own = " ".join(key for key in message.keys if key != message.message_id)
    is_filled = view.is_set("edited")
    new = {
        "body": view.raw("body").replace("\r\n", "\n") if is_filled else text,
        "tag": view.text("tag") if is_filled else message.tag or "",
        "keys": view.text("keys", length_max=KEYS_CHARS_MAX) if is_filled else own,
    }
    topic = view.text("topic") or None
    fields = [
        *hidden,
        Field("edited", "", "hidden", "1"),
        Field("body", "Body", "area", new["body"]),
        Field("tag", "Tag", value=new["tag"]),
        Field("keys", "Keys, separated by spaces", value=new["keys"]),
        Field("topic", "Send to this topic instead", value=topic or ""),
    ]  # fmt: skip
    if not is_filled:
        return Form(
            fields, intro=f"The dead letter stays as it is; a corrected copy is sent to {group}."
        )
    has_crs = b"\r" in message.body  # browsers send all line ends alike
    body = (new["body"].replace("\n", "\r\n") if has_crs else new["body"]).encode()

    async def perform(client: AdminClient) -> Done:
        properties = {**message.properties}
        for key, value in ((PropertyKey.TAGS, new["tag"]), (PropertyKey.KEYS, new["keys"])):
            properties.pop(key, None)
            properties |= {key.value: value} if value else {}
        changed = msgspec.structs.replace(message, body=body, properties=properties)
        await client.replay(changed, group, topic=topic)
        return Done(f"A corrected copy of {message.message_id} was sent to {topic or group}.")

    refusal, remedy = await why_not_sent(view.admin(), group, topic)
    before = {"body": text, "tag": message.tag or "", "keys": own}
    is_same = new == before
    return Form(
        fields,
        Plan(
            what=f"Send a corrected copy of {message.message_id} to {topic or group}",
            subject=message.message_id,
            before=before,
            after=new,
            consequences=[
                Consequence("The dead letter itself stays as it is."),
                *([Consequence("Nothing was changed.", "warn")] if is_same else []),
            ],
            command=command("dlq export", group, options=("--id", message_id)),
            perform=perform,
            leads_to=view.href("/dead-letters/group", group=group),
            refusal=refusal,
            remedy=remedy and Link(remedy.text, view.desk.prefix + remedy.href),
        ),
    )


def _not_editable(message: MessageExt, group: str) -> str:
    export = command("dlq export", group, options=("--id", message.offset_message_id))
    return (
        f"A browser edits text of at most {sized(TEXT_BYTES_MAX)}, and this body is something else."
        f" Export it ({export}), edit the file, and send it with cometmq produce --json-lines."
    )


async def _dead_letter(admin: AdminClient, group: str, message_id: str) -> MessageExt:
    """Return a dead letter by its offset message id."""
    topic = dead_letter_topic(group)
    try:
        message = await admin.view_message(message_id, topic)
    except QueryNotFound as error:
        raise missing(f"{group} has no dead letter {message_id}") from error
    if message.topic != topic:
        raise bad(f"{message_id} is a message of {message.topic}, not a dead letter of {group}")
    return message


ACTIONS: Final = (
    Action(
        "dead-letters.edit", "/dead-letters/edit", "Correct and send", Role.OPERATOR, Risk.MEDIUM,
        edit, "/dead-letters", by_post=True,
    ),
)  # fmt: skip
