# SPDX-License-Identifier: Apache-2.0
"""Administration of one broker: messages, transactions and their half messages."""

from collections.abc import AsyncIterator, Iterable
from enum import Enum
from typing import Final, NamedTuple

import msgspec

from cometmq.client.admin.broker_consumers import PROXIED_TIMEOUT_MS, BrokerCalls, BrokerConsumers
from cometmq.client.arguments import check_text
from cometmq.client.message import (
    ON_LOOP_BYTES_MAX,
    DamagedMessage,
    MessageExt,
    UnreadableMessage,
    expanded_bytes,
    plain_body,
    received,
    unreadable,
)
from cometmq.client.transfer.pulled import (
    DAMAGED,
    MISSING,
    EmptyAnswers,
    Pulled,
    PullStatus,
    damage_text,
    fields_of,
    missing_offsets,
    missing_text,
    pulled_of,
    records_of,
)
from cometmq.client.transfer.puller import PLAIN_BYTES_MAX
from cometmq.client.turns import decode_answer
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.bodies.running_info import ConsumeMessageDirectlyResult
from cometmq.remoting.bodies.stats import ConsumeQueueEntries
from cometmq.remoting.codes import RequestCode as Code
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.command import Response
from cometmq.remoting.commands import callbacks, queries, send
from cometmq.remoting.commands.pull import PullMessage
from cometmq.remoting.commands.transactions import (
    AskTransactionState,
    AskTransactionStateReply,
    EndTransaction,
    ResumeCheckHalfMessage,
)
from cometmq.remoting.errors import CorruptRecord, QueryNotFound, RemoteProtocolError
from cometmq.remoting.integers import whole
from cometmq.remoting.message.compression import DECOMPRESSED_BYTES_MAX
from cometmq.remoting.message.flags import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK, PullSysFlag
from cometmq.remoting.message.properties import PropertyKey
from cometmq.remoting.message.recall_handle import RecallHandle
from cometmq.remoting.message.record import MessageRecord, decode_records
from cometmq.remoting.names import (
    ALL_TAGS,
    CHECK_GROUP,
    CHECK_MAX_TIME_TOPIC,
    HALF_TOPIC,
    OP_HALF_TOPIC,
    OP_TAG,
    SET_ASIDE,
    TOOLS_GROUP,
)

KEY_COUNT_MAX: Final = 64
FOREVER_MS: Final = (1 << 63) - 1
PULL_COUNT_MAX: Final = 32
_READ: Final = (PullStatus.FOUND, PullStatus.NO_MATCHED)
_PULLED: Final = frozenset(int(status) for status in PullStatus)


class BrokerMessages(BrokerCalls):
    """Reads the messages of one broker; each method sends one request code."""

    async def message_at(self, physical_offset: int, *, topic: str | None = None) -> MessageExt:
        """Return the message at a commit log offset, with a broken body an `UnreadableMessage`."""
        header = queries.ViewMessageById(physical_offset, topic)
        found = await self._messages(await self.invoke(Code.VIEW_MESSAGE_BY_ID, header), 1)
        if not found:
            raise RemoteProtocolError("the broker's answer lacks the message")
        return found[0]

    async def query(
        self,
        topic: str,
        key: str,
        *,
        count_max: int = KEY_COUNT_MAX,
        begin_ms: int = 0,
        end_ms: int = FOREVER_MS,
        is_unique_key: bool = False,
    ) -> list[MessageExt]:
        """Return the messages of a topic that have this key.

        Brokers search by the key's hash; messages with the same hash but a different key are left
        out. A message is returned as an `UnreadableMessage` if its body cannot be decompressed, or
        if too much was already decompressed in vain.
        """
        header = queries.QueryMessage(
            topic, key, count_max, begin_ms, end_ms, True if is_unique_key else None
        )
        ok = (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND)
        response = await self.invoke(Code.QUERY_MESSAGE, header, ok=ok)
        if response.code == ResponseCode.QUERY_NOT_FOUND:
            return []
        messages = await self._messages(response, count_max)
        if is_unique_key:
            return [message for message in messages if message.message_id == key]
        return [m for m in messages if key in m.keys and m.topic == topic]

    async def pull(  # noqa: PLR0913  # each by name
        self,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        count_max: int = PULL_COUNT_MAX,
        expression: str = ALL_TAGS,
        expression_type: str | None = None,
        group: str = TOOLS_GROUP,
        body_bytes_max: int = DECOMPRESSED_BYTES_MAX,
    ) -> Pulled:
        """Read a queue from an offset without committing anything.

        Brokers select by the hash of a tag, so messages with another tag of the same hash are
        returned, too. `expression_type` is SQL92 for a condition.

        A message is returned as an `UnreadableMessage` if its body cannot be decompressed, or has
        more than `body_bytes_max` bytes. Once the decompressed bodies have more than
        `body_bytes_max` or `PLAIN_BYTES_MAX` bytes, further messages are left out, and
        `next_offset` is the offset of the first of them.
        """
        header = PullMessage(
            consumer_group=group,
            topic=topic,
            queue_id=queue_id,
            queue_offset=offset,
            max_msg_nums=count_max,
            sys_flag=int(PullSysFlag.SUBSCRIPTION),
            commit_offset=0,
            suspend_timeout_millis=0,
            sub_version=0,
            subscription=expression,
            expression_type=expression_type,
        )
        response = await self.invoke(Code.PULL_MESSAGE, header, ok=_PULLED)
        queue = MessageQueue(topic, self.name or self.address, queue_id)
        pulled, records = pulled_of(queue, offset, response), []
        if pulled.status is PullStatus.FOUND:
            records = records_of(response.body, max(1, count_max), queue, offset, pulled)
        if expression == ALL_TAGS and pulled.status in _READ:
            gaps = missing_offsets(records, offset, pulled.next_offset, pulled.min_offset)
            if gaps:
                self._on_damage(MISSING, missing_text(queue, gaps, may_be_filtered=False))
        await self._add_messages(pulled, records, body_bytes_max)
        return pulled

    async def queue_entries(
        self, topic: str, queue_id: int, index: int, *, count: int = 10, group: str | None = None
    ) -> ConsumeQueueEntries:
        """Return entries of a consume queue, and whether the filter of a group accepts them.

        Raise QueryNotFound for an index outside the queue; brokers report this error only in the
        response text.
        """
        header = queries.QueryConsumeQueue(topic, queue_id, index, count, group)
        response = await self.invoke(Code.QUERY_CONSUME_QUEUE, header)
        if not response.body:
            raise QueryNotFound(response.remark or "the broker answers nothing")
        return await decode_answer(ConsumeQueueEntries, response.body)

    async def recall(self, topic: str, message_id: str) -> None:
        """Keep the delayed messages with a message id (unique key) from being delivered.

        Raise IllegalOperation if the broker has no such message, or if one is due; brokers of
        RocketMQ 4.x raise RequestCodeNotSupported. RocketMQ 5 recalls only messages with a delivery
        time.
        """
        for name, text in (("topic", topic), ("message_id", message_id)):
            check_text(text, name)
        handle = RecallHandle(topic, self.name, 0, message_id).encode()
        header = send.RecallMessage(topic, handle, TOOLS_GROUP)
        await self.invoke(Code.RECALL_MESSAGE, header)

    async def consume_directly(
        self, group: str, client_id: str, offset_message_id: str
    ) -> ConsumeMessageDirectlyResult:
        """Have one connected consumer process a single message now; return the result."""
        header = callbacks.ConsumeMessageDirectly(group, client_id, offset_message_id)
        code = Code.CONSUME_MESSAGE_DIRECTLY
        return await self._json(
            ConsumeMessageDirectlyResult, code, header, timeout_ms=PROXIED_TIMEOUT_MS
        )

    async def _add_messages(
        self, pulled: Pulled, records: Iterable[MessageRecord], body_bytes_max: int
    ) -> None:
        """Decompress bodies and add the messages to `pulled`.

        Stop once the bodies have more than `body_bytes_max` or PLAIN_BYTES_MAX bytes;
        `pulled.next_offset` is then the offset of the next message.
        """
        plain_bytes = 0
        for record in records:
            if plain_bytes > min(body_bytes_max, PLAIN_BYTES_MAX):
                pulled.next_offset = record.queue_offset
                break
            pulled.messages.append(message := await self._readable(record, body_bytes_max))
            is_broken = isinstance(message, UnreadableMessage)
            expanded = min(expanded_bytes(record), body_bytes_max)
            plain_bytes += expanded if is_broken else len(message.body)

    async def _readable(self, record: MessageRecord, bytes_max: int) -> MessageExt:
        try:
            return await self._received(record, bytes_max)
        except CorruptRecord:
            return unreadable(record, self.name)

    async def _received(
        self, record: MessageRecord, bytes_max: int = DECOMPRESSED_BYTES_MAX
    ) -> MessageExt:
        body = await plain_body(record.body, record.sys_flag, bytes_max)
        message = received(record, self.name, body=body)
        if isinstance(message, DamagedMessage):
            self._on_damage(DAMAGED, damage_text(message))
        return message

    async def _messages(self, response: Response, count_max: int) -> list[MessageExt]:
        try:
            messages: list[MessageExt] = []
            plain_bytes = vain_bytes = 0
            for record in decode_records(response.body, count_max):
                if plain_bytes > PLAIN_BYTES_MAX:
                    raise RemoteProtocolError(
                        f"the bodies in the answer of the broker {self.address} decompress to more"
                        f" than {PLAIN_BYTES_MAX} bytes: ask for fewer messages"
                    )
                is_over = vain_bytes > PLAIN_BYTES_MAX
                bytes_max = ON_LOOP_BYTES_MAX if is_over else DECOMPRESSED_BYTES_MAX
                messages.append(message := await self._readable(record, bytes_max))
                if isinstance(message, UnreadableMessage):
                    vain_bytes += min(expanded_bytes(record), bytes_max)
                else:
                    plain_bytes += len(message.body)
            return messages
        except CorruptRecord as error:
            raise RemoteProtocolError(
                f"a message in the answer of the broker {self.address} is corrupt: {error}; run"
                " cometmq store verify on its store"
            ) from error


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
        """Return what became of a half message; one that RocketMQ has set aside is ENDED."""
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
