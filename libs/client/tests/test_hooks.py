# SPDX-License-Identifier: Apache-2.0
import pytest

from cometmq.client import (
    ConsumeFrom,
    ConsumeResult,
    Message,
    MessageExt,
    Producer,
    ProducerOptions,
    PushConsumer,
    PushOptions,
)
from cometmq.client.errors import ClientStateError, InvalidArgument, SendFailed
from cometmq.client.hooks import (
    ConsumeContext,
    ConsumeOutcome,
    MessageKind,
    SendContext,
    SendHook,
)
from cometmq.client.testing import MemoryCluster, eventually
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.errors import ServerError
from cometmq.remoting.log import NO_LOG, Log


class Events:
    """Records log events and hook calls."""

    def __init__(self) -> None:
        self.logged: list[tuple[str, dict[str, object]]] = []
        self.before: list[SendContext] = []
        self.after: list[SendContext] = []

    def before_send(self, context: SendContext) -> None:
        context.state["seen"] = True
        self.before.append(context)

    def after_send(self, context: SendContext) -> None:
        self.after.append(context)

    def debug(self, event: str, /, **facts: object) -> None:
        self.logged.append((event, facts))

    info = warning = error = debug


class Broken:
    def before_send(self, context: SendContext) -> None:
        raise RuntimeError("before")

    def after_send(self, context: SendContext) -> None:
        raise RuntimeError("after")


class Forbidding:
    def check(self, context: SendContext) -> None:
        if context.messages[0].tag:
            raise InvalidArgument(f"no tags, please: {context.messages[0].tag}")


def hooked(cluster: MemoryCluster, *hooks: SendHook, log: Log = NO_LOG) -> Producer:
    producer = Producer("pg", cluster.namesrv, log=log)
    for hook in hooks:
        producer.add_hook(hook)
    return producer


async def test_hooks_see_each_attempt_and_its_end(cluster: MemoryCluster) -> None:
    events = Events()
    cluster.broker.fail(RequestCode.SEND_MESSAGE_V2, ServerError("disk"))
    async with hooked(cluster, events) as producer:
        result = await producer.send(Message("T", b"xyz", delay_level=3))
    first, second = events.after
    assert events.before == events.after
    assert isinstance(first.error, ServerError)
    assert first.result is None
    assert (second.result, second.error) == (result, None)
    assert second.state == {"seen": True}
    assert (second.region, second.is_trace_on) == ("DefaultRegion", True)
    assert (second.kind, second.body_bytes) == (MessageKind.DELAY, 3)
    assert second.address == cluster.broker.address
    assert first.message_id == second.message_id == result.message_id


async def test_hooks_see_batches_and_oneway_sends(cluster: MemoryCluster) -> None:
    events = Events()
    async with hooked(cluster, events) as producer:
        await producer.send_batch([Message("T", b"1"), Message("T", b"2")])
        await producer.send_oneway(Message("T", b"3"))
    batch, oneway = events.after
    assert [message.body for message in batch.messages] == [b"1", b"2"]
    assert (batch.is_batch, oneway.is_batch) == (True, False)
    assert (batch.is_oneway, oneway.is_oneway) == (False, True)
    assert (oneway.result, oneway.error) == (None, None)


async def test_a_hook_that_raises_changes_nothing(cluster: MemoryCluster) -> None:
    events = Events()
    async with hooked(cluster, Broken(), events, log=events) as producer:
        await producer.send(Message("T", b"x"))
    failures = [facts for event, facts in events.logged if event == "hook.failed"]
    assert [facts.get("error") for facts in failures] == [
        "RuntimeError: before",
        "RuntimeError: after",
    ]
    assert failures[1]["suppressed_count"] == 1
    assert len(events.after) == 1


async def test_a_forbidden_message_is_not_sent(cluster: MemoryCluster) -> None:
    producer = Producer("pg", cluster.namesrv, options=ProducerOptions(retry_times=0))
    producer.add_forbidden_hook(Forbidding())
    async with producer:
        with pytest.raises(SendFailed, match="no tags, please: red") as caught:
            await producer.send(Message("T", b"x", tag="red"))
        with pytest.raises(InvalidArgument, match="no tags"):
            await producer.send_ordered(Message("T", b"x", tag="red"), 1)
        await producer.send(Message("T", b"x"))
    assert isinstance(caught.value.__cause__, InvalidArgument)
    assert cluster.broker.requests[RequestCode.SEND_MESSAGE_V2] == 1


class Consumed:
    def __init__(self) -> None:
        self.contexts: list[ConsumeContext] = []

    def before_consume(self, context: ConsumeContext) -> None:
        context.state["outcome before"] = context.outcome

    def after_consume(self, context: ConsumeContext) -> None:
        self.contexts.append(context)


class BrokenConsumer:
    def before_consume(self, context: ConsumeContext) -> None:
        raise RuntimeError("before")

    def after_consume(self, context: ConsumeContext) -> None:
        raise RuntimeError("after")


@pytest.mark.parametrize(
    ("result", "outcome", "is_success"),
    [
        (None, ConsumeOutcome.SUCCESS, True),
        (ConsumeResult.consumed(1), ConsumeOutcome.SUCCESS, True),
        (ConsumeResult.RECONSUME_LATER, ConsumeOutcome.FAILED, False),
        ("no result", ConsumeOutcome.EXCEPTION, False),
    ],
)
async def test_hooks_see_the_results_of_listeners(
    cluster: MemoryCluster, result: object, outcome: ConsumeOutcome, is_success: bool
) -> None:
    hook = Consumed()

    async def listener(_: list[MessageExt]) -> object:
        return result

    options = PushOptions(consume_from=ConsumeFrom.FIRST_OFFSET)
    consumer = PushConsumer("cg", cluster.namesrv, listener=listener, options=options)  # type: ignore[arg-type]
    consumer.add_hook(BrokenConsumer())
    consumer.add_hook(hook)
    consumer.subscribe("T")
    async with Producer("pg", cluster.namesrv) as producer:
        await producer.send(Message("T", b"x"))
    async with consumer:
        await eventually(lambda: hook.contexts)
        with pytest.raises(ClientStateError, match="before the start"):
            consumer.add_hook(hook)
    context = hook.contexts[0]
    assert (context.outcome, context.is_success) == (outcome, is_success)
    assert context.state == {"outcome before": None}
    assert [message.body for message in context.messages] == [b"x"]
    assert context.group == "cg"
    assert context.end_ms >= context.begin_ms
