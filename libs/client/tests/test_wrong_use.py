# SPDX-License-Identifier: Apache-2.0
"""Misused calls raise an error that names the remedy."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from cometmq.client import (
    AdminClient,
    ClientStateError,
    InvalidArgument,
    LitePullConsumer,
    Message,
    MessageExt,
    Producer,
    PullConsumer,
    PushConsumer,
    PushOptions,
    ScheduledPull,
    TransactionProducer,
    sync,
)
from cometmq.client.testing import MemoryCluster, eventually
from cometmq.testing.client.listening import QUEUE_0, consumer_of, send, texts

ADDRESS = "127.0.0.1:1"


async def two(messages: list[Any], more: object) -> None: ...


async def generator(messages: list[Any]) -> AsyncIterator[None]:
    yield None


async def print_nothing(consumer: object) -> None: ...


async def coroutine(consumer: object, queue: object) -> None: ...


@pytest.mark.parametrize(
    ("listener", "text"),
    [
        (None, r"listener is None, which cannot be called.*def listener\(messages\)"),
        ("handle", "listener is 'handle', which cannot be called"),
        (two, "missing a required argument: 'more'.*def listener"),
        (lambda: None, "too many positional arguments.*def listener"),
        (generator, "is a generator, which would never run: use `return`"),
    ],
)
@pytest.mark.parametrize("kind", [PushConsumer, sync.PushConsumer])
def test_a_listener_must_take_messages(kind: type[Any], listener: object, text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        kind("cg", ADDRESS, listener=listener)


def test_callbacks_of_consumers_are_checked() -> None:
    for consumer in (PushConsumer("cg", ADDRESS, listener=print), LitePullConsumer("cg", ADDRESS)):
        for call in (
            lambda it: it.on_assigned(lambda: None),
            lambda it: it.on_revoked(7),
            lambda it: it.add_hook(object()),
        ):
            with pytest.raises(InvalidArgument, match=r"cannot be called|is None"):
                call(consumer)


async def test_assigned_queues_are_chosen_before_the_start(cluster: MemoryCluster) -> None:
    async with LitePullConsumer("lg", cluster.namesrv) as consumer:
        with pytest.raises(ClientStateError, match=r"call `assign` before the start.*AdminClient"):
            consumer.assign(QUEUE_0)


async def test_a_method_of_a_builtin_type_is_a_listener(cluster: MemoryCluster) -> None:
    seen: list[list[MessageExt]] = []
    async with consumer_of(cluster, seen.append):
        await send(cluster, *texts(1))
        await eventually(lambda: [[it.body for it in messages] for messages in seen] == [[b"0"]])


def test_hooks_of_producers_are_checked() -> None:
    class Asynchronous:
        async def check(self, context: object) -> None: ...

    producer: Any = Producer("pg", ADDRESS)
    with pytest.raises(InvalidArgument, match="before_send is None"):
        producer.add_hook(object())
    with pytest.raises(InvalidArgument, match="check is a coroutine function"):
        producer.add_forbidden_hook(Asynchronous())


def test_transactions_need_functions_of_the_right_form() -> None:
    with pytest.raises(InvalidArgument, match=r"def check\(message\)"):
        TransactionProducer("pg", ADDRESS, check=lambda: None)  # type: ignore[arg-type, misc]
    with pytest.raises(InvalidArgument, match=r"def execute\(message, argument\)"):
        TransactionProducer(
            "pg",
            ADDRESS,
            check=lambda message: None,
            execute=lambda message: None,  # type: ignore[arg-type, misc]
        )


def test_callbacks_of_scheduled_pulls_need_the_right_form() -> None:
    with pytest.raises(InvalidArgument, match=r"def callback\(consumer, queue\)"):
        ScheduledPull("cg", ADDRESS).register("T", print_nothing)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="is a coroutine function"):
        sync.ScheduledPull("cg", ADDRESS).register("T", coroutine)  # type: ignore[arg-type]


# -- nothing to read --------------------------------------------------------------------------


async def test_consumers_without_a_subscription_say_so(cluster: MemoryCluster) -> None:
    consumer = PushConsumer("cg", cluster.namesrv, listener=print)
    with pytest.raises(InvalidArgument, match=r"call `consumer.subscribe\(topic\)` before the"):
        await consumer.start()
    consumer.subscribe("T")
    async with consumer, LitePullConsumer("lite", cluster.namesrv) as lite:
        with pytest.raises(ClientStateError, match=r"nothing to read: call `subscribe\(topic\)`"):
            await lite.poll()
    with pytest.raises(InvalidArgument, match=r"register\(topic, callback\)"):
        await ScheduledPull("cg", cluster.namesrv).start()


# -- life -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "use"),
    [
        (lambda n: Producer("pg", n), lambda c: c.send(Message("T", b"x"))),
        (lambda n: Producer("pg", n), lambda c: c.request(Message("T", b"x"))),
        (lambda n: LitePullConsumer("cg", n), lambda c: c.poll()),
        (lambda n: PullConsumer("cg", n), lambda c: c.commit()),
        (
            lambda n: TransactionProducer("pg", n, check=print),
            lambda c: c.begin(Message("T", b"x")),
        ),
    ],
)
async def test_before_the_start_and_after_the_end(
    cluster: MemoryCluster, make: Any, use: Any
) -> None:
    client = make(cluster.namesrv)
    with pytest.raises(ClientStateError, match="is not started: use it inside `async with"):
        await use(client)
    with pytest.raises(TypeError, match=r"`async with`.*cometmq\.client\.sync"), client:
        pass
    async with client:
        with pytest.raises(ClientStateError, match="has already been started"):
            await client.start()
    with pytest.raises(ClientStateError, match="is closed and cannot be used again"):
        await use(client)
    with pytest.raises(ClientStateError, match="is closed"):
        await client.start()


def test_the_synchronous_clients_say_the_same() -> None:
    with pytest.raises(ClientStateError, match="`with producer:`"):
        sync.Producer("pg", ADDRESS).send(Message("T", b"x"))
    with pytest.raises(ClientStateError, match="is not started"):
        sync.LitePullConsumer("cg", ADDRESS).finish()
    consumer = sync.PushConsumer("cg", ADDRESS, listener=print)
    with pytest.raises(InvalidArgument, match="has no subscription"):
        consumer.start()


def test_options_of_another_client_are_refused() -> None:
    options: Any = PushOptions(concurrency=3)
    for kind, right in ((PullConsumer, "PullOptions"), (Producer, "ProducerOptions")):
        with pytest.raises(InvalidArgument, match=rf"{right}\(...\), not PushOptions"):
            kind("cg", ADDRESS, options=options)
    with pytest.raises(InvalidArgument, match=r"ClientOptions\(...\), not PushOptions"):
        AdminClient(ADDRESS, options=options)


@pytest.mark.parametrize("kind", [sync.Producer, sync.LitePullConsumer])
async def test_blocking_clients_say_that_they_are_started_by_with(kind: type[Any]) -> None:
    with pytest.raises(TypeError, match="is started by `with`; for `async with`, use the class"):
        async with kind("group", ADDRESS):
            pass
