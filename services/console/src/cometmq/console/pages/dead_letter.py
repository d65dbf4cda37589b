# SPDX-License-Identifier: Apache-2.0
"""Sends a corrected copy of one dead letter, whose body is edited as text or as bytes."""

import re
from typing import Final, NamedTuple

import msgspec

from cometmq.client.admin import AdminClient
from cometmq.client.message import MessageExt
from cometmq.console.login.roles import Role
from cometmq.console.pages.dead_letters import why_not_sent
from cometmq.console.web.action import Action, Consequence, Field, Form, Plan, Risk
from cometmq.console.web.page import View
from cometmq.console.web.problems import bad, missing
from cometmq.insight.decode import decode
from cometmq.insight.words import command, sized
from cometmq.remoting.errors import QueryNotFound
from cometmq.remoting.message.properties import PropertyKey
from cometmq.remoting.names import dead_letter_topic

TEXT_BYTES_MAX: Final = 256 << 10
HEX_BYTES_MAX: Final = 64 << 10
"""Longer bodies cannot be edited as bytes: the text has three times as many characters, and the
page contains it twice.
"""
HEX_ROW: Final = 16
KEYS_CHARS_MAX: Final = 4_000
_CONTROL: Final = re.compile("[^\\n\\t -~\xa0-\U0010ffff]")
"""A character that a browser loses or does not show."""


class Written(NamedTuple):
    """A body in the form in which a user edits it."""

    text: str
    is_text: bool
    """False if the text is the hexadecimal form of the bytes."""
    ends_with_cr: bool = False
    """Whether lines end with CR LF; browsers send all line ends alike."""

    @classmethod
    def of(cls, body: bytes) -> "Written":
        """Return a body as text if browsers keep all its characters, or else in hexadecimal
        form.
        """
        try:
            text = body.decode()
        except UnicodeDecodeError:
            text = "\0"
        plain = text.replace("\r\n", "\n")
        is_mixed = plain != text and text.count("\n") != text.count("\r\n")
        if is_mixed or _CONTROL.search(plain):
            rows = (body[at : at + HEX_ROW] for at in range(0, len(body), HEX_ROW))
            return cls("\n".join(row.hex(" ") for row in rows), False)
        return cls(plain, True, plain != text)

    def read(self, text: str) -> bytes:
        """Return the bytes of an edited text; raise Problem if it is not hexadecimal."""
        if self.is_text:
            return (text.replace("\n", "\r\n") if self.ends_with_cr else text).encode()
        try:
            return bytes.fromhex(text)
        except ValueError as error:
            hint = "give two hexadecimal digits per byte, such as 0a ff"
            raise bad(f"the body cannot be read ({error}): {hint}") from None


async def edit(view: View) -> Form:
    """Plan to send one dead letter with a corrected body, tag or keys."""
    group, message_id = view.needed("group"), view.needed("id")
    await view.check_readable(dead_letter_topic(group))
    message = await _dead_letter(view.admin(), group, message_id)
    hidden = [Field("group", "Group", "hidden", group), Field("id", "Id", "hidden", message_id)]
    written = Written.of(message.body)
    bytes_max = TEXT_BYTES_MAX if written.is_text else HEX_BYTES_MAX
    if len(message.body) > bytes_max:
        return Form(hidden, intro=_too_large(message, group, bytes_max))
    own = " ".join(key for key in message.keys if key != message.message_id)
    is_filled = view.is_set("edited")
    new = {
        "body": view.raw("body").replace("\r\n", "\n") if is_filled else written.text,
        "tag": view.text("tag") if is_filled else message.tag or "",
        "keys": view.text("keys", length_max=KEYS_CHARS_MAX) if is_filled else own,
    }
    topic = view.text("topic") or None
    fields = [
        *hidden,
        Field("edited", "", "hidden", "1"),
        Field("body", "Body" if written.is_text else "Body, in hexadecimal", "area", new["body"],
              help="" if written.is_text else _about(message.body)),
        Field("tag", "Tag", value=new["tag"]),
        Field("keys", "Keys, separated by spaces", value=new["keys"]),
        Field("topic", "Send to this topic instead", value=topic or ""),
    ]  # fmt: skip
    if not is_filled:
        return Form(
            fields, intro=f"The dead letter stays as it is; a corrected copy is sent to {group}."
        )
    body = written.read(new["body"])

    async def perform(client: AdminClient) -> str:
        properties = {**message.properties}
        for key, value in ((PropertyKey.TAGS, new["tag"]), (PropertyKey.KEYS, new["keys"])):
            properties.pop(key, None)
            properties |= {key.value: value} if value else {}
        changed = msgspec.structs.replace(message, body=body, properties=properties)
        await client.replay(changed, group, topic=topic)
        return f"A corrected copy of {message.message_id} was sent to {topic or group}."

    refusal, remedy = await why_not_sent(view, group, topic)
    before = {"body": written.text, "tag": message.tag or "", "keys": own}
    is_same = body == message.body and {**new, "body": written.text} == before
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
            remedy=remedy,
        ),
    )


def _about(body: bytes) -> str:
    """Return a sentence with the size, and the likely form, of a body that is edited as bytes."""
    found = decode(body)
    kind = " of ".join((*reversed(found.layers), found.format)) if found.layers else found.format
    form = "binary data" if kind == "hex" else f"binary data ({kind})"
    return f"The body is {form} of {sized(len(body))}: two digits are one byte."


def _too_large(message: MessageExt, group: str, bytes_max: int) -> str:
    export = command("dlq export", group, options=("--id", message.offset_message_id))
    return (
        f"The body has {sized(len(message.body))}, and a browser edits at most {sized(bytes_max)}"
        f" of its kind. Export it ({export}), edit the file, and send it with"
        " cometmq produce --json-lines."
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
