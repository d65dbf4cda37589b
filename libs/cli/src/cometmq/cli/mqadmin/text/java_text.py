# SPDX-License-Identifier: Apache-2.0
"""Formats values in the same way as Java's tools, for scripts that parse the output."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from cometmq.cli.mqadmin.frame import local_time
from cometmq.client.message import MessageExt, SendResult
from cometmq.remoting.bodies.queues import MessageQueue


def word(value: object) -> str:
    """Return a value as Java writes it in a string."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def bracketed(name: str, pairs: Iterable[tuple[str, object]]) -> str:
    """Return pairs as `Name [key=value, key=value]`."""
    return f"{name} [{', '.join(f'{key}={word(value)}' for key, value in pairs)}]"


def fields(value: msgspec.Struct, names: Iterable[str]) -> list[tuple[str, Any]]:
    """Return fields of a body under their wire names, in the given order."""
    info = {field.encode_name: field.name for field in msgspec.structs.fields(value)}
    return [(name, getattr(value, info[name])) for name in names]


def mapping(values: Mapping[str, object]) -> str:
    """Return a mapping as `{key=value, key=value}`."""
    return "{" + ", ".join(f"{key}={word(value)}" for key, value in values.items()) + "}"


def queue(place: MessageQueue) -> str:
    """Return a queue as `MessageQueue [topic=..., brokerName=..., queueId=...]`."""
    names = ("topic", "brokerName", "queueId")
    return bracketed("MessageQueue", fields(place, names))


def send_result(result: SendResult) -> str:
    """Return a result as `SendResult [...]`, with its queue and offset."""
    return bracketed(
        "SendResult",
        [
            ("sendStatus", result.status.name),
            ("msgId", result.message_id),
            ("offsetMsgId", result.offset_message_id),
            ("messageQueue", queue(result.queue)),
            ("queueOffset", result.queue_offset),
        ],
    )


def message(found: MessageExt) -> str:
    """Return a message as Java writes it, but without its body."""
    return bracketed(
        "MessageExt",
        [
            ("brokerName", found.queue.broker_name),
            ("queueId", found.queue.queue_id),
            ("queueOffset", found.queue_offset),
            ("sysFlag", found.sys_flag),
            ("bornTimestamp", found.born_timestamp),
            ("bornHost", f"/{found.born_host}"),
            ("storeTimestamp", found.store_timestamp),
            ("storeHost", f"/{found.store_host}"),
            ("msgId", found.offset_message_id),
            ("commitLogOffset", found.physical_offset),
            ("reconsumeTimes", found.reconsume_times),
            ("topic", found.topic),
            ("flag", found.flag),
            ("properties", mapping(found.properties)),
        ],
    )


def moment(timestamp_ms: int) -> str:
    """Return a time without separators, for example 20261120100000000."""
    text = local_time(timestamp_ms, with_ms=True)
    return "".join(letter for letter in text if letter.isdigit())
