# SPDX-License-Identifier: Apache-2.0
"""Missing topics, on brokers that create them on the first send, and on others."""

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

import msgspec
import pytest

from cometmq.client import (
    AdminClient,
    ClientOptions,
    Message,
    MessageQueue,
    NoRoute,
    Producer,
    ProducerOptions,
    PullConsumer,
    PullOptions,
    PushConsumer,
    PushOptions,
    SendFailed,
    SendResult,
    TransactionOptions,
    TransactionProducer,
)
from cometmq.client.errors import no_route, read_only
from cometmq.client.testing import MemoryCluster, eventually
from cometmq.remoting import RequestCode
from cometmq.remoting.errors import TopicNotExist
from cometmq.remoting.message.flags import Perm
from cometmq.testing.client.listening import logged

SEND = RequestCode.SEND_MESSAGE_V2
NO_TOPIC = "no broker has the topic Orderz: check the name; .* cometmq topic create Orderz"
PATIENT = ProducerOptions(send_timeout_ms=60_000, api_timeout_ms=60_000)
REFUSED = "broker-a has no topic Orderz, and does not create it: check the name; otherwise create"


def keep_inherited(cluster: MemoryCluster) -> None:
    """Make the route allow sends that the brokers refuse, as a Java broker's does at first."""
    perm = int(Perm.READ | Perm.WRITE | Perm.INHERIT)
    for broker in cluster.brokers:
        broker.registered_perm = lambda topic: perm  # type: ignore[method-assign]


@pytest.fixture
async def strict() -> AsyncIterator[MemoryCluster]:
    async with MemoryCluster(may_create_topics=False) as cluster:
        cluster.create_topic("T")
        yield cluster


async def transaction(producer: Producer, message: Message) -> object:
    assert isinstance(producer, TransactionProducer)
    return await producer.begin(message)


FORMS: dict[str, Callable[[Producer, Message], Awaitable[object]]] = {
    "send": lambda producer, message: producer.send(message),
    "queue": lambda producer, message: producer.send(
        message, queue=MessageQueue("Orderz", "broker-a", 0)
    ),
    "oneway": lambda producer, message: producer.send_oneway(message),
    "oneway to a queue": lambda producer, message: producer.send_oneway(
        message, queue=MessageQueue("Orderz", "broker-a", 0)
    ),
    "ordered": lambda producer, message: producer.send_ordered(message, 1),
    "batch": lambda producer, message: producer.send_batch([message]),
    "request": lambda producer, message: producer.request(message),
    "queues": lambda producer, message: producer.queues(message.topic),
    "transaction": transaction,
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("is_inherited", [False, True])
async def test_a_misspelt_topic_has_no_route(
    strict: MemoryCluster, form: str, is_inherited: bool
) -> None:
    if is_inherited:
        keep_inherited(strict)
    options = TransactionOptions(send_timeout_ms=60_000, api_timeout_ms=60_000)
    async with TransactionProducer(
        "pg", strict.namesrv, check=lambda _: None, options=options
    ) as producer:
        for _ in range(2):
            with pytest.raises(NoRoute) as caught:
                await FORMS[form](producer, Message("Orderz", b"x"))
            has_asked = form != "queues"
            assert caught.match(REFUSED if has_asked else NO_TOPIC)
            assert isinstance(caught.value.__cause__, TopicNotExist) is has_asked
            assert caught.value.code == 10005
        with pytest.raises(NoRoute, match=NO_TOPIC):  # no send has made it up
            await producer.queues("Orderz")
    assert "Orderz" not in strict.topics()


async def test_the_refusal_names_the_brokers(pair: MemoryCluster) -> None:
    for broker in pair.brokers:
        broker.may_create_topics = False
    keep_inherited(pair)
    async with Producer("pg", pair.namesrv, options=PATIENT) as producer:
        with pytest.raises(NoRoute, match="broker-a, broker-b have no topic Orderz, and do not"):
            await producer.send(Message("Orderz", b"x"))


async def test_only_a_broker_that_creates_topics_gets_the_message(pair: MemoryCluster) -> None:
    first, second = pair.brokers
    first.may_create_topics = False
    options = msgspec.structs.replace(PATIENT, retry_times=0)
    async with Producer("pg", pair.namesrv, options=options) as producer:
        for _ in range(8):
            result = await producer.send(Message("New", b"x"))
            assert result.queue.broker_name == second.name
    assert "New" not in first.queues.queue_counts


async def test_a_refusal_that_may_not_be_retried_is_no_route_too(strict: MemoryCluster) -> None:
    keep_inherited(strict)
    options = msgspec.structs.replace(PATIENT, retry_codes=frozenset((1,)))
    async with Producer("pg", strict.namesrv, options=options) as producer:
        with pytest.raises(NoRoute, match=REFUSED):
            await producer.send(Message("Orderz", b"x"))
    assert strict.broker.requests[SEND] == 1


async def test_a_deleted_topic_has_no_route(strict: MemoryCluster) -> None:
    """The route in the cache outlives the topic."""
    async with Producer("pg", strict.namesrv, options=PATIENT) as producer:
        await producer.send(Message("T", b"x"))
        strict.broker.queues.delete("T")
        with pytest.raises(NoRoute, match="broker-a has no topic T, and does not create it"):
            await producer.send(Message("T", b"x"))


async def test_a_missing_topic_does_not_hide_that_another_broker_failed(
    pair: MemoryCluster,
) -> None:
    first, second = pair.brokers
    first.may_create_topics = second.may_create_topics = False
    first.queues.delete("T")
    async with Producer("pg", pair.namesrv, options=PATIENT) as producer:
        await producer.queues("T")
        await pair.stop_broker(second)
        with pytest.raises(SendFailed):
            await producer.send(Message("T", b"x"), queue=MessageQueue("T", "broker-b", 0))


async def test_the_first_oneway_to_a_new_topic_is_acknowledged(cluster: MemoryCluster) -> None:
    async with Producer("pg", cluster.namesrv, options=PATIENT) as producer:
        for number in range(3):
            await producer.send_oneway(Message("New", b"%d" % number))
            assert cluster.messages("New")[0].body == b"0"
        assert producer.stats().sent_count == 3
        await eventually(lambda: len(cluster.messages("New")) == 3)


async def test_a_created_topic_has_queues_before_the_name_server_knows_it(
    pair: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    route = pair.route
    is_late = True
    monkeypatch.setattr(pair, "route", lambda t: None if is_late and t == "New" else route(t))
    async with Producer("pg", pair.namesrv, options=PATIENT) as producer:
        result: SendResult = await producer.send(Message("New", b"x"))
        queues = await producer.queues("New")
        assert queues == [
            MessageQueue("New", result.queue.broker_name, number) for number in range(4)
        ]
        await producer.send_oneway(Message("New", b"y"), queue=queues[3])
        is_late = False

        async def is_known() -> bool:
            assert await producer.queues("New") == queues
            return producer._running().routes.get("New") is not None

        await eventually(is_known, what="a route from the name server")


async def test_a_route_made_up_for_sending_is_no_route_for_consumers(
    strict: MemoryCluster,
) -> None:
    """A producer and a consumer of one client share its cache of routes."""
    keep_inherited(strict)
    async with Producer("pg", strict.namesrv, options=PATIENT) as producer:
        with pytest.raises(NoRoute):
            await producer.send(Message("Orderz", b"x"))
        routes = producer._running().routes
        assert routes.get("Orderz") is None
        assert routes.get_for_sending("Orderz") is not None
        with pytest.raises(NoRoute, match=NO_TOPIC):
            await producer.admin.min_offset(MessageQueue("Orderz", "broker-a", 0))


async def test_without_any_broker_the_topic_is_not_to_blame(
    strict: MemoryCluster, caplog: pytest.LogCaptureFixture
) -> None:
    reports = partial(logged, caplog, "topic.unknown")
    await strict.stop_broker(strict.broker)
    fact = f"no broker is registered with the name server {strict.namesrv}: start one, or check"
    listening = PushOptions(api_timeout_ms=60_000)
    consumer = PushConsumer("cg", strict.namesrv, listener=lambda _: None, options=listening)
    consumer.subscribe("T")
    async with (
        consumer,
        Producer("pg", strict.namesrv, options=PATIENT) as producer,
        AdminClient(strict.namesrv, options=ClientOptions(api_timeout_ms=60_000)) as admin,
        PullConsumer("pull", strict.namesrv, options=PullOptions(api_timeout_ms=60_000)) as pull,
    ):
        queue = MessageQueue("T", "broker-a", 0)
        for call in (
            lambda: producer.send(Message("T", b"x")),
            lambda: producer.send_oneway(Message("T", b"x")),
            lambda: producer.queues("T"),
            lambda: admin.queues("T"),
            lambda: producer.admin.max_offset(queue),
            lambda: pull.pull(queue, 0),
        ):
            with pytest.raises(NoRoute, match=f"T has no route, because {fact}"):
                await call()
        (report,) = await eventually(reports, what="a report")
        assert fact in report
        assert "create it" not in report

        await strict.start_broker(strict.broker)
        with pytest.raises(NoRoute, match=REFUSED):
            await producer.send(Message("Orderz", b"x"))
        await eventually(lambda: consumer.queues, what="the queues of T")


def test_remedies_quote_names_for_a_shell() -> None:
    assert str(no_route("a|b")).endswith("create the topic: cometmq topic create 'a|b'")
    closed = str(read_only("--all", ["b $(id)"]))
    assert "cometmq topic alter --perm rw -- --all, or" in closed
    assert closed.endswith("cometmq addWritePerm -b 'b $(id)'")
