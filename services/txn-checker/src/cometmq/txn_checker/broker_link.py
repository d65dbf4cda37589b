# SPDX-License-Identifier: Apache-2.0
"""Requests to one broker: reads of the half and op queues, transaction checks, offsets."""

from collections.abc import Iterator
from functools import lru_cache
from typing import Final, NamedTuple, Protocol

import msgspec

from cometmq.remoting import remarks
from cometmq.remoting.codes import RequestCode as Code
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.command import Response
from cometmq.remoting.commands.offsets import (
    GetMaxOffset,
    GetMaxOffsetReply,
    GetMinOffset,
    GetMinOffsetReply,
    QueryConsumerOffset,
    QueryConsumerOffsetReply,
    UpdateConsumerOffset,
)
from cometmq.remoting.commands.pull import PullMessage, PullMessageReply
from cometmq.remoting.commands.transactions import (
    AskTransactionState,
    AskTransactionStateReply,
    SetTransactionAside,
)
from cometmq.remoting.errors import (
    CorruptRecord,
    QueryNotFound,
    RemoteProtocolError,
    RequestCodeNotSupported,
    ServerError,
    TopicNotExist,
)
from cometmq.remoting.message.flags import PullSysFlag, java_hash
from cometmq.remoting.message.properties import PropertyKey, property_value
from cometmq.remoting.message.record import MessageRecord, decode_records
from cometmq.remoting.names import ALL_TAGS, CHECK_GROUP, HALF_TOPIC, OP_HALF_TOPIC, OP_TAG
from cometmq.txn_checker.settings import TxnCheckerSettings
from cometmq.txn_checker.tables import COUNT_MAX, NO_IMMUNITY, Half

QUEUE_ID: Final = 0
MISSING_MAX: Final = 4_096
"""Maximum number of missing messages that one read skips."""

_DIGITS_MAX: Final = 19  # enough for any offset

_ANSWERS: Final = (
    ResponseCode.SUCCESS,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)


class Invoke(Protocol):
    async def __call__(
        self,
        code: Code,
        header: msgspec.Struct | None = None,
        *,
        ok: tuple[ResponseCode, ...] = (ResponseCode.SUCCESS,),
        timeout_ms: int | None = None,
    ) -> Response:
        """Return the answer; raise CommandError if its code is not in `ok`."""


class Pulled(NamedTuple):
    records: list[MessageRecord]
    next_offset: int
    min_offset: int
    max_offset: int

    def in_order(self, offset: int) -> Iterator[MessageRecord | None]:
        """Yield the records from a queue offset onwards, with None for each missing message.

        The iterator stops after MISSING_MAX missing messages; the next pull starts there.
        """
        found = {record.queue_offset: record for record in self.records}
        end = max(self.next_offset, max(found, default=-1) + 1)
        missing_count = 0
        while offset < end and missing_count < MISSING_MAX:
            record = found.get(offset)
            missing_count += record is None
            yield record
            offset += 1


class Asked(NamedTuple):
    is_open: bool
    """False if the half message is no longer in the broker's log."""
    producer: str | None
    """The address of the producer that was asked; None if no producer of the group is connected;
    empty if the broker did not need or refused to ask.
    """
    refusal: str | None = None
    """The broker's reason for not checking this transaction."""


class BrokerLink:
    def __init__(self, invoke: Invoke, settings: TxnCheckerSettings) -> None:
        self._invoke = invoke
        self._settings = settings

    async def leaves_checks_to_us(self) -> bool:
        """Return False if the broker is RocketMQ's, which makes its own transaction checks."""
        header = AskTransactionState(commit_log_offset=-1, tran_state_table_offset=-1)
        try:
            await self._invoke(Code.ASK_TRANSACTION_STATE, header)
        except RequestCodeNotSupported:
            return False
        except ServerError as error:
            if error.remark != remarks.HALF_MESSAGE_NOT_FOUND:
                raise
        return True

    async def examined(self, topic: str) -> int:
        """Return the offset from which to read a queue: the committed one, or else the queue's
        minimum.

        The committed offset is at most the queue's end, because the queue may have lost its tail.
        """
        try:
            committed = await self._offset(
                Code.QUERY_CONSUMER_OFFSET, QueryConsumerOffset(CHECK_GROUP, topic, QUEUE_ID)
            )
        except QueryNotFound:
            return await self.oldest(topic)
        return min(committed, await self.end(topic))

    async def oldest(self, topic: str) -> int:
        return await self._offset(Code.GET_MIN_OFFSET, GetMinOffset(topic, QUEUE_ID))

    async def end(self, topic: str) -> int:
        return await self._offset(Code.GET_MAX_OFFSET, GetMaxOffset(topic, QUEUE_ID))

    async def _offset(self, code: Code, header: msgspec.Struct) -> int:
        answer = (await self._invoke(code, header)).header
        if not isinstance(answer, (QueryConsumerOffsetReply, GetMinOffsetReply, GetMaxOffsetReply)):
            raise RemoteProtocolError("the answer to an offset query has no offset")
        return max(0, answer.offset)

    async def commit(self, topic: str, offset: int) -> None:
        header = UpdateConsumerOffset(CHECK_GROUP, topic, QUEUE_ID, offset)
        await self._invoke(Code.UPDATE_CONSUMER_OFFSET, header)

    async def check_rights(self, half_offset: int, op_offset: int) -> None:
        """Read one message of each queue; raise the broker's error if this account may not."""
        for topic, offset in ((HALF_TOPIC, half_offset), (OP_HALF_TOPIC, op_offset)):
            await self._pull(topic, offset, count=1, suspend_ms=0)

    async def pull(self, topic: str, offset: int) -> Pulled | None:
        """Read a queue, starting at this offset; return None while the topic does not exist."""
        settings = self._settings
        return await self._pull(
            topic, offset, count=settings.pull_batch_size, suspend_ms=settings.pull_suspend
        )

    async def _pull(self, topic: str, offset: int, *, count: int, suspend_ms: int) -> Pulled | None:
        header = PullMessage(
            consumer_group=CHECK_GROUP,
            topic=topic,
            queue_id=QUEUE_ID,
            queue_offset=offset,
            max_msg_nums=count,
            sys_flag=int(PullSysFlag.SUSPEND | PullSysFlag.SUBSCRIPTION),
            commit_offset=0,
            suspend_timeout_millis=suspend_ms,
            sub_version=0,
            subscription=ALL_TAGS,
            expression_type="TAG",
        )
        timeout_ms = suspend_ms + self._settings.request_timeout
        try:
            answer = await self._invoke(
                Code.PULL_MESSAGE, header, ok=_ANSWERS, timeout_ms=timeout_ms
            )
        except TopicNotExist:
            return None
        reply = answer.header
        if not isinstance(reply, PullMessageReply):
            raise RemoteProtocolError("the answer to a pull has no header fields")
        try:
            found = decode_records(answer.body) if answer.code == ResponseCode.SUCCESS else []
        except CorruptRecord as error:
            raise RemoteProtocolError(f"a pulled record is corrupt: {error}") from error
        return Pulled(found, reply.next_begin_offset, reply.min_offset, reply.max_offset)

    async def ask(self, index: int, physical_offset: int) -> Asked:
        """Have the broker ask a producer about the transaction of a half message."""
        header = AskTransactionState(physical_offset, index)
        try:
            answer = await self._invoke(Code.ASK_TRANSACTION_STATE, header)
        except ServerError as error:
            if error.remark != remarks.HALF_MESSAGE_NOT_FOUND:
                return Asked(is_open=True, producer="", refusal=error.remark or "")
            return Asked(is_open=False, producer=None)
        reply = answer.header
        if not isinstance(reply, AskTransactionStateReply):
            raise RemoteProtocolError("the answer to a transaction check has no header fields")
        if reply.is_ended:  # the op message will arrive soon
            return Asked(is_open=True, producer="")
        return Asked(is_open=True, producer=reply.producer_address)

    async def set_aside(self, index: int, physical_offset: int) -> str | None:
        """Have the broker set a half message aside; return its reason if it refuses.

        A half message that is no longer in the log counts as set aside.
        """
        header = SetTransactionAside(physical_offset, index)
        try:
            await self._invoke(Code.SET_TRANSACTION_ASIDE, header)
        except ServerError as error:
            return None if error.remark == remarks.HALF_MESSAGE_NOT_FOUND else error.remark or ""
        return None


_group_hash: Final = lru_cache(4_096)(java_hash)
"""Java's hash of a producer group, cached: hashing takes a microsecond, and groups repeat."""


def half_of(record: MessageRecord) -> Half:
    text = record.properties_text
    immunity = property_value(text, PropertyKey.CHECK_IMMUNITY_TIME_IN_SECONDS)
    return Half(
        record.physical_offset,
        record.size,
        record.store_timestamp // 1_000,
        _group_hash(property_value(text, PropertyKey.PRODUCER_GROUP) or ""),
        _number(immunity, NO_IMMUNITY, NO_IMMUNITY - 1),
        _number(property_value(text, PropertyKey.TRANSACTION_CHECK_TIMES), 0, COUNT_MAX),
    )


def _number(text: str | None, otherwise: int, highest: int) -> int:
    """Parse a count from a property and cap it; return `otherwise` if it is not a number."""
    if text is None or not text.isdecimal():
        return otherwise
    return min(int(text), highest) if len(text) <= _DIGITS_MAX else highest


def ended_by(record: MessageRecord) -> list[int]:
    """Return the queue offsets of the half messages that an op message ends; RocketMQ 5 writes
    several into one. Other messages of the op topic end none.
    """
    if property_value(record.properties_text, PropertyKey.TAGS) != OP_TAG:
        return []
    texts = map(bytes.strip, record.body.split(b","))
    return [int(text) for text in texts if text.isdigit() and len(text) <= _DIGITS_MAX]
