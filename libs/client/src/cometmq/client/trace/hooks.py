# SPDX-License-Identifier: Apache-2.0
"""The hooks that create trace records of sends and listener calls."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Final

from cometmq.client.clock import TimeLimit
from cometmq.client.cluster.instance import ClientInstance
from cometmq.client.hooks import ConsumeContext, EndContext, MessageKind, SendContext
from cometmq.client.message import Message, MessageExt, SendStatus
from cometmq.client.namespace import NO_NAMESPACE, unique_ids, without_namespace
from cometmq.client.settings import AccessChannel, ClientOptions, ConsumerOptions, ProducerOptions
from cometmq.client.trace import (
    EndTransaction,
    Pub,
    SubAfter,
    SubBefore,
    TraceRecord,
    encode_record,
    record_keys,
)
from cometmq.client.transfer.sender import MessageSender
from cometmq.remoting.errors import CometError
from cometmq.remoting.log import Log
from cometmq.remoting.message.properties import PropertyKey
from cometmq.remoting.names import DEFAULT_REGION, REGION_TRACE_TOPIC_PREFIX, TRACE_PRODUCER_PREFIX
from cometmq.remoting.transport.tasks import TaskSet, describe

RECORD_COUNT_MAX: Final = 16_384
BODY_CHARS_MAX: Final = 118_000
KEYS_CHARS_MAX: Final = 24_000
"""Limit per message, because its properties together must not reach 32 KiB."""
GATHER_MS: Final = 500
FLUSH_MS: Final = 3_000

SendTrace = Callable[[str, str, Sequence[str]], Awaitable[None]]
"""Sends a trace, given as text, with its keys to a topic."""


class _Segment:
    """The records that the next message to one topic will contain."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.keys: dict[str, None] = {}
        self.chars = 0
        self.keys_chars = 0

    def add(self, text: str, keys: Sequence[str]) -> bool:
        """Add a record; return False, and change nothing, if it belongs in the next message.

        The first record always fits: of too many keys, only the first ones are kept.
        """
        fresh = {key: None for key in keys if key not in self.keys}
        fresh_chars = sum(map(len, fresh)) + len(fresh)
        has_room = (
            self.chars + len(text) <= BODY_CHARS_MAX
            and self.keys_chars + fresh_chars <= KEYS_CHARS_MAX
        )
        if self.texts and not has_room:
            return False
        self.texts.append(text)
        self.chars += len(text)
        for key in fresh:
            if self.keys_chars + len(key) < KEYS_CHARS_MAX:
                self.keys[key] = None
                self.keys_chars += len(key) + 1
        return True


class TraceDispatcher:
    """Sends the traces of one producer or consumer, gathered for half a second, in the background.

    Tracing never delays or fails a message. Once `RECORD_COUNT_MAX` records are unsent, new ones
    are dropped and counted; send failures are logged.
    """

    def __init__(self, send: SendTrace, background: TaskSet, log: Log) -> None:
        """`send` is called in tasks of `background`."""
        self._send = send
        self._background = background
        self._log = log
        self._segments: dict[str, _Segment] = {}
        self._sending: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._record_count = 0
        self._dropped_count = 0

    def append(self, topic: str, records: Sequence[TraceRecord]) -> bool:
        """Queue records for sending; return False if the buffer is full."""
        if self._record_count + len(records) > RECORD_COUNT_MAX:
            self._dropped_count += len(records)
            return False
        segment = self._segments.get(topic)
        for record in records:
            text, keys = encode_record(record), record_keys(record)
            if segment is None or not segment.add(text, keys):
                if segment is not None:
                    self._leave(topic)
                segment = self._segments[topic] = _Segment()
                segment.add(text, keys)
        self._record_count += len(records)
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(GATHER_MS / 1000, self._leave_all)
        return True

    async def close(self) -> None:
        """Send the remaining records, but only for a limited time."""
        self._leave_all()
        if self._sending:
            _, late = await asyncio.wait(self._sending, timeout=FLUSH_MS / 1000)
            for task in late:
                task.cancel()
            if late:
                self._log.warning("trace.unsent", count=self._record_count, error="no time left")

    def _leave_all(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for topic in list(self._segments):
            self._leave(topic)
        if self._dropped_count:
            self._log.warning("trace.dropped", count=self._dropped_count)
            self._dropped_count = 0

    def _leave(self, topic: str) -> None:
        segment = self._segments.pop(topic)
        task = self._background.spawn(self._deliver(topic, segment), name="trace")
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _deliver(self, topic: str, segment: _Segment) -> None:
        count = len(segment.texts)
        try:
            await self._send(topic, "".join(segment.texts), list(segment.keys))
        except CometError as error:
            self._log.warning("trace.unsent", count=count, error=describe(error))
        finally:
            self._record_count -= count


_BEFORE: Final = "trace.before"


class TraceTopic:
    """Chooses the topic of traces."""

    def __init__(self, topic: str, channel: AccessChannel) -> None:
        """Use `topic`, or one topic per region if the channel is CLOUD."""
        self._topic = topic
        self._is_by_region = channel is AccessChannel.CLOUD

    def of(self, region: str | None) -> str:
        return f"{REGION_TRACE_TOPIC_PREFIX}{region}" if self._is_by_region else self._topic

    def is_own(self, topic: str) -> bool:
        """Return whether a topic holds traces, which are not traced themselves."""
        return topic.startswith(self._topic)


class SendTraceHook:
    """Traces a producer's sends, and how its transactions end."""

    def __init__(self, dispatcher: TraceDispatcher, topic: TraceTopic) -> None:
        self._dispatcher = dispatcher
        self._topic = topic

    def before_send(self, context: SendContext) -> None:
        """Do nothing, because the record needs the result."""

    def after_send(self, context: SendContext) -> None:
        """Record a send with a result, unless the broker has disabled tracing.

        Each message of a batch has a record of its own, as in RocketMQ 5, so that it is found by
        its id and keys. Java 4.9 writes one record with all ids in one word.
        """
        result = context.result
        messages = context.messages
        if result is None or not context.is_trace_on or self._topic.is_own(messages[0].topic):
            return
        region = context.region or DEFAULT_REGION
        ids = _each(result.message_id, messages)
        offset_ids = _each(result.offset_message_id, messages)
        records = tuple(
            Pub(
                timestamp=context.begin_ms,
                region=region,
                group=without_namespace(context.group),
                topic=without_namespace(message.topic),
                message_id=message_id,
                tag=message.tag,
                keys=_keys(message),
                store_host=context.address,
                body_bytes=len(message.body) if context.is_batch else context.body_bytes,
                cost_ms=context.end_ms - context.begin_ms,
                kind=context.kind,
                offset_message_id=offset_id,
                is_success=result.status is SendStatus.SEND_OK,
            )
            for message, message_id, offset_id in zip(messages, ids, offset_ids, strict=True)
        )
        self._dispatcher.append(self._topic.of(region), records)

    def end_transaction(self, context: EndContext) -> None:
        message = context.message
        if self._topic.is_own(message.topic):
            return
        region = message.properties.get(PropertyKey.MSG_REGION) or DEFAULT_REGION
        record = EndTransaction(
            timestamp=context.time_ms,
            region=region,
            group=without_namespace(context.group),
            topic=without_namespace(message.topic),
            message_id=context.message_id,
            tag=message.tag,
            keys=_keys(message),
            store_host=context.address,
            kind=MessageKind.TRANSACTION_COMMIT,
            transaction_id=context.transaction_id,
            state=context.state,
            is_from_check=context.is_from_check,
        )
        self._dispatcher.append(self._topic.of(region), (record,))


class ConsumeTraceHook:
    """Traces a consumer's listener calls."""

    def __init__(
        self, dispatcher: TraceDispatcher, topic: TraceTopic, *, next_id: Callable[[], str]
    ) -> None:
        """`next_id` creates request ids."""
        self._dispatcher = dispatcher
        self._topic = topic
        self._next_id = next_id

    def before_consume(self, context: ConsumeContext) -> None:
        request_id = self._next_id()
        group = without_namespace(context.group)
        records = tuple(
            SubBefore(
                timestamp=context.begin_ms,
                region=message.properties.get(PropertyKey.MSG_REGION),
                group=group,
                request_id=request_id,
                message_id=message.message_id,
                retry_times=message.reconsume_times,
                keys=message.properties.get(PropertyKey.KEYS),
            )
            for message in context.messages
            if _is_traced(message)
        )
        context.state[_BEFORE] = records
        if records:
            self._dispatcher.append(self._topic.of(records[-1].region), records)

    def after_consume(self, context: ConsumeContext) -> None:
        before: tuple[SubBefore, ...] = context.state.get(_BEFORE, ())
        if not before:
            return
        cost_ms = (context.end_ms - context.begin_ms) // len(context.messages)
        records = tuple(
            SubAfter(
                request_id=record.request_id,
                message_id=record.message_id,
                cost_ms=cost_ms,
                is_success=context.is_success,
                keys=record.keys,
                outcome=int(context.outcome or 0),
                timestamp=context.end_ms,
                group=record.group,
            )
            for record in before
        )
        self._dispatcher.append(self._topic.of(before[-1].region), records)


def _each(text: str, messages: Sequence[Message]) -> Sequence[str]:
    """Return the id of each message of a send; brokers may answer a batch with a single id."""
    if len(messages) == 1:
        return (text,)
    ids = text.split(",")
    return ids if len(ids) == len(messages) else [text] * len(messages)


def _is_traced(message: MessageExt) -> bool:
    return message.properties.get(PropertyKey.TRACE_ON) != "false"


def _keys(message: Message | MessageExt) -> str | None:
    keys = message.keys
    return (keys if isinstance(keys, str) else " ".join(keys)) or None


SEND_TIMEOUT_MS: Final = 5_000
_UTF8_BYTES_MAX: Final = 4
_numbers: Final = itertools.count(1)


async def producer_trace(
    instance: ClientInstance, group: str, options: ProducerOptions, stack: AsyncExitStack
) -> SendTraceHook:
    """Trace the sends of a producer group until the stack is closed."""
    dispatcher = _dispatcher(instance, f"{group}-PRODUCE", options, stack)
    return SendTraceHook(dispatcher, TraceTopic(options.trace_topic, options.access_channel))


async def consumer_trace(
    instance: ClientInstance, group: str, options: ConsumerOptions, stack: AsyncExitStack
) -> ConsumeTraceHook:
    """Trace the listener calls of a consumer group until the stack is closed."""
    dispatcher = _dispatcher(instance, f"{group}-CONSUME", options, stack)
    topic = TraceTopic(options.trace_topic, options.access_channel)
    return ConsumeTraceHook(dispatcher, topic, next_id=unique_ids(options).next_id)


def _dispatcher(
    instance: ClientInstance, name: str, options: ClientOptions, stack: AsyncExitStack
) -> TraceDispatcher:
    group = f"{TRACE_PRODUCER_PREFIX}-{without_namespace(name)}-{next(_numbers)}"
    instance.members.add_producer(group)
    stack.push_async_callback(instance.unregister, producer_group=group)
    sender = MessageSender(
        instance,
        group,
        _sending_options(options),
        ids=unique_ids(options),
        namespace=NO_NAMESPACE,
    )

    async def send(topic: str, text: str, keys: Sequence[str]) -> None:
        message = Message(topic, text.encode(), keys=keys)
        prepared = sender.outgoing.prepare(message)
        await sender.outgoing.compress(prepared)
        await sender.send(prepared, TimeLimit.from_now(SEND_TIMEOUT_MS))

    background = TaskSet(instance.log)
    stack.push_async_callback(background.close)
    dispatcher = TraceDispatcher(send, background, instance.log)
    stack.push_async_callback(dispatcher.close)
    return dispatcher


def _sending_options(options: ClientOptions) -> ProducerOptions:
    names = ClientOptions.__struct_fields__
    common = {name: getattr(options, name) for name in names} | {"trace_context": False}
    return ProducerOptions(**common, body_bytes_max=_UTF8_BYTES_MAX * 2 * BODY_CHARS_MAX)
