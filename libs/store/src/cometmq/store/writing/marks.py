# SPDX-License-Identifier: Apache-2.0
"""Marks: records that tell every copy of the log where a topic ended, or where a queue begins.

All records of a topic before the mark of its deletion belong to the deleted topic, so dispatch
drops the topic's queues at the mark: on followers, in a recovery, and whenever queues are rebuilt.
Copies may reach it at different times. The mark of a trimmed queue deletes all messages of the
queue before the named offset; they precede the mark in the log.

Compatibility: a mark is a rolled-back message of the topic, which RocketMQ neither queues nor
indexes. Its queue id is -1; a put with that id is refused, so no client can store a mark. Its
properties repeat the topic, so that damage to the name deletes no other topic.
"""

from typing import Final
from zlib import crc32

from cometmq.remoting.message.flags import TRANSACTION_ROLLBACK
from cometmq.remoting.message.new_message import NewMessage
from cometmq.remoting.message.record import Scan
from cometmq.store.queues.floors import Floor, TrimmedQueue

QUEUE_ID: Final = -1
_DELETED: Final = "DELETED\x01"
_TRIMMED: Final = "TRIMMED\x01"
NO_HOST: Final = bytes(8)


class Mark(NewMessage, gc=False):
    """A mark that is about to be stored."""


def deletion_mark(topic: str, now_ms: int) -> Mark:
    """Return the mark that ends a topic."""
    return Mark(
        topic, QUEUE_ID, 0, TRANSACTION_ROLLBACK, now_ms, NO_HOST, NO_HOST, b"", _DELETED + topic
    )


def is_deletion(scan: Scan) -> bool:
    """Return whether a record is the intact mark of a deleted topic."""
    return (
        scan.queue_id == QUEUE_ID
        and scan.sys_flag & TRANSACTION_ROLLBACK == TRANSACTION_ROLLBACK
        and scan.properties == f"{_DELETED}{scan.topic}".encode()
    )


def trim_mark(topic: str, queue_id: int, queue_offset: int, now_ms: int) -> Mark:
    """Return the mark that deletes the messages of a queue before an offset."""
    text = _text(topic, queue_id, queue_offset)
    return Mark(topic, QUEUE_ID, 0, TRANSACTION_ROLLBACK, now_ms, NO_HOST, NO_HOST, b"", text)


def _text(topic: str, queue_id: int, queue_offset: int) -> str:
    """Return the properties; their checksum keeps damage from deleting other messages."""
    value = f"{queue_id} {queue_offset} {topic}"
    return f"{_TRIMMED}{crc32(value.encode()):08x} {value}"


def trimmed_by(scan: Scan) -> TrimmedQueue | None:
    """Return the floor that a record sets; None if the record is no intact mark."""
    if scan.queue_id != QUEUE_ID or not scan.properties.startswith(_TRIMMED.encode()):
        return None
    if scan.sys_flag & TRANSACTION_ROLLBACK != TRANSACTION_ROLLBACK:
        return None
    _, queue_id, queue_offset, *_ = [*scan.properties.split(b" ", 3), b"", b""]
    if not (queue_id.isdigit() and queue_offset.isdigit()):
        return None
    found = TrimmedQueue(scan.topic, int(queue_id), Floor(int(queue_offset), scan.physical_offset))
    is_intact = scan.properties == _text(scan.topic, int(queue_id), int(queue_offset)).encode()
    return found if is_intact else None


def is_mark(scan: Scan) -> bool:
    """Return whether a record is the mark of a deleted topic or trimmed queue, and no message."""
    return is_deletion(scan) or trimmed_by(scan) is not None
