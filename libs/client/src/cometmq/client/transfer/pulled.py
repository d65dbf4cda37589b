# SPDX-License-Identifier: Apache-2.0
"""The answer to a pull, and what is checked before it is believed.

Bounds
    A queue offset counts entries of 20 bytes in files whose positions have 63 bits; no broker can
    have a queue that reaches beyond QUEUE_OFFSET_MAX.
"""

from collections.abc import Iterable
from contextlib import suppress
from typing import Final, TypeVar

import msgspec

from cometmq.client.message import MessageExt
from cometmq.client.transfer.damage import corrupt_text
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.command import Response
from cometmq.remoting.commands.pull import PullMessageReply
from cometmq.remoting.errors import CorruptRecord, RemoteProtocolError
from cometmq.remoting.message.record import MessageRecord, decode_record, decode_records
from cometmq.remoting.types import NamedNumber

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
    """Return the status and offsets of an answer, without messages; raise RemoteProtocolError if
    they are impossible.
    """
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
