# SPDX-License-Identifier: Apache-2.0
"""Messages as JSON lines: `produce --json-lines` reads the output of `consume --json`.

A body that is not UTF-8 is written as `body_base64`. Resending a received message keeps only the
fields that a sender chooses; its position and times are only informational.
"""

from base64 import b64decode, b64encode
from typing import Final

import msgspec

from cometmq.client import DamagedMessage, InvalidArgument, Message, MessageExt
from cometmq.client.message import UnreadableMessage
from cometmq.remoting.errors import UNREADABLE_JSON
from cometmq.remoting.message.properties import RESERVED_KEYS
from cometmq.remoting.spelling import did_you_mean


class JsonMessage(msgspec.Struct, omit_defaults=True):
    """A message as one JSON line."""

    body: str | None = None
    body_base64: str | None = None
    topic: str = ""
    tag: str | None = None
    keys: list[str] = []
    properties: dict[str, str] = {}
    delay_level: int = 0
    flag: int = 0
    message_id: str = ""
    broker: str = ""
    queue_id: int | None = None
    queue_offset: int | None = None
    offset_message_id: str = ""
    reconsume_times: int = 0
    born_timestamp: int = 0
    born_host: str = ""
    store_timestamp: int = 0
    damaged: bool = False


_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(JsonMessage)
_keys_decoder: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_IGNORED: Final = frozenset(
    {
        *("origin_topic", "origin_message_id"),  # dlq export
        *("physical_offset", "size", "sys_flag", "system_properties"),  # store dump
    }
)
_KNOWN: Final = _IGNORED.union(JsonMessage.__struct_fields__)
"""The keys of a line. Any other key is rejected, because a mistyped key could lose the tag or the
body.
"""
OWN_PROPERTIES: Final = {"TAGS": "tag", "KEYS": "keys", "DELAY": "delay_level"}
"""The key of a line that sets each of these properties."""


def render(message: MessageExt) -> bytes:
    """Return a received message as one line, without a line ending."""
    try:
        text, encoded = message.body.decode(), None
    except UnicodeDecodeError:
        text, encoded = None, b64encode(message.body).decode()
    own = {name: value for name, value in message.properties.items() if name not in RESERVED_KEYS}
    return _encoder.encode(
        JsonMessage(
            body=text,
            body_base64=encoded,
            topic=message.topic,
            tag=message.tag,
            keys=[key for key in message.keys if key != message.message_id],
            properties=own,
            flag=message.flag,
            message_id=message.message_id,
            broker=message.queue.broker_name,
            queue_id=message.queue.queue_id,
            queue_offset=message.queue_offset,
            offset_message_id=message.offset_message_id,
            reconsume_times=message.reconsume_times,
            born_timestamp=message.born_timestamp,
            born_host=message.born_host,
            store_timestamp=message.store_timestamp,
            damaged=isinstance(message, DamagedMessage | UnreadableMessage),
        )
    )


def parse(line: bytes, *, defaults: Message) -> Message:
    """Return the message of one line; missing fields come from `defaults`.

    Raise InvalidArgument for a line that is not a message or has an unknown key.
    """
    try:
        message = _parsed(line, defaults)
    except (InvalidArgument, *UNREADABLE_JSON, ValueError) as error:
        raise InvalidArgument(f"{_reason(error)}: {line[:80]!r}") from error
    return message


def _parsed(line: bytes, defaults: Message) -> Message:
    for key in _keys_decoder.decode(line):
        if key not in _KNOWN:
            hint = did_you_mean(key, JsonMessage.__struct_fields__)
            raise InvalidArgument(f"unknown key {key}{hint}")
    found = _decoder.decode(line)
    if found.damaged:
        raise InvalidArgument(
            "a damaged message, whose body differs from the one that was sent; to send it"
            ' nevertheless, remove "damaged" from the line'
        )
    for name in found.properties:
        if name in OWN_PROPERTIES:
            raise InvalidArgument(
                f'properties must not have {name}; give the key "{OWN_PROPERTIES[name]}" instead'
            )
    return Message(
        topic=defaults.topic,
        body=_body(found),
        tag=found.tag or defaults.tag,
        keys=found.keys or defaults.keys,
        properties={**defaults.properties, **found.properties},
        delay_level=found.delay_level or defaults.delay_level,
        flag=found.flag or defaults.flag,
        deliver_at=defaults.deliver_at,
    )


def _body(found: JsonMessage) -> bytes:
    if not found.body_base64:
        return (found.body or "").encode()
    try:
        return b64decode(found.body_base64, validate=True)
    except ValueError as error:
        raise InvalidArgument(f"body_base64: {error}") from error


def _reason(error: Exception) -> str:
    """Return why a line is not a message, beginning with the key whose value is wrong."""
    if isinstance(error, InvalidArgument):
        return str(error)
    if not isinstance(error, msgspec.ValidationError):
        return f"not JSON: {error}"
    text, _, place = str(error).partition(" - at `$")
    key = place.removeprefix(".").removesuffix("`")
    return f"{key}: {text}" if key else f"not a message: {text}"
