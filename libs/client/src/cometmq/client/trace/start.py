# SPDX-License-Identifier: Apache-2.0
"""Starts tracing for a producer or consumer, over the connections of its own instance."""

import itertools
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Final

from cometmq.client.cluster.instance import ClientInstance
from cometmq.client.identity import unique_ids
from cometmq.client.message import Message
from cometmq.client.namespace import NO_NAMESPACE, without_namespace
from cometmq.client.settings import ClientOptions, ConsumerOptions, ProducerOptions
from cometmq.client.trace.dispatcher import BODY_CHARS_MAX, TraceDispatcher
from cometmq.client.trace.hooks import ConsumeTraceHook, SendTraceHook, TraceTopic
from cometmq.client.transfer.sender import MessageSender
from cometmq.client.transfer.time_limit import TimeLimit
from cometmq.remoting.names import TRACE_PRODUCER_PREFIX
from cometmq.remoting.transport.tasks import TaskSet

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
