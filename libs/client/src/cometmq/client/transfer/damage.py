# SPDX-License-Identifier: Apache-2.0
"""Detects damage in the answer to a pull, and describes it."""

from collections.abc import Sequence
from typing import Final

from cometmq.client.message import MessageExt
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.errors import CorruptRecord
from cometmq.remoting.message.record import MessageRecord

DAMAGED: Final = "message.damaged"
"""Event: the body of a message does not match its CRC."""

MISSING: Final = "messages.missing"
"""Event: the broker left out messages that the subscription includes."""

_REMEDY: Final = (
    "run cometmq store verify on the broker's store, and restore the file from a replica or a"
    " backup"
)


def damage_text(message: MessageExt) -> str:
    """Return which message is damaged, where it is stored, and a remedy."""
    return (
        f"the body of message {message.message_id}, at queue offset {message.queue_offset} of"
        f" {_place(message.queue)}, does not match its CRC: the stored message is damaged;"
        f" {_REMEDY}"
    )


def missing_offsets(
    records: Sequence[MessageRecord], offset: int, end: int, min_offset: int
) -> list[range]:
    """Return the ranges between `offset` and `end` for which an unfiltered answer has no records.

    Offsets below `min_offset` have expired.
    """
    if end - offset == len(records):
        return []
    gaps = []
    next_offset = max(offset, min_offset)
    for at in (*(record.queue_offset for record in records), end):
        if at > next_offset:
            gaps.append(range(next_offset, at))
        next_offset = max(next_offset, at + 1)
    return gaps


def missing_text(queue: MessageQueue, gaps: Sequence[range], *, may_be_filtered: bool) -> str:
    """Return which messages are missing, the possible reasons, and a remedy."""
    names = " ".join(
        str(gap.start) if len(gap) == 1 else f"{gap.start}-{gap.stop - 1}" for gap in gaps
    )
    other = ", or another member of the group has a different subscription" * may_be_filtered
    return (
        f"the broker left out the messages at queue offset {names} of {_place(queue)}: their"
        f" records are damaged (records.damaged in its log){other}; {_REMEDY}"
    )


def corrupt_text(queue: MessageQueue, offset: int, error: CorruptRecord) -> str:
    """Return the error text for a queue that cannot be read beyond a record."""
    return (
        f"the record at queue offset {offset} of {_place(queue)}, is corrupt ({error}), and the"
        " queue cannot be read beyond it: run cometmq store verify on the broker's store; restore"
        " the file from a replica or a backup, or continue at a later offset"
    )


def _place(queue: MessageQueue) -> str:
    return f"{queue.topic}, queue {queue.queue_id} of broker {queue.broker_name}"
