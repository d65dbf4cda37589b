# SPDX-License-Identifier: Apache-2.0
"""Errors in application code that do not derive from `Exception` are failures like any other."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from cometmq.client import (
    ConsumeFrom,
    LitePullConsumer,
    LitePullOptions,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    PushOptions,
    TransactionOptions,
    TransactionProducer,
    TransactionState,
)
from cometmq.client.consume.queues.rebalance import AllocateAveragely
from cometmq.client.listener import ConsumeResult, ListenerCaller
from cometmq.client.testing import MemoryCluster, eventually
from cometmq.client.testing.handlers import ask
from cometmq.remoting.log import NO_LOG
from cometmq.remoting.message.flags import TRANSACTION_COMMIT, TRANSACTION_NONE
from cometmq.testing.client.listening import (
    FIRST,
    Recorder,
    consumer_of,
    logged,
    send,
    texts,
)
from cometmq.testing.client.messages import message_ext

COMMIT = TransactionState.COMMIT
MESSAGE = Message("T", b"order 1", keys="order-1")


class Timeout(BaseException):
    """Like the timeouts of gevent and eventlet."""


FOREIGN = [
    pytest.param(error, id=type(error).__name__)
    for error in (
        Timeout("late"),
        GeneratorExit(),
        asyncio.CancelledError(),
    )
]
each_error = pytest.mark.parametrize("error", FOREIGN)
on_loop_or_thread = pytest.mark.parametrize("on_loop", [True, False], ids=["loop", "thread"])


class Failing:
    """A function that raises during its first calls."""

    def __init__(self, error: BaseException, *, times: int = 1, answer: Any = None) -> None:
        self.bodies: list[bytes] = []
        self.calls = 0
        self._error = error
        self._times = times
        self._answer = answer

    def __call__(self, given: Any, *_: object) -> Any:
        self.calls += 1
        if isinstance(given, list) and isinstance(given[0], MessageExt):
            self.bodies += [message.body for message in given]
        if self.calls <= self._times:
            raise self._error
        return self._answer

    def on(self, *, loop: bool) -> Any:
        """Return a coroutine function for the loop, or a plain one for a thread."""

        async def on_loop(*arguments: Any) -> Any:
            await asyncio.sleep(0)
            return self(*arguments)

        return on_loop if loop else self


@pytest.fixture
def events(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[str], list[str]]]:
    """Return a function that returns the log lines of an event; no task may fail."""
    yield partial(logged, caplog)
    assert logged(caplog, "task.failed") == []


Events = Callable[[str], list[str]]


@each_error
@on_loop_or_thread
async def test_later_messages_of_an_orderly_queue_wait(
    cluster: MemoryCluster, events: Events, error: BaseException, *, on_loop: bool
) -> None:
    await send(cluster, *texts(3))
    failing = Failing(error)
    options = PushOptions(consume_from=ConsumeFrom.FIRST_OFFSET, orderly=True, suspend_queue_ms=10)
    async with consumer_of(cluster, failing.on(loop=on_loop), options):
        await eventually(lambda: len(failing.bodies) >= 4)
    assert failing.bodies == [b"0", b"0", b"1", b"2"]
    (line,) = events("listener.failed")
    assert type(error).__name__ in line


@each_error
@on_loop_or_thread
async def test_failures_take_no_slot_of_a_concurrent_consumer(
    cluster: MemoryCluster,
    events: Events,
    caplog: pytest.LogCaptureFixture,
    error: BaseException,
    *,
    on_loop: bool,
) -> None:
    await send(cluster, *texts(2))
    failing = Failing(error, times=2)
    options = PushOptions(consume_from=ConsumeFrom.FIRST_OFFSET, concurrency=1)
    async with consumer_of(cluster, failing.on(loop=on_loop), options):
        await eventually(lambda: failing.calls == 4)
    assert sorted(failing.bodies) == [b"0", b"0", b"1", b"1"]
    first = next(record for record in caplog.records if "listener.failed" in record.getMessage())
    assert first.exc_info
    assert type(first.exc_info[1]) is type(error)


async def test_cancellations_of_earlier_calls_do_not_end_a_consumer(
    cluster: MemoryCluster, events: Events
) -> None:
    """A TaskGroup whose task fails leaves `cancelling()` at 1 in some versions of Python."""
    await send(cluster, *texts(3))
    bodies: list[bytes] = []

    async def listener(messages: list[MessageExt]) -> None:
        bodies.extend(message.body for message in messages)
        if len(bodies) == 1:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0)
        elif len(bodies) == 2:
            lost = asyncio.get_running_loop().create_future()
            lost.cancel()
            await lost

    options = PushOptions(consume_from=ConsumeFrom.FIRST_OFFSET, orderly=True, suspend_queue_ms=10)
    async with consumer_of(cluster, listener, options):
        await eventually(lambda: len(bodies) >= 4)
    assert bodies == [b"0", b"1", b"1", b"2"]
    assert "CancelledError" in events("listener.failed")[0]


@each_error
@on_loop_or_thread
async def test_checks_go_on(
    cluster: MemoryCluster, events: Events, error: BaseException, *, on_loop: bool
) -> None:
    cluster.broker.may_check_transactions = False
    check = Failing(error, answer=COMMIT)
    options = TransactionOptions(check_concurrency=1)
    async with TransactionProducer(
        "pg", cluster.namesrv, check=check.on(loop=on_loop), options=options
    ) as producer:
        await producer.begin(MESSAGE)
        ask(cluster.broker)
        ask(cluster.broker)
        await eventually(lambda: len(cluster.broker.ends) == 2)
    states = [end.commit_or_rollback for end in cluster.broker.ends]
    assert states == [TRANSACTION_NONE, TRANSACTION_COMMIT]
    assert len(events("transaction.check_failed")) == 1


@each_error
@on_loop_or_thread
async def test_an_interrupted_local_transaction_stays_open_and_its_error_is_raised(
    cluster: MemoryCluster, events: Events, error: BaseException, *, on_loop: bool
) -> None:
    execute = Failing(error).on(loop=on_loop)
    async with TransactionProducer("pg", cluster.namesrv, check=lambda _: COMMIT) as producer:
        with pytest.raises(type(error)):
            await producer.send_in_transaction(MESSAGE, execute=execute)
    assert type(error).__name__ in events("transaction.failed")[0]


@each_error
async def test_hooks_have_no_effect(
    cluster: MemoryCluster, events: Events, error: BaseException
) -> None:
    class Hook:
        def before_send(self, _: object) -> None:
            raise error

        after_send = before_consume = after_consume = before_send

    producer, consumer = Producer("pg", cluster.namesrv), consumer_of(cluster, seen := Recorder())
    for client in (producer, consumer):
        client.add_hook(Hook())
    async with producer, consumer:
        await producer.send(Message("T", b"x"))
        await eventually(lambda: seen.bodies == [b"x"])
        await eventually(lambda: consumer.stats().consumed_count == 1)
    assert events("hook.failed")


@each_error
async def test_a_strategy_is_asked_again(
    cluster: MemoryCluster, events: Events, error: BaseException
) -> None:
    class Moody(AllocateAveragely):
        calls = 0

        def allocate(self, *arguments: Any) -> list[MessageQueue]:
            self.calls += 1
            if self.calls == 3:
                raise error
            return super().allocate(*arguments)

    strategy = Moody()
    async with consumer_of(cluster, Recorder(), strategy=strategy) as consumer:
        for count in (3, 4):
            cluster.broker.notify("cg")
            await eventually(lambda count=count: strategy.calls >= count)  # type: ignore[misc]
        assert len(consumer.queues) == 4
    assert events("strategy.failed")


@each_error
@on_loop_or_thread
async def test_callbacks_about_queues_are_only_logged(
    cluster: MemoryCluster, events: Events, error: BaseException, *, on_loop: bool
) -> None:
    consumer = LitePullConsumer("cg", cluster.namesrv, options=LitePullOptions())
    consumer.subscribe("T")
    consumer.on_assigned(Failing(error).on(loop=on_loop))
    async with consumer:
        await eventually(lambda: len(consumer.queues) == 4)
    assert "on_assigned" in events("callback.failed")[0]


async def test_the_cancellation_of_the_client_is_no_failure(
    cluster: MemoryCluster, events: Events
) -> None:
    begun = asyncio.Event()

    async def listener(_: list[MessageExt]) -> None:
        begun.set()
        await asyncio.Event().wait()

    options = PushOptions(consume_from=ConsumeFrom.FIRST_OFFSET, drain_ms=0)
    async with consumer_of(cluster, listener, options):
        await send(cluster, *texts(1))
        await begun.wait()
    assert events("listener.failed") == []


async def test_closing_the_coroutine_of_a_task_is_no_failure(events: Events) -> None:
    """Python does this to tasks that are still pending when their loop is gone."""
    begun, given = asyncio.Event(), [message_ext(0)]
    outcomes: list[object] = []

    async def listener(_: list[MessageExt]) -> None:
        begun.set()
        await asyncio.Event().wait()

    caller = ListenerCaller(listener, ConsumeResult.SUCCESS, group="cg", thread_count=1, log=NO_LOG)

    async def call() -> None:
        outcomes.append(await caller.call_safely(given, ConsumeResult.RECONSUME_LATER))

    task = asyncio.create_task(call())  # noqa: TID251  # closed by the test
    await begun.wait()
    task.get_coro().close()
    task.cancel()
    await asyncio.wait([task])
    assert outcomes == []


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt("stop")])
def test_the_end_of_the_program_is_no_failure(error: BaseException) -> None:
    async def main() -> None:
        async def listener(_: list[MessageExt]) -> None:
            raise error

        async with MemoryCluster() as cluster:
            await send(cluster, *texts(1))
            async with consumer_of(cluster, listener, FIRST):
                await asyncio.Event().wait()

    with pytest.raises(type(error)) as caught:
        asyncio.run(main())
    assert caught.value is error
