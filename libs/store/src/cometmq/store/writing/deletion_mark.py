# SPDX-License-Identifier: Apache-2.0
"""The mark of a deleted topic: a record that tells every copy of the log where the topic ended.

All records of the topic before the mark belong to the deleted topic, so dispatch drops the topic's
queues at the mark: on followers, in a recovery, and whenever queues are rebuilt. Copies may reach
the mark at different times.

Compatibility: the mark is a rolled-back message of the topic, which RocketMQ neither queues nor
indexes. Its queue id is -1; a put with that id is refused, so no client can store a mark. Its
properties repeat the topic, so that damage to the name deletes no other topic.
"""

from typing import Final

from cometmq.remoting.message.flags import TRANSACTION_ROLLBACK
from cometmq.remoting.message.new_message import NewMessage
from cometmq.remoting.message.record import Scan

QUEUE_ID: Final = -1
_PROPERTY: Final = "DELETED\x01"
NO_HOST: Final = bytes(8)


class Mark(NewMessage, gc=False):
    """A mark that is about to be stored; also for trims (`trim_mark.py`)."""


def deletion_mark(topic: str, now_ms: int) -> Mark:
    """Return the mark that ends a topic."""
    return Mark(
        topic, QUEUE_ID, 0, TRANSACTION_ROLLBACK, now_ms, NO_HOST, NO_HOST, b"", _PROPERTY + topic
    )


def is_deletion(scan: Scan) -> bool:
    """Return whether a record is the intact mark of a deleted topic."""
    return (
        scan.queue_id == QUEUE_ID
        and scan.sys_flag & TRANSACTION_ROLLBACK == TRANSACTION_ROLLBACK
        and scan.properties == f"{_PROPERTY}{scan.topic}".encode()
    )
