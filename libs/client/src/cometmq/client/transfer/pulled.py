# SPDX-License-Identifier: Apache-2.0
"""The answer to a pull: what is checked before it is believed, and the damage in it.

Bounds
    A queue offset counts entries of 20 bytes in files whose positions have 63 bits; no broker can
    have a queue that reaches beyond QUEUE_OFFSET_MAX.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final, TypeVar

import msgspec

from cometmq.client.clock import monotonic_ms
from cometmq.client.log import Reminders
from cometmq.client.message import MessageExt
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.command import Response
from cometmq.remoting.commands.pull import PullMessageReply
from cometmq.remoting.errors import CorruptRecord, RemoteProtocolError
from cometmq.remoting.log import Log
from cometmq.remoting.message.record import MessageRecord, decode_record, decode_records
from cometmq.remoting.types import NamedNumber

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
    """Return the ranges from `offset` and `min_offset` on without records in an answer."""
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
    """Return which messages are missing (`more_count` after the gaps), why, and a remedy."""
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
        self._due = Reminders(REPORT_EVERY_MS, clock_ms=clock_ms)
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
        if found is not None and found.gaps and self._due.is_due(queue):
            self._report(queue, found)

    def forget(self, queue: MessageQueue) -> None:
        """Log the last gaps of a queue that is no longer read."""
        found = self._queues.pop(queue, None)
        self._due.end(queue)
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


T = TypeVar("T")

QUEUE_OFFSET_MAX: Final = ((1 << 63) - 1) // 20
BEYOND_MAX: Final = 1 << 20
"""How far the next offset of an answer may be beyond the queue's end in the same answer. Messages
stored during the read are returned, too, and Java brokers skip a damaged file of 300,000 entries as
a whole.
"""


class PullStatus(NamedNumber):
    """The result of a pull."""

    FOUND = ResponseCode.SUCCESS
    NO_NEW = ResponseCode.PULL_NOT_FOUND
    NO_MATCHED = ResponseCode.PULL_RETRY_IMMEDIATELY
    OFFSET_ILLEGAL = ResponseCode.PULL_OFFSET_MOVED


class Pulled(msgspec.Struct):
    """The answer to a pull."""

    status: PullStatus
    messages: list[MessageExt]
    next_offset: int
    min_offset: int
    max_offset: int
    unreadable: list[MessageExt] = []
    """Messages whose bodies cannot be decompressed."""


def check_offset(broker: str, what: str, offset: int) -> int:
    """Return an offset that a broker answered; raise RemoteProtocolError if no queue can have it.

    `what` names the offset, as in "the end of T, queue 0".
    """
    if not 0 <= offset <= QUEUE_OFFSET_MAX:
        raise RemoteProtocolError(
            f"broker {broker} answers {offset} as {what}, which no queue can have: check this"
            " broker"
        )
    return offset


def fields_of(response: Response, kind: type[T]) -> T:
    """Return the fields of an answer; raise RemoteProtocolError if they are missing."""
    if not isinstance(response.header, kind):
        raise RemoteProtocolError("the server's answer lacks its fields")
    return response.header


def pulled_of(queue: MessageQueue, offset: int, response: Response) -> Pulled:
    """Return an answer without messages; RemoteProtocolError if it is impossible."""
    reply, status = fields_of(response, PullMessageReply), PullStatus(response.code)
    pulled = Pulled(status, [], reply.next_begin_offset, reply.min_offset, reply.max_offset)
    check_pulled(queue, offset, pulled)
    return pulled


def check_pulled(queue: MessageQueue, offset: int, pulled: Pulled) -> None:
    """Raise RemoteProtocolError unless the offsets of an answer fit together.

    Only PULL_OFFSET_MOVED may have a lower next offset than the pull, as after a topic was deleted
    and created again. Two odd answers of Java brokers are accepted: a slave behind its master
    returns the pull's offset, beyond its own end; and a broker whose queue has no file left returns
    the end 0, below the beginning.
    """
    for what, value in (
        ("the next offset", pulled.next_offset),
        ("the beginning", pulled.min_offset),
        ("the end", pulled.max_offset),
    ):
        check_offset(queue.broker_name, f"{what} of {_name(queue)}", value)
    begin, end, following = pulled.min_offset, pulled.max_offset, pulled.next_offset
    if 0 < end < begin:
        wrong = f"that the queue begins at {begin} and ends at {end}"
    elif following > max(end, offset) + BEYOND_MAX:
        wrong = f"the next offset {following}, far beyond the end {end}"
    elif following < offset and pulled.status is not PullStatus.OFFSET_ILLEGAL:
        wrong = f"the next offset {following}"
    else:
        return
    raise _wrong(queue, offset, wrong)


def check_records(
    queue: MessageQueue, offset: int, end: int, records: Iterable[MessageRecord]
) -> None:
    """Raise RemoteProtocolError unless these are messages of a queue between two offsets, in order.

    Their offsets are committed, and no two may be the same.
    """
    least = offset
    for record in records:
        if record.topic != queue.topic or record.queue_id != queue.queue_id:
            wrong = f"a message of {record.topic[:255]!r}, queue {record.queue_id}"
            raise _wrong(queue, offset, wrong)
        if not least <= record.queue_offset < end:
            wrong = f"a message at {record.queue_offset}, not between {least} and {end}"
            raise _wrong(queue, offset, wrong)
        least = record.queue_offset + 1


def _wrong(queue: MessageQueue, offset: int, wrong: str) -> RemoteProtocolError:
    return RemoteProtocolError(
        f"broker {queue.broker_name} answers a pull of {_name(queue)}, at offset {offset}, with"
        f" {wrong}: check this broker"
    )


def _name(queue: MessageQueue) -> str:
    return f"{queue.topic}, queue {queue.queue_id}"


EMPTY_MAX: Final = 1_000
"""Answers in a row without a message. RocketMQ's brokers skip about 800 deleted or filtered
messages per answer, so this limit allows 800,000 of them.
"""
FILTERED_MAX: Final = 100_000
"""The limit for reads with a filter, which may accept none of millions of messages."""


class EmptyAnswers:
    """Counts the answers in a row that have no message, during one read of a queue."""

    def __init__(self, queue: MessageQueue, *, is_filtered: bool = False) -> None:
        self._queue = queue
        self._count_max = FILTERED_MAX if is_filtered else EMPTY_MAX
        self._count = 0

    def check(self, pulled: Pulled) -> None:
        """Count an answer; raise RemoteProtocolError if there were too many without a message."""
        self._count = 0 if pulled.messages else self._count + 1
        if self._count > self._count_max:
            queue = self._queue
            raise RemoteProtocolError(
                f"broker {queue.broker_name} answers {self._count:,} pulls in a row of"
                f" {queue.topic}, queue {queue.queue_id}, without a message, up to offset"
                f" {pulled.next_offset}: check this broker"
            )


def records_of(
    body: bytes, count_max: int, queue: MessageQueue, offset: int, pulled: Pulled
) -> list[MessageRecord]:
    """Return the records of an answer, which are checked; the next pull begins behind them.

    Messages beyond the number that was asked for are left to the next pull: an answer may contain
    180,000, which take 200 MB and hold the loop for 4 s.
    """
    try:
        records = decode_records(body, count_max)
    except CorruptRecord as error:
        records = _whole_records(body)
        if not records:
            raise RemoteProtocolError(corrupt_text(queue, offset, error)) from error
    if sum(record.size for record in records) < len(body):
        # The next pull begins at a corrupt record, so its error names the right offset.
        pulled.next_offset = min(pulled.next_offset, records[-1].queue_offset + 1)
    check_records(queue, offset, pulled.next_offset, records)
    return records


def _whole_records(body: bytes) -> list[MessageRecord]:
    """Return the records before the first corrupt one."""
    records: list[MessageRecord] = []
    end = 0
    with suppress(CorruptRecord):
        while True:
            records.append(decode_record(body, end))
            end += records[-1].size
    return records
