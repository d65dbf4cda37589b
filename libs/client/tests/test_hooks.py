# SPDX-License-Identifier: Apache-2.0
from collections.abc import Callable
from typing import Any

import pytest

from cometmq.client import (
    BrokerMissing,
    ClientError,
    ConsumeFrom,
    ConsumeResult,
    Message,
    MessageExt,
    Producer,
    PushConsumer,
    PushOptions,
    TransactionProducer,
    TransactionState,
)
from cometmq.client.errors import (
    ClientStateError,
    InvalidArgument,
    InvalidMessage,
    NoRoute,
    SendFailed,
)
from cometmq.client.hooks import (
    ConsumeContext,
    ConsumeOutcome,
    MessageKind,
    SendContext,
    SendHook,
)
from cometmq.client.testing import LOSE_ANSWER, MemoryCluster, eventually
from cometmq.remoting.bodies.queues import MessageQueue
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
    producer = Producer("pg", cluster.namesrv)
    producer.add_forbidden_hook(Forbidding())
    async with producer:
        with pytest.raises(InvalidArgument, match="no tags, please: red"):
            await producer.send(Message("T", b"x", tag="red"))
        await producer.send(Message("T", b"x"))
    assert cluster.broker.requests[RequestCode.SEND_MESSAGE_V2] == 1


class Refusing:
    """Raises its errors in turn, and counts the attempts."""

    def __init__(self, *errors: Exception | None) -> None:
        self._errors = errors
        self.count = 0

    def check(self, _: SendContext) -> None:
        error = self._errors[min(self.count, len(self._errors) - 1)]
        self.count += 1
        if error is not None:
            raise error


QUEUE = MessageQueue("T", "broker-a", 0)
MESSAGE = Message("T", b"x")
FORMS: dict[str, Callable[[Any], Any]] = {
    "send": lambda producer: producer.send(MESSAGE),
    "queue": lambda producer: producer.send(MESSAGE, queue=QUEUE),
    "batch": lambda producer: producer.send_batch([MESSAGE, MESSAGE]),
    "batch to a queue": lambda producer: producer.send_batch([MESSAGE, MESSAGE], queue=QUEUE),
    "ordered": lambda producer: producer.send_ordered(MESSAGE, "key"),
    "oneway": lambda producer: producer.send_oneway(MESSAGE),
    "oneway to a queue": lambda producer: producer.send_oneway(MESSAGE, queue=QUEUE),
    "request": lambda producer: producer.request(MESSAGE),
    "request to a queue": lambda producer: producer.request(MESSAGE, queue=QUEUE),
    "request by argument": lambda producer: producer.request(MESSAGE, argument="key"),
    "transaction": lambda producer: producer.send_in_transaction(MESSAGE),
}
"""Every form of send, with an asynchronous or a blocking producer."""
REFUSALS = [
    InvalidArgument("no"),
    InvalidMessage("no"),
    ClientStateError("no"),
    NoRoute("no"),
    ClientError("no"),
]


def commit(*_: object) -> TransactionState:
    return TransactionState.COMMIT


@pytest.mark.parametrize("is_created", [True, False])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda refusal: type(refusal).__name__)
async def test_the_refusal_of_a_hook_is_raised_at_once(
    cluster: MemoryCluster, refusal: ClientError, form: str, is_created: bool
) -> None:
    if is_created:
        cluster.create_topic("T")
    hook = Refusing(refusal)
    producer = TransactionProducer("pg", cluster.namesrv, check=commit, execute=commit)
    producer.add_forbidden_hook(hook)
    async with producer:
        with pytest.raises(type(refusal)) as caught:
            await FORMS[form](producer)
        stats = producer.stats()
    assert caught.value is refusal
    assert (hook.count, stats.sent_count, stats.failed_count) == (1, 0, 1)
    assert not cluster.messages("T")


async def test_a_hook_may_refuse_a_message_for_now(cluster: MemoryCluster) -> None:
    hook = Refusing(BrokerMissing("later"), None)
    producer = Producer("pg", cluster.namesrv)
    producer.add_forbidden_hook(hook)
    async with producer:
        await producer.send(MESSAGE)
    assert hook.count == 2
    assert len(cluster.messages("T")) == 1


async def test_a_refusal_does_not_hide_that_the_message_may_be_stored(
    cluster: MemoryCluster,
) -> None:
    refusal = InvalidArgument("no")
    producer = Producer("pg", cluster.namesrv)
    producer.add_forbidden_hook(Refusing(None, refusal))
    cluster.broker.fail(RequestCode.SEND_MESSAGE_V2, LOSE_ANSWER)
    async with producer:
        with pytest.raises(SendFailed, match="which may be stored") as caught:
            await producer.send(MESSAGE)
    assert caught.value.__cause__ is refusal
    assert len(cluster.messages("T")) == 1


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
