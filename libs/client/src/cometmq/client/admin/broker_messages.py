# SPDX-License-Identifier: Apache-2.0
"""Administration of one broker: read messages, or have a consumer process one of them."""

from collections.abc import Iterable
from typing import Final

from cometmq.client.admin.broker_consumers import PROXIED_TIMEOUT_MS
from cometmq.client.admin.calls import BrokerCalls
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
from cometmq.client.transfer.damage import (
    DAMAGED,
    MISSING,
    damage_text,
    missing_offsets,
    missing_text,
)
from cometmq.client.transfer.pulled import Pulled, PullStatus, pulled_of, records_of
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
from cometmq.remoting.errors import CorruptRecord, QueryNotFound, RemoteProtocolError
from cometmq.remoting.message.compression import DECOMPRESSED_BYTES_MAX
from cometmq.remoting.message.flags import PullSysFlag
from cometmq.remoting.message.recall_handle import RecallHandle
from cometmq.remoting.message.record import MessageRecord, decode_records
from cometmq.remoting.names import ALL_TAGS, TOOLS_GROUP

KEY_COUNT_MAX: Final = 64
FOREVER_MS: Final = (1 << 63) - 1
PULL_COUNT_MAX: Final = 32
_READ: Final = (PullStatus.FOUND, PullStatus.NO_MATCHED)
_PULLED: Final = frozenset(int(status) for status in PullStatus)


class BrokerMessages(BrokerCalls):
    """Reads the messages of one broker; each method sends one request code."""

    async def message_at(self, physical_offset: int, *, topic: str | None = None) -> MessageExt:
        """Return the message at a commit log offset; if its body cannot be decompressed, as an
        `UnreadableMessage`.
        """
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
