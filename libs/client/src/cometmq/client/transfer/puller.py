# SPDX-License-Identifier: Apache-2.0
"""A single pull: chooses the broker, sets the flags, and interprets the answer."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from cometmq.client.clock import monotonic_ms
from cometmq.client.cluster.instance import ClientInstance
from cometmq.client.cluster.routes import MASTER_ID
from cometmq.client.message import (
    DamagedMessage,
    MessageExt,
    expanded_bytes,
    plain_body,
    received,
    unreadable,
)
from cometmq.client.transfer.pulled import (
    MissingMessages,
    Pulled,
    PullStatus,
    damage_text,
    fields_of,
    missing_offsets,
    pulled_of,
    records_of,
)
from cometmq.remoting.bodies.heartbeat import SubscriptionData
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.commands.pull import PullMessage, PullMessageReply
from cometmq.remoting.errors import (
    ConnectFailed,
    ConnectionLost,
    CorruptRecord,
    RequestTimeout,
)
from cometmq.remoting.message.flags import PullSysFlag
from cometmq.remoting.message.properties import PropertyKey
from cometmq.remoting.message.record import MessageRecord
from cometmq.remoting.names import ALL_TAGS
from cometmq.remoting.transport.tasks import describe

PAUSE_MS: Final = 100  # doubled at each further answer
PAUSE_MS_MAX: Final = 1_000
"""The longest pause. Brokers normally hold a pull that finds nothing, and then there is no pause.
Without pauses, a broker that answers at once received 6,500 pulls/s per queue. Java waits 10 s
after PULL_OFFSET_MOVED, and not at all after other answers.
"""


class _Idle(msgspec.Struct):
    answer_count: int = 0
    at_ms: int = 0
    """When the last pull was sent."""


class Pace:
    """Measures, for each queue, how long to wait before its next pull."""

    def __init__(self, clock_ms: Callable[[], int] = monotonic_ms) -> None:
        self._clock_ms = clock_ms
        self._idle: dict[MessageQueue, _Idle] = {}

    def pause_ms(self, queue: MessageQueue) -> int:
        """Return how long to wait before the next pull of a queue.

        The time for which the broker held the last pull is subtracted, so only quick answers cause
        a pause. The first empty answer causes none, because a slave answers so to send a consumer
        back to the master.
        """
        idle = self._idle.get(queue)
        if idle is None or idle.answer_count < 2:
            return 0
        pause_ms = min(PAUSE_MS << min(idle.answer_count - 2, 10), PAUSE_MS_MAX)
        return max(0, idle.at_ms + pause_ms - self._clock_ms())

    def note(self, queue: MessageQueue, offset: int, pulled: Pulled, *, sent_ms: int) -> None:
        """Count an answer to a pull from `offset`, unless it has messages or a higher next offset.

        An answer with PULL_OFFSET_MOVED counts in any case, because a broker may move the offset
        back and forth.
        """
        has_moved = pulled.status is not PullStatus.OFFSET_ILLEGAL and pulled.next_offset > offset
        if has_moved or pulled.messages or pulled.unreadable:
            self._idle.pop(queue, None)
            return
        idle = self._idle.setdefault(queue, _Idle())
        idle.answer_count += 1
        idle.at_ms = sent_ms

    def forget(self, queue: MessageQueue) -> None:
        """Drop the count of a queue that is no longer read."""
        self._idle.pop(queue, None)


PLAIN_BYTES_MAX: Final = 32 << 20
"""Once the decompressed bodies of an answer have more bytes, its other messages are left to the
next pull. A body has at most `DECOMPRESSED_BYTES_MAX` bytes, but an answer of 256 KiB may contain
32 such bodies.
"""

_ANSWERS: Final = frozenset(int(status) for status in PullStatus)
_STREAM_EXT: Final = {"ReqT": "0"}
_MIN_OFFSET: Final = PropertyKey.MIN_OFFSET.value
_MAX_OFFSET: Final = PropertyKey.MAX_OFFSET.value


class PullStyle(msgspec.Struct, frozen=True):
    """The flags that a consumer sets in all its pulls."""

    count_max: int
    suspend_ms: int
    timeout_ms: int
    has_subscription: bool
    """Whether every pull carries its subscription, instead of relying on the last heartbeat."""
    is_lite: bool
    commits: bool = False
    """Whether a pull may carry the offset to commit."""


class Puller:
    """Pulls for one consumer group."""

    def __init__(self, instance: ClientInstance, group: str, style: PullStyle) -> None:
        """Pull from masters first; brokers may suggest other replicas later."""
        self._instance = instance
        self._group = group
        self._style = style
        self._broker_ids: dict[MessageQueue, int] = {}
        self._pace = Pace()
        # The subscription of the last heartbeat may be that of a different member.
        self._missing = MissingMessages(instance.log, may_be_filtered=not style.has_subscription)

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        subscription: SubscriptionData,
        *,
        commit_offset: int | None,
        count_max: int | None = None,
    ) -> Pulled:
        """Read a queue from an offset.

        If the queue has no new messages, the broker holds the request for the time set in `style`.
        If a broker does not hold such requests, wait up to a second before the next of them.

        Raise RemoteProtocolError if the answer cannot be true.
        """
        instance, style = self._instance, self._style
        if style.suspend_ms and (pause_ms := self._pace.pause_ms(queue)):
            await asyncio.sleep(pause_ms / 1000)
        sent_ms = monotonic_ms()
        broker_id, address = instance.routes.brokers.any_of(
            queue.broker_name, preferred_id=self._broker_ids.get(queue, MASTER_ID)
        )
        may_commit = style.commits and broker_id == MASTER_ID
        count_max = style.count_max if count_max is None else count_max
        header = self._header(
            queue,
            offset,
            subscription,
            commit_offset=commit_offset if may_commit else None,
            count_max=count_max,
        )
        try:
            response = await instance.remoting.invoke(
                address,
                RequestCode.PULL_MESSAGE,
                header,
                timeout_ms=style.timeout_ms,
                ok=_ANSWERS,
                ext=_STREAM_EXT if style.is_lite else None,
            )
        except (ConnectFailed, ConnectionLost, RequestTimeout):
            self._broker_ids.pop(queue, None)
            instance.suspect(address)
            raise
        pulled = pulled_of(queue, offset, response)
        self._broker_ids[queue] = fields_of(response, PullMessageReply).suggest_which_broker_id
        status = pulled.status
        if status is PullStatus.FOUND:
            await self._decode(response.body, count_max, queue, offset, subscription, pulled)
        elif status is PullStatus.NO_MATCHED:
            self._check_missing([], queue, offset, subscription, pulled)
        else:
            self._missing.check(queue)
        self._pace.note(queue, offset, pulled, sent_ms=sent_ms)
        return pulled

    def forget(self, queue: MessageQueue) -> None:
        """Drop the replica that a broker suggested for a queue, and report its missing messages."""
        self._broker_ids.pop(queue, None)
        self._pace.forget(queue)
        self._missing.forget(queue)

    def close(self) -> None:
        """Report the last missing messages."""
        self._missing.close()

    def _header(
        self,
        queue: MessageQueue,
        offset: int,
        subscription: SubscriptionData,
        *,
        commit_offset: int | None,
        count_max: int,
    ) -> PullMessage:
        style = self._style
        flags = PullSysFlag.SUSPEND if style.suspend_ms else PullSysFlag(0)
        if commit_offset is not None:
            flags |= PullSysFlag.COMMIT_OFFSET
        if style.has_subscription:
            flags |= PullSysFlag.SUBSCRIPTION
        if style.is_lite:
            flags |= PullSysFlag.LITE_PULL
        return PullMessage(
            consumer_group=self._group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=offset,
            max_msg_nums=count_max,
            sys_flag=int(flags),
            commit_offset=commit_offset or 0,
            suspend_timeout_millis=style.suspend_ms,
            sub_version=subscription.sub_version,
            subscription=subscription.sub_string if style.has_subscription else None,
            expression_type=subscription.expression_type,
        )

    async def _decode(
        self,
        body: bytes,
        count_max: int,
        queue: MessageQueue,
        offset: int,
        subscription: SubscriptionData,
        pulled: Pulled,
    ) -> None:
        """Decode messages; compare their tags, because brokers filter only by the tag's hash."""
        records = records_of(body, count_max, queue, offset, pulled)
        tags = frozenset(subscription.tags_set)
        bounds: Mapping[str, str] = {
            _MIN_OFFSET: str(pulled.min_offset),
            _MAX_OFFSET: str(pulled.max_offset),
        }
        plain_bytes = 0
        for index, record in enumerate(records):
            if plain_bytes > PLAIN_BYTES_MAX:
                pulled.next_offset = record.queue_offset
                del records[index:]
                break
            if tags and record.tags not in tags:
                continue
            message = await self._message(record, queue)
            if message is None:
                namespace = self._instance.namespace
                pulled.unreadable.append(unreadable(record, queue.broker_name, namespace))
                plain_bytes += expanded_bytes(record)
                continue
            record.properties.update(bounds)
            pulled.messages.append(message)
            plain_bytes += len(message.body)
        self._check_missing(records, queue, offset, subscription, pulled)

    async def _message(self, record: MessageRecord, queue: MessageQueue) -> MessageExt | None:
        """Return a record's message, or None if its body cannot be decompressed; log damage."""
        instance, broker_name = self._instance, queue.broker_name
        try:
            body = await plain_body(record.body, record.sys_flag)
        except CorruptRecord as error:
            instance.log.error(  # noqa: TRY400  # a Log has these four methods
                "message.unreadable",
                topic=queue.topic,
                broker=broker_name,
                queue_id=queue.queue_id,
                queue_offset=record.queue_offset,
                message_id=record.unique_key or record.offset_message_id,
                error=describe(error),
            )
            return None
        message = received(record, broker_name, instance.namespace, body=body)
        if message.__class__ is DamagedMessage:
            instance.log.error(
                "message.damaged",
                topic=queue.topic,
                broker=broker_name,
                queue_id=queue.queue_id,
                queue_offset=record.queue_offset,
                message_id=message.message_id,
                error=damage_text(message),
            )
        return message

    def _check_missing(
        self,
        records: list[MessageRecord],
        queue: MessageQueue,
        offset: int,
        subscription: SubscriptionData,
        pulled: Pulled,
    ) -> None:
        """Note the messages of an unfiltered subscription that the broker left out."""
        if subscription.sub_string != ALL_TAGS:
            return
        gaps = missing_offsets(records, offset, pulled.next_offset, pulled.min_offset)
        if gaps:
            self._missing.note(queue, gaps)
        else:
            self._missing.check(queue)
