# SPDX-License-Identifier: Apache-2.0
"""Closing: all callers wait for the same drain, and no callback can close its own client."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any

import pytest

from cometmq.client import (
    ClientStateError,
    ConsumeFrom,
    LitePullConsumer,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    PushOptions,
    ScheduledPull,
    TransactionProducer,
    TransactionState,
    application_calls,
)
from cometmq.client import sync as blocking
from cometmq.client.consume import push_consumer
from cometmq.client.consume.queues import ownership
from cometmq.client.testing import MemoryCluster, eventually
from cometmq.testing.client.listening import FIRST, consumer_of, logged, send, texts


async def test_every_close_waits_for_the_running_listener(cluster: MemoryCluster) -> None:
    began, may_end, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def listener(_: list[MessageExt]) -> None:
        began.set()
        await may_end.wait()
        ended.set()

    await send(cluster, *texts(1))
    consumer = consumer_of(cluster, listener)
    async with asyncio.TaskGroup() as group, consumer:
        await began.wait()
        group.create_task(consumer.close())
        await eventually(lambda: not consumer.is_running)
        second = group.create_task(consumer.close())
        await asyncio.sleep(0.05)
        assert not second.done()
        may_end.set()
        await second
        assert ended.is_set()
    await consumer.close()


async def test_a_listener_cannot_close_its_consumer(cluster: MemoryCluster) -> None:
    refusals: list[str] = []
    later: list[asyncio.Task[None]] = []

    async def listener(_: list[MessageExt]) -> None:
        try:
            await consumer.close()
        except ClientStateError as error:
            refusals.append(str(error))
        later.append(group.create_task(consumer.close()))

    await send(cluster, *texts(1))
    consumer = consumer_of(cluster, listener)
    async with asyncio.TaskGroup() as group, consumer:
        await eventually(lambda: later)
        async with asyncio.timeout(60):
            await later[0]  # a separate task may close
    assert "called by the listener" in refusals[0]
    assert sum(cluster.committed("cg", "T").values()) == 1


def test_a_plain_listener_cannot_close_its_consumer(served: MemoryCluster) -> None:
    refusals: list[str] = []
    done = threading.Event()

    def listener(_: list[MessageExt]) -> None:
        with pytest.raises(ClientStateError) as caught:
            consumer.close()
        refusals.append(str(caught.value))
        done.set()

    with blocking.Producer("pg", served.namesrv) as producer:
        producer.send(Message("T", b"x"))
    consumer = blocking.PushConsumer("g", served.namesrv, listener=listener, options=FIRST)
    consumer.subscribe("T")
    with consumer:
        assert done.wait(60)
    assert "called by the listener" in refusals[0]


# -- callbacks --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [LitePullConsumer, PullConsumer])
@pytest.mark.parametrize("name", ["on_assigned", "on_revoked"])
async def test_a_callback_cannot_close_its_consumer(
    cluster: MemoryCluster, kind: type[Any], name: str
) -> None:
    refusals: list[str] = []

    async def callback(_: list[MessageQueue]) -> None:
        try:
            await consumer.close()
        except ClientStateError as error:
            refusals.append(str(error))

    consumer = kind("g", cluster.namesrv)
    getattr(consumer, name)(callback)
    (consumer.subscribe if kind is LitePullConsumer else consumer.register)("T")
    async with asyncio.timeout(60), consumer:
        await eventually(lambda: consumer.queues)
    assert refusals
    assert f"`close` was called by {name}, and would wait for {name} to end" in refusals[0]


async def test_a_task_of_a_callback_may_close(cluster: MemoryCluster) -> None:
    tasks: list[asyncio.Task[None]] = []

    async def assigned(_: list[MessageQueue]) -> None:
        tasks.append(group.create_task(close_later()))

    async def close_later() -> None:
        await may_close.wait()
        await consumer.close()

    may_close = asyncio.Event()
    consumer = LitePullConsumer("g", cluster.namesrv)
    consumer.on_assigned(assigned)
    consumer.subscribe("T")
    async with asyncio.timeout(60), asyncio.TaskGroup() as group, consumer:
        may_close.set()
        await tasks[0]
        assert not consumer.is_running


async def test_a_scheduled_pull_cannot_close_itself(cluster: MemoryCluster) -> None:
    refusals: list[str] = []

    async def callback(consumer: PullConsumer, _: MessageQueue) -> None:
        for client in (scheduled, consumer):
            with pytest.raises(ClientStateError) as caught:
                await client.close()
            refusals.append(str(caught.value))

    scheduled = ScheduledPull("g", cluster.namesrv)
    scheduled.register("T", callback)
    async with asyncio.timeout(60), scheduled:
        await eventually(lambda: len(refusals) >= 2)
        assert scheduled.consumer.is_running
    assert all("`close` was called by the callback" in text for text in refusals)


async def test_a_local_transaction_cannot_close_its_producer(cluster: MemoryCluster) -> None:
    async def execute(_: Message, __: object) -> TransactionState:
        with pytest.raises(ClientStateError, match="`close` was called by the transaction"):
            await producer.close()
        return TransactionState.COMMIT

    producer = TransactionProducer("pg", cluster.namesrv, check=lambda _: None, execute=execute)
    async with producer:
        result = await producer.send_in_transaction(Message("T", b"x"))
        assert result.state is TransactionState.COMMIT
        await eventually(lambda: cluster.messages("T"))


# -- listeners that suppress their cancellation -----------------------------------------------


async def closed_in_time(consumer: Any) -> None:
    """Fail if `close` does not end, instead of hanging the whole run."""
    async with asyncio.timeout(60):
        await consumer.close()


async def started_with_a_message(
    cluster: MemoryCluster, listener: Callable[[list[MessageExt]], Any], *, orderly: bool
) -> PushConsumer:
    """Start a consumer that gets one message."""
    await send(cluster, *texts(1))
    options = PushOptions(consume_from=ConsumeFrom.FIRST_OFFSET, orderly=orderly, drain_ms=50)
    consumer = consumer_of(cluster, listener, options)
    await consumer.start()
    return consumer


@pytest.mark.parametrize("orderly", [False, True])
async def test_close_ends_although_a_listener_suppresses_its_cancellation(
    cluster: MemoryCluster,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    *,
    orderly: bool,
) -> None:
    monkeypatch.setattr(push_consumer, "CANCEL_GRACE_MS", 60_000)
    began, cancelled, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def listener(_: list[MessageExt]) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
        ended.set()

    consumer = await started_with_a_message(cluster, listener, orderly=orderly)
    await began.wait()
    await closed_in_time(consumer)
    assert cancelled.is_set()
    assert ended.is_set()
    assert sum(cluster.committed("cg", "T").values()) == 0
    assert "listener.abandoned" not in caplog.text


@pytest.mark.parametrize("orderly", [False, True])
async def test_close_names_a_listener_that_runs_on_after_its_cancellation(
    cluster: MemoryCluster,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    *,
    orderly: bool,
) -> None:
    monkeypatch.setattr(push_consumer, "CANCEL_GRACE_MS", 50)
    began, may_end, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def stubborn(_: list[MessageExt]) -> None:
        began.set()
        while not may_end.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await may_end.wait()
        ended.set()

    consumer = await started_with_a_message(cluster, stubborn, orderly=orderly)
    await began.wait()
    before = asyncio.all_tasks()
    await closed_in_time(consumer)
    (line,) = logged(caplog, "listener.abandoned")
    assert "stubborn" in line
    assert "running_count=1" in line
    may_end.set()
    await eventually(lambda: ended.is_set() and not left_of(before))
    assert sum(cluster.committed("cg", "T").values()) == 0


def left_of(tasks: set[asyncio.Task[Any]]) -> list[str]:
    return [
        task.get_name() for task in tasks if not task.done() and task.get_name().startswith("deliv")
    ]


# -- callbacks that suppress their cancellation -----------------------------------------------


class Stubborn:
    """An async function that, once cancelled, keeps running until it is released."""

    def __init__(self) -> None:
        self.began, self.may_end, self.ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def run(self) -> None:
        self.began.set()
        while not self.may_end.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await self.may_end.wait()
        self.ended.set()

    async def release(self) -> None:
        self.may_end.set()
        async with asyncio.timeout(60):
            await self.ended.wait()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(application_calls, "CANCEL_GRACE_MS", 50)
    monkeypatch.setattr(ScheduledPull, "_GRACE_MS", 50)
    monkeypatch.setattr(ownership, "FORCED_LEAVE_MS", 50)


def member_of(kind: type[Any], cluster: MemoryCluster) -> Any:
    """Return a consumer of the topic T that has not been started."""
    more = {"listener": lambda _: None} if kind is PushConsumer else {}
    consumer = kind("g", cluster.namesrv, **more)
    (consumer.register if kind is PullConsumer else consumer.subscribe)("T")
    return consumer


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("kind", [PushConsumer, LitePullConsumer, PullConsumer])
async def test_close_ends_although_on_revoked_suppresses_its_cancellation(
    cluster: MemoryCluster, caplog: pytest.LogCaptureFixture, kind: type[Any]
) -> None:
    stubborn = Stubborn()
    consumer = member_of(kind, cluster)

    @consumer.on_revoked
    async def revoked(_: list[MessageQueue]) -> None:
        await stubborn.run()

    await consumer.start()
    await eventually(lambda: consumer.queues)
    await closed_in_time(consumer)
    assert stubborn.began.is_set()
    assert "callback.abandoned group=g callback=on_revoked running_count=1" in caplog.text
    assert not cluster.broker.groups["g"]
    await stubborn.release()


@pytest.mark.usefixtures("impatient")
async def test_close_ends_although_a_scheduled_call_suppresses_its_cancellation(
    cluster: MemoryCluster, caplog: pytest.LogCaptureFixture
) -> None:
    stubborn = Stubborn()
    cluster.create_topic("One", queue_count=1)
    scheduled = ScheduledPull("g", cluster.namesrv)

    async def callback(_: PullConsumer, __: MessageQueue) -> int:
        await stubborn.run()
        return 10

    scheduled.register("One", callback)
    await scheduled.start()
    async with asyncio.timeout(60):
        await stubborn.began.wait()
        await scheduled.close()
    assert "callback.abandoned group=g callback=register running_count=1" in caplog.text
    await stubborn.release()


@pytest.mark.usefixtures("impatient")
async def test_close_ends_although_a_check_suppresses_its_cancellation(
    cluster: MemoryCluster, caplog: pytest.LogCaptureFixture
) -> None:
    stubborn = Stubborn()

    async def check(_: MessageExt) -> TransactionState:
        await stubborn.run()
        return TransactionState.COMMIT

    producer = TransactionProducer("pg", cluster.namesrv, check=check)
    await producer.start()
    await producer.send_in_transaction(
        Message("T", b"x"), execute=lambda *_: TransactionState.UNKNOWN
    )
    async with asyncio.timeout(60):
        await stubborn.began.wait()
        await producer.close()
    assert "callback.abandoned group=pg callback=check running_count=1" in caplog.text
    await stubborn.release()


@pytest.mark.parametrize("kind", [Producer, PullConsumer, blocking.Producer])
def test_a_client_has_no_id_before_the_start(kind: type[Any]) -> None:
    client = kind("g", "unused")
    with pytest.raises(ClientStateError, match="is not started"):
        assert client.client_id


async def test_the_client_id_remains_readable_after_close(cluster: MemoryCluster) -> None:
    async with Producer("pg", cluster.namesrv) as producer:
        client_id = producer.client_id
    assert producer.client_id == client_id
