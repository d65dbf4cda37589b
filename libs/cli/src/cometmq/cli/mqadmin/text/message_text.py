# SPDX-License-Identifier: Apache-2.0
"""A message as mqadmin shows it: its properties, its body in a file, and its consumers."""

import json
import os
import re
import tempfile
from pathlib import Path
from typing import Any, Final

from cometmq.cli.mqadmin.frame import local_time
from cometmq.cli.mqadmin.text import java_text
from cometmq.cli.output import print_json
from cometmq.cli.say import say
from cometmq.client.admin import MessageTrack
from cometmq.client.errors import ClientError
from cometmq.client.message import MessageExt
from cometmq.insight import message_json
from cometmq.remoting.message.properties import PropertyKey

BODY_FOLDER: Final = Path("rocketmq", "msgbodys")
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_-]")
_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW

Found = list[tuple[MessageExt, list[MessageTrack]]]


def print_found(found: Found, *, as_json: bool, with_id: bool = True) -> None:
    """Print messages with their consumption status; bodies are written to files."""
    if as_json:
        print_json([_as_object(message, tracks) for message, tracks in found])
        return
    counts: dict[str, int] = {}
    for message, tracks in found:
        number = counts[message.message_id] = counts.get(message.message_id, -1) + 1
        path = write_body(message, number)
        for name, value in _facts(message, path, with_id=with_id):
            say(f"{name + ':':<20} {value}")
        say("\n\n" if tracks else "\n\nWARN: No Consumer", nl=not tracks)
        for track in tracks:
            say(_track(track))


def write_body(message: MessageExt, number: int = 0) -> Path:
    """Write a body where mqadmin does: to the system's folder for temporary files.

    The producer chose the id, so characters that could escape the folder are replaced, and links
    are not followed.
    """
    name = _UNSAFE.sub("_", message.message_id)
    path = Path(tempfile.gettempdir(), BODY_FOLDER, f"{name}_{number}" if number else name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(path, _FLAGS, 0o600), "wb") as file:
            file.write(message.body)
    except OSError as error:
        raise ClientError(f"the body cannot be written: {error}") from error
    return path


def _facts(message: MessageExt, path: Path, *, with_id: bool) -> list[tuple[str, Any]]:
    facts: list[tuple[str, Any]] = [
        ("OffsetID", message.offset_message_id),
        ("Topic", message.topic),
        ("Tags", f"[{java_text.word(message.tag)}]"),
        ("Keys", f"[{java_text.word(message.properties.get(PropertyKey.KEYS))}]"),
        ("Queue ID", message.queue.queue_id),
        ("Queue Offset", message.queue_offset),
        ("CommitLog Offset", message.physical_offset),
        ("Reconsume Times", message.reconsume_times),
        ("Born Timestamp", local_time(message.born_timestamp, with_ms=True)),
        ("Store Timestamp", local_time(message.store_timestamp, with_ms=True)),
        ("Born Host", message.born_host),
        ("Store Host", message.store_host),
        ("System Flag", message.sys_flag),
        ("Properties", java_text.mapping(message.properties)),
        ("Message Body Path", path),
    ]
    return facts if with_id else facts[1:]


def _track(track: MessageTrack) -> str:
    pairs = [
        ("consumerGroup", track.consumer_group),
        ("trackType", track.track_type),
        ("exceptionDesc", track.exception_desc),
    ]
    return java_text.bracketed("MessageTrack", pairs)


def _as_object(message: MessageExt, tracks: list[MessageTrack]) -> dict[str, Any]:
    return {**as_object(message), "tracks": tracks}


def as_object(message: MessageExt) -> dict[str, Any]:
    """Return a message as JSON data."""
    found: dict[str, Any] = json.loads(message_json.render(message))
    return found
