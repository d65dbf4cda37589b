# SPDX-License-Identifier: Apache-2.0
"""Detects damage in the answer to a pull, and describes it."""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from cometmq.client.clock import monotonic_ms
from cometmq.client.message import MessageExt
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.errors import CorruptRecord
from cometmq.remoting.log import Log
from cometmq.remoting.message.record import MessageRecord

DAMAGED: Final = "message.damaged"
"""Event: the body of a message does not match its CRC."""

MISSING: Final = "messages.missing"
"""Event: the broker left out messages that the subscription includes."""

REPORT_EVERY_MS: Final = 30_000
"""Interval between two reports of missing messages of one queue."""

RANGES_MAX: Final = 100
"""Number of ranges that a report names; it only counts the messages in further ranges."""

_REMEDY: Final = (
    "run cometmq store verify on the broker's store, and restore the file from a replica or a"
    " backup"
)


def damage_text(message: MessageExt) -> str:
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


def missing_text(
    queue: MessageQueue, gaps: Sequence[range], *, more_count: int = 0, may_be_filtered: bool
) -> str:
    """Return which messages are missing, the possible reasons, and a remedy.

    `more_count` messages after the gaps are missing, too.
    """
    count = sum(map(len, gaps)) + more_count
    names = " ".join(
        str(gap.start) if len(gap) == 1 else f"{gap.start}-{gap.stop - 1}" for gap in gaps
    )
    if more_count:
        names += f" and {more_count} after them"
    other = ", or another member of the group has a different subscription" * may_be_filtered
    return (
        f"the broker left out {count} message{'s' * (count != 1)} at queue offset {names} of"
        f" {_place(queue)}: the records are damaged (records.damaged in its log){other}; {_REMEDY}"
    )


class _Missing(msgspec.Struct):
    gaps: list[range] = []
    more_count: int = 0
    reported_ms: int | None = None


class MissingMessages:
    """Logs the messages that brokers left out.

    The first gaps of a queue are logged at once. Later ones are combined and logged every half
    minute and at the end, because two members with different subscriptions have gaps in every pull.
    """

    def __init__(
        self, log: Log, *, may_be_filtered: bool, clock_ms: Callable[[], int] = monotonic_ms
    ) -> None:
        self._log = log
        self._may_be_filtered = may_be_filtered
        self._clock_ms = clock_ms
        self._queues: dict[MessageQueue, _Missing] = {}

    def note(self, queue: MessageQueue, gaps: Iterable[range]) -> None:
        """Remember gaps in a pull of a queue, in order; log those that are due."""
        found = self._queues.setdefault(queue, _Missing())
        for gap in gaps:
            if found.gaps and not found.more_count and found.gaps[-1].stop == gap.start:
                found.gaps[-1] = range(found.gaps[-1].start, gap.stop)
            elif len(found.gaps) < RANGES_MAX:
                found.gaps.append(gap)
            else:
                found.more_count += len(gap)
        self.check(queue)

    def check(self, queue: MessageQueue) -> None:
        found = self._queues.get(queue)
        if found is not None and found.gaps:
            now_ms = self._clock_ms()
            if found.reported_ms is None or now_ms - found.reported_ms >= REPORT_EVERY_MS:
                self._report(queue, found)
                found.reported_ms = now_ms

    def forget(self, queue: MessageQueue) -> None:
        """Log the last gaps of a queue that is no longer read."""
        found = self._queues.pop(queue, None)
        if found is not None and found.gaps:
            self._report(queue, found)

    def close(self) -> None:
        """Log the last gaps of all queues."""
        for queue in list(self._queues):
            self.forget(queue)

    def _report(self, queue: MessageQueue, found: _Missing) -> None:
        gaps, found.gaps = found.gaps, []
        more_count, found.more_count = found.more_count, 0
        self._log.error(
            "messages.missing",
            topic=queue.topic,
            broker=queue.broker_name,
            queue_id=queue.queue_id,
            queue_offset=gaps[0].start,
            count=sum(map(len, gaps)) + more_count,
            error=missing_text(
                queue, gaps, more_count=more_count, may_be_filtered=self._may_be_filtered
            ),
        )


def corrupt_text(queue: MessageQueue, offset: int, error: CorruptRecord) -> str:
    """Return the error message for a queue that cannot be read beyond a record."""
    return (
        f"the record at queue offset {offset} of {_place(queue)}, is corrupt ({error}), and the"
        " queue cannot be read beyond it: run cometmq store verify on the broker's store; restore"
        " the file from a replica or a backup, or continue at a later offset"
    )


def _place(queue: MessageQueue) -> str:
    return f"{queue.topic}, queue {queue.queue_id} of broker {queue.broker_name}"
