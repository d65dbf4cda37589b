# SPDX-License-Identifier: Apache-2.0
"""Administration of one broker: transactions and their half messages."""

from collections.abc import AsyncIterator
from enum import Enum
from typing import Final, NamedTuple

import msgspec

from cometmq.client.admin.broker_consumers import BrokerConsumers
from cometmq.client.admin.broker_messages import BrokerMessages
from cometmq.client.message import MessageExt
from cometmq.client.transfer.pulled import EmptyAnswers, fields_of
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.codes import RequestCode as Code
from cometmq.remoting.commands.transactions import (
    AskTransactionState,
    AskTransactionStateReply,
    EndTransaction,
    ResumeCheckHalfMessage,
)
from cometmq.remoting.errors import RemoteProtocolError
from cometmq.remoting.integers import whole
from cometmq.remoting.message.flags import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK
from cometmq.remoting.message.properties import PropertyKey
from cometmq.remoting.names import (
    CHECK_GROUP,
    CHECK_MAX_TIME_TOPIC,
    HALF_TOPIC,
    OP_HALF_TOPIC,
    OP_TAG,
    SET_ASIDE,
)

QUEUE_ID: Final = 0
OPEN_MAX: Final = 1 << 28
"""The most half messages that `open_transactions` reads; each takes a byte of memory meanwhile."""
_READ_COUNT: Final = 1_024


class Span(msgspec.Struct, frozen=True):
    """The part of a queue that has not been examined yet."""

    begin: int
    end: int


class TransactionQueues(msgspec.Struct, frozen=True):
    """The half and op messages of a broker that may belong to open transactions."""

    halves: Span
    ops: Span


class HalfState(Enum):
    """The state of the transaction of a half message."""

    OPEN = "open"
    SET_ASIDE = "set aside"
    """No producer decided in time, so it is checked no more; a commit still delivers it."""
    ENDED = "ended"


class End(NamedTuple):
    """The end of one half message, as an op message tells it."""

    op_offset: int
    half_offset: int
    is_aside: bool
    """Whether the half message was set aside; RocketMQ's op messages do not say so."""


class HalfMessage(msgspec.Struct, frozen=True):
    """A message that the broker stores until its transaction ends."""

    message: MessageExt

    @property
    def broker(self) -> str:
        """The name of the broker that stores the message."""
        return self.message.queue.broker_name

    @property
    def offset(self) -> int:
        """The message's offset in the half queue."""
        return self.message.queue_offset

    @property
    def group(self) -> str:
        """The producer group whose members the broker asks about the transaction."""
        return self.message.properties.get(PropertyKey.PRODUCER_GROUP, "")

    @property
    def topic(self) -> str:
        """The topic to which the message is delivered on commit."""
        return self.message.properties.get(PropertyKey.REAL_TOPIC, "")

    @property
    def queue_id(self) -> int:
        """The queue to which the message is delivered on commit."""
        return whole(self.message.properties.get(PropertyKey.REAL_QUEUE_ID, "")) or 0


class BrokerTransactions(BrokerMessages, BrokerConsumers):
    """Inspects and ends the transactions of one broker; reading them changes nothing."""

    async def transaction_queues(self) -> TransactionQueues:
        """Return the unexamined parts of the half queue and the op queue."""
        # The order matters: both offsets advance together while the broker examines transactions.
        ops_begin = await self._examined(OP_HALF_TOPIC)
        halves_begin = await self._examined(HALF_TOPIC)
        halves_end = max(0, await self.max_offset(HALF_TOPIC, QUEUE_ID))
        ops_end = max(0, await self.max_offset(OP_HALF_TOPIC, QUEUE_ID))
        return TransactionQueues(
            Span(min(halves_begin, halves_end), halves_end), Span(min(ops_begin, ops_end), ops_end)
        )

    async def _examined(self, topic: str) -> int:
        committed = await self.committed_offset(CHECK_GROUP, topic, QUEUE_ID)
        return max(0, await self.min_offset(topic, QUEUE_ID), committed or 0)

    async def read_halves(self, span: Span) -> AsyncIterator[HalfMessage]:
        """Read half messages, including those whose transactions have ended."""
        async for message in self._read(HALF_TOPIC, span):
            yield HalfMessage(message)

    async def read_ends(self, span: Span) -> AsyncIterator[End]:
        """Read op messages; yield each half message that one ends or sets aside."""
        async for message in self._read(OP_HALF_TOPIC, span):
            if message.tag == OP_TAG:
                for text in message.body.split(
                    b","
                ):  # RocketMQ 5 names several half messages in one op message
                    if (ended := whole(text.strip())) is not None:
                        yield End(message.queue_offset, ended, SET_ASIDE in message.properties)

    async def open_transactions(self) -> AsyncIterator[HalfMessage]:
        """Read the half messages of open transactions, oldest first."""
        queues = await self.transaction_queues()
        begin, end = queues.halves.begin, queues.halves.end
        if end - begin > OPEN_MAX:
            raise RemoteProtocolError(
                f"broker {self.name or self.address} says that {end - begin:,} half messages wait,"
                f" more than {OPEN_MAX:,}"
            )
        is_ended = bytearray(end - begin)
        async for it in self.read_ends(queues.ops):
            if begin <= it.half_offset < end:
                is_ended[it.half_offset - begin] = True
        async for message in self.read_halves(queues.halves):
            if not is_ended[message.offset - begin]:
                yield message

    async def half_message(self, offset: int) -> HalfMessage | None:
        """Return the half message at an offset of the half queue, or None if there is none."""
        async for half in self.read_halves(Span(offset, offset + 1)):
            return half
        return None

    async def is_open(self, half: HalfMessage) -> bool:
        """Return whether the transaction of a half message is still open."""
        queues = await self.transaction_queues()
        if half.offset < queues.halves.begin:
            return False
        return half.offset not in [it.half_offset async for it in self.read_ends(queues.ops)]

    async def halves_with_id(self, message_id: str) -> list[HalfMessage]:
        """Return the half messages with an id, as far as the broker indexes messages."""
        found = await self.query(HALF_TOPIC, message_id, is_unique_key=True)
        return [HalfMessage(it) for it in found if it.topic == HALF_TOPIC]

    async def state(self, half: HalfMessage) -> HalfState:
        """Return what has become of a half message.

        A message that a RocketMQ broker has set aside counts as ended.
        """
        if await self.is_open(half):
            return HalfState.OPEN
        # The copy that is made when a message is set aside is found by its id, and tells how far
        # back its op message is.
        copies = await self.query(CHECK_MAX_TIME_TOPIC, half.message.message_id, is_unique_key=True)
        if not copies:
            return HalfState.ENDED
        since_ms = min(it.store_timestamp for it in copies)
        begin = await self.first_offset_since(OP_HALF_TOPIC, QUEUE_ID, since_ms)
        ops = Span(begin, await self.max_offset(OP_HALF_TOPIC, QUEUE_ID))
        ends = [it async for it in self.read_ends(ops) if it.half_offset == half.offset]
        is_aside = bool(ends) and all(it.is_aside for it in ends)
        return HalfState.SET_ASIDE if is_aside else HalfState.ENDED

    async def _read(self, topic: str, span: Span) -> AsyncIterator[MessageExt]:
        offset = span.begin
        empty = EmptyAnswers(MessageQueue(topic, self.name or self.address, QUEUE_ID))
        while offset < span.end:
            count_max = min(_READ_COUNT, span.end - offset)
            pulled = await self.pull(topic, QUEUE_ID, offset, count_max=count_max)
            for message in pulled.messages:
                if message.queue_offset < span.end:
                    yield message
            if pulled.next_offset <= offset:
                return
            empty.check(pulled)
            offset = pulled.next_offset

    async def ask_transaction_state(self, half: HalfMessage) -> AskTransactionStateReply:
        """Make the broker ask a producer for the transaction's state now, unless it has ended;
        RocketMQ's own brokers do not support this request.
        """
        # A broker forgets that an old transaction has ended; it would ask again, and store a second
        # copy of the message.
        if not await self.is_open(half):
            return AskTransactionStateReply(is_ended=True)
        message = half.message
        header = AskTransactionState(message.physical_offset, half.offset)
        response = await self.invoke(Code.ASK_TRANSACTION_STATE, header)
        return fields_of(response, AskTransactionStateReply)

    async def end_transaction(self, half: HalfMessage, *, commit: bool) -> None:
        """End a transaction on behalf of its producer."""
        message = half.message
        header = EndTransaction(
            producer_group=half.group,
            tran_state_table_offset=half.offset,
            commit_log_offset=message.physical_offset,
            commit_or_rollback=TRANSACTION_COMMIT if commit else TRANSACTION_ROLLBACK,
            msg_id=message.message_id,
        )
        await self.invoke(Code.END_TRANSACTION, header)

    async def resume_check(self, offset_message_id: str) -> None:
        """Resume the checks of a half message that the broker has given up on."""
        header = ResumeCheckHalfMessage(offset_message_id)
        await self.invoke(Code.RESUME_CHECK_HALF_MESSAGE, header)
