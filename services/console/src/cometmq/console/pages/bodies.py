# SPDX-License-Identifier: Apache-2.0
"""Message bodies on pages: the wanted form, and the schema of Protobuf bodies."""

from pathlib import Path
from typing import NamedTuple

from cometmq.client.errors import InvalidArgument
from cometmq.console.web.page import View
from cometmq.console.web.problems import bad
from cometmq.insight.decode import SET_BYTES_MAX, Decoded, Format, Schema, decode


class Body(NamedTuple):
    """A body as a page shows it."""

    decoded: Decoded
    wanted: Format


def format_of(view: View) -> Format:
    """Return the wanted form; raise Problem for an unknown one."""
    text = view.text("format", Format.AUTO)
    try:
        return Format(text)
    except ValueError:
        known = ", ".join(Format)
        raise bad(f"format must be one of {known}, not {text!r}") from None


def schema_of(view: View) -> Schema | None:
    """Return the schema for the message type in the request; None if there is none."""
    message_type = view.text("type")
    if not message_type:
        return None
    file = view.desk.settings.descriptor_set
    if not file:
        raise bad("Protobuf bodies need the setting descriptorSet: a file that protoc has written")
    try:
        with Path(file).open("rb") as stream:
            data = stream.read(SET_BYTES_MAX + 1)
    except OSError as error:
        raise bad(f"descriptorSet {file} cannot be read: {error.strerror}") from error
    try:
        return Schema(data, message_type)
    except InvalidArgument as error:
        raise bad(str(error)) from error


def body_of(body: bytes, wanted: Format, schema: Schema | None) -> Body:
    """Return a body in the wanted form."""
    return Body(decode(body, wanted, schema=schema), wanted)
