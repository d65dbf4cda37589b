# SPDX-License-Identifier: Apache-2.0
"""The mark of a trimmed queue: a record that tells every copy of the log where the queue begins.

All messages of the queue before the named offset are deleted; they precede the mark in the log.
Like the mark of a deleted topic (`deletion_mark.py`), it is a rolled-back message with queue id -1,
which clients cannot store and RocketMQ ignores.
"""

from typing import Final
from zlib import crc32

from cometmq.remoting.message.flags import TRANSACTION_ROLLBACK
from cometmq.remoting.message.record import Scan
from cometmq.store.queues.floors import Floor, TrimmedQueue
from cometmq.store.writing.deletion_mark import NO_HOST, QUEUE_ID, Mark, is_deletion

_PROPERTY: Final = "TRIMMED\x01"


def trim_mark(topic: str, queue_id: int, queue_offset: int, now_ms: int) -> Mark:
    """Return the mark that deletes the messages of a queue before an offset."""
    text = _text(topic, queue_id, queue_offset)
    return Mark(topic, QUEUE_ID, 0, TRANSACTION_ROLLBACK, now_ms, NO_HOST, NO_HOST, b"", text)


def _text(topic: str, queue_id: int, queue_offset: int) -> str:
    """Return the properties; their checksum keeps damage from deleting other messages."""
    value = f"{queue_id} {queue_offset} {topic}"
    return f"{_PROPERTY}{crc32(value.encode()):08x} {value}"


def trimmed_by(scan: Scan) -> TrimmedQueue | None:
    """Return the floor that a record sets; None if the record is no intact mark."""
    if scan.queue_id != QUEUE_ID or not scan.properties.startswith(_PROPERTY.encode()):
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
