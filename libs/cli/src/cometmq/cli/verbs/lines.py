# SPDX-License-Identifier: Apache-2.0
"""How `cometmq produce` makes messages of bodies and lines."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from cometmq.cli.connecting import wrong_usage
from cometmq.client import InvalidArgument, Message
from cometmq.client.errors import ClientError
from cometmq.client.message import check_message, wire_properties
from cometmq.insight import message_json
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.errors import CometError, CommandError
from cometmq.remoting.message.properties import RESERVED_KEYS

_OWN_OPTIONS: Final = {
    "TAGS": "--tag",
    "KEYS": "--key",
    "DELAY": "--delay-level",
    "TIMER_DELIVER_MS": "--at",
}
"""The option that sets each of these properties."""


class Line(NamedTuple):
    """A body, or a line of the input, with its place for error messages."""

    number: int
    text: bytes
    noun: str = "line"
    file: Path | None = None

    @property
    def place(self) -> str:
        """Return the place: `body 3`, `line 3` or `line 3 of FILE`."""
        inside = "" if self.file is None else f" of {self.file}"
        return f"{self.noun} {self.number}{inside}"

    def named_in(self, error: CometError) -> CometError:
        """Return the error, prefixed with the line's place if it concerns this message."""
        if isinstance(error, InvalidArgument):
            return type(error)(f"{self.place}: {error}")
        is_illegal = isinstance(error, CommandError) and error.code == ResponseCode.MESSAGE_ILLEGAL
        return ClientError(f"{self.place}: {error}") if is_illegal else error


def pairs(texts: Sequence[str]) -> dict[str, str]:
    """Return the properties of `NAME=VALUE`."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise wrong_usage(f"--property {text}: must be name=value")
        if name in found:
            raise wrong_usage(f"--property {text}: {name} is given twice")
        if name in _OWN_OPTIONS:
            raise wrong_usage(f"--property {name}={value}: give {_OWN_OPTIONS[name]} {value}")
        if name in RESERVED_KEYS:
            raise wrong_usage(
                f"--property {name}={value}: RocketMQ sets this property itself; choose a different"
                " name"
            )
        found[name] = value
    return found


class LineForm(NamedTuple):
    """How a line of the input becomes a message."""

    defaults: Message
    is_json: bool
    key_delimiter: bytes


def message_of_line(line: Line, *, form: LineForm) -> Message:
    """Return the message of a line."""
    try:
        if form.is_json:
            message = message_json.parse(line.text, defaults=form.defaults)
        else:
            message = msgspec.structs.replace(form.defaults, body=line.text)
        if form.key_delimiter:
            message = _with_key(message, form.key_delimiter)
        return message
    except InvalidArgument as error:
        raise line.named_in(error) from error


def line_form(defaults: Message, delimiter: str = "", *, is_json: bool = False) -> LineForm:
    """Return the form; raise InvalidArgument, before anything is sent, for messages that no broker
    accepts.
    """
    check_message(defaults, 1)
    wire_properties(defaults)
    if delimiter and (defaults.keys or is_json):
        raise InvalidArgument("--key-delimiter cannot be combined with --key or --json-lines")
    return LineForm(defaults, is_json, delimiter.encode())


def _with_key(message: Message, delimiter: bytes) -> Message:
    key, found, body = message.body.partition(delimiter)
    if not found:
        raise InvalidArgument(f"has no {delimiter.decode()!r} between a key and a body")
    try:
        return msgspec.structs.replace(message, keys=key.decode(), body=body)
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"its key is not UTF-8: {key[:80]!r}") from error
