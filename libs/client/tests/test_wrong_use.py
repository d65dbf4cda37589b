# SPDX-License-Identifier: Apache-2.0
"""Misused calls raise an error that names the remedy."""

import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

from cometmq import client
from cometmq.client import (
    AdminClient,
    ClientError,
    ClientStateError,
    ConsumeResult,
    InvalidArgument,
    LitePullConsumer,
    Message,
    MessageExt,
    MessageSelector,
    OrderlyResult,
    Producer,
    PullConsumer,
    PushConsumer,
    PushOptions,
    ScheduledPull,
    SessionCredentials,
    SubscriptionGroupConfig,
    TlsSettings,
    TopicConfig,
    TransactionOptions,
    TransactionProducer,
    TransactionState,
    sync,
)
from cometmq.client.testing import MemoryCluster, eventually
from cometmq.remoting.codes import RequestCode
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


async def test_a_method_of_a_builtin_type_is_a_listener(cluster: MemoryCluster) -> None:
    seen: list[list[MessageExt]] = []
    async with consumer_of(cluster, seen.append):
        await send(cluster, *texts(1))
        await eventually(lambda: [[it.body for it in messages] for messages in seen] == [[b"0"]])


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda c: c.on_assigned(lambda: None), r"on_assigned cannot be called as"),
        (lambda c: c.on_revoked(7), r"on_revoked is 7, which cannot be called"),
        (lambda c: c.add_hook(object()), r"object.before_consume is None.*, not async$"),
        (lambda c: c.subscribe(7), "the name of a topic must be a string, not int"),
        (lambda c: c.subscribe(""), "the name of the topic is empty"),
        (lambda c: c.subscribe("T", ["A", "B"]), r"such as 'A \|\| B'"),
        (lambda c: c.subscribe("T", None), r"such as 'A \|\| B'"),
    ],
)
def test_arguments_of_consumers_are_checked(call: Any, text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        call(PushConsumer("cg", ADDRESS, listener=print))
    with pytest.raises(InvalidArgument, match=text):
        call(LitePullConsumer("cg", ADDRESS))


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


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda k: k.Producer(group="g", namesrvv=ADDRESS),
            "argument namesrvv; did you mean namesrv?",
        ),
        (
            lambda k: k.Producer("g", send_timeout_ms=1),
            "no argument send_timeout_ms: give options=ProducerOptions(send_timeout_ms=...)",
        ),
        (
            lambda k: k.TransactionProducer("g", check=print, retry_time=1),
            "did you mean options=TransactionOptions(retry_times=...)?",
        ),
        (lambda k: k.PushConsumer("g", listener=print, orderly=True), "=PushOptions(orderly=...)"),
        (lambda k: k.LitePullConsumer("g", auto_commit=True), "LitePullOptions(auto_commit=...)"),
        (lambda k: k.PullConsumer("g", namespace="n"), "options=PullOptions(namespace=...)"),
        (
            lambda k: k.ScheduledPull("g", concurrencyy=1),
            "ScheduledPull has no argument concurrencyy; did",
        ),
        (
            lambda k: k.AdminClient(timeout=1),
            "AdminClient has no argument timeout: its arguments are namesrv, options, log",
        ),
    ],
)
@pytest.mark.parametrize("module", [client, sync])
def test_unknown_arguments_name_the_right_one(module: Any, make: Any, text: str) -> None:
    with pytest.raises(TypeError, match=re.escape(text)):
        make(module)


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


# -- messages, names, addresses ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (Message("T", "text"), r"bytes, not str: encode it, body=text.encode\(\)"),  # type: ignore[arg-type]
        (Message("T", 5), "bytes, not int"),  # type: ignore[arg-type]
        (Message(5, b"x"), "the name of a topic must be a string, not int"),  # type: ignore[arg-type]
        (Message("T", b"x", tag=5), "a tag must be a string, not int"),  # type: ignore[arg-type]
        (Message("T", b"x", keys=[5]), "a key must be a string, not int"),  # type: ignore[list-item]
        (Message("T", b"x", properties={"price": 5}), "'price' is 5; wrap both in str"),  # type: ignore[dict-item]
        (Message("T", b"x", delay_level="3"), "a delay level must be a number"),  # type: ignore[arg-type]
        (Message("T", b"x", delay_level=-1), "a delay level must be a number from 0"),
        (b"x", r"send a Message\(topic, body\), not bytes"),
    ],
)
async def test_wrong_types_in_messages(cluster: MemoryCluster, message: Any, text: str) -> None:
    async with Producer("pg", cluster.namesrv) as producer:
        with pytest.raises(InvalidArgument, match=text):
            await producer.send(message)
        if "delay" not in text:  # messages of a batch may not have a delay level, valid or not
            with pytest.raises(InvalidArgument, match=text):
                await producer.send_batch([message])


@pytest.mark.parametrize("kind", [Producer, LitePullConsumer, PullConsumer, sync.Producer])
def test_wrong_groups(kind: type[Any]) -> None:
    for group, text in (("", "group is empty"), (" ", "group is empty"), (None, "not NoneType")):
        with pytest.raises(InvalidArgument, match=text):
            kind(group, ADDRESS)


@pytest.mark.parametrize("address", ["9876", "a,b", "a:1,b:2", "127.0.0.1:", "host:port"])
async def test_wrong_addresses(address: str) -> None:
    with pytest.raises(InvalidArgument, match="write host:port, and several as host:port;host"):
        await Producer("pg", address).start()


def test_all_of_them_are_client_errors() -> None:
    assert issubclass(InvalidArgument, ClientError)
    assert issubclass(ClientStateError, ClientError)


# -- arguments of calls -----------------------------------------------------------------------


@pytest.mark.parametrize("timeout_ms", ["1", -1, 0, 1.5, True])
async def test_a_timeout_is_a_whole_number(cluster: MemoryCluster, timeout_ms: Any) -> None:
    message = Message("T", b"x")
    async with Producer("pg", cluster.namesrv) as producer, AdminClient(cluster.namesrv) as admin:
        calls = (
            lambda: producer.send(message, timeout_ms=timeout_ms),
            lambda: producer.send_batch([message], timeout_ms=timeout_ms),
            lambda: producer.send_ordered(message, "a", timeout_ms=timeout_ms),
            lambda: producer.request(message, timeout_ms),
        )
        text = f"timeout_ms must be a whole number of at least 1, not {timeout_ms!r}"
        for call in calls:
            with pytest.raises(InvalidArgument, match=re.escape(text)):
                await call()
        with pytest.raises(InvalidArgument, match=re.escape(text)):
            admin.broker("127.0.0.1:1", timeout_ms=timeout_ms)


@pytest.mark.parametrize("argument", [None, 1.5, ["a"]])
async def test_an_argument_that_chooses_no_queue(cluster: MemoryCluster, argument: Any) -> None:
    async with Producer("pg", cluster.namesrv) as producer:
        with pytest.raises(InvalidArgument, match="must be a string or a whole number, such as an"):
            await producer.send_ordered(Message("T", b"x"), argument)


async def test_a_selector_returns_a_queue(cluster: MemoryCluster) -> None:
    selector: Any = lambda queues, message, argument: 1  # noqa: E731
    async with Producer("pg", cluster.namesrv) as producer:
        with pytest.raises(InvalidArgument, match="must return one of its queues, not 1"):
            await producer.send_ordered(Message("T", b"x"), "a", selector=selector)


async def test_places_in_queues(cluster: MemoryCluster) -> None:
    wrong: Any = "T"
    async with PullConsumer("cg", cluster.namesrv) as consumer:
        with pytest.raises(InvalidArgument, match=r"queue must be a MessageQueue.*not 'T'"):
            await consumer.pull(wrong, 0)
        with pytest.raises(InvalidArgument, match=r"offset must be a whole number .* not '0'"):
            await consumer.pull(QUEUE_0, "0")  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument, match=r"count_max must be .* at least 1, not 0"):
            await consumer.pull(QUEUE_0, 0, count_max=0)
    async with LitePullConsumer("lg", cluster.namesrv) as lite:
        with pytest.raises(InvalidArgument, match=r"timeout_ms must be .* at least 0, not -1"):
            await lite.poll(-1)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda options: PullConsumer("cg", ADDRESS, options=options),
            r"PullOptions\(...\), not PushOptions: did you mean PullOptions\(client_ip=...\)\?",
        ),
        (
            lambda options: AdminClient(ADDRESS, options=options),
            r"ClientOptions\(...\), not PushOptions: did you mean ClientOptions\(client_ip=...\)\?",
        ),
    ],
)
def test_options_of_another_client_name_the_right_ones(make: Any, text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        make(PushOptions(client_ip="10.0.0.1", concurrency=3))


def test_name_servers_are_a_string() -> None:
    with pytest.raises(InvalidArgument, match=r"namesrv must be a string .* not \['a:1'\]"):
        Producer("pg", ["a:1"])  # type: ignore[arg-type]


LONE = "x\ud800"


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"tag": LONE}, "the tag contains the lone surrogate '\\ud800' at 1"),
        ({"keys": ["a", LONE]}, "a key contains the lone surrogate"),
        ({"properties": {"color": LONE}}, "the property color contains the lone surrogate"),
        ({"properties": {LONE: "red"}}, "the property name 'x\\ud800' contains the lone"),
        ({"message_id": LONE}, "the message_id contains the lone surrogate"),
        ({"topic": LONE}, "the name 'x\\ud800' of a topic contains illegal characters"),
    ],
)
async def test_lone_surrogates_are_never_sent(
    cluster: MemoryCluster, fields: dict[str, Any], text: str
) -> None:
    message = Message(**{"topic": "T", "body": b"x", **fields})
    options = TransactionOptions(trace_context=True)
    producer = TransactionProducer(
        "pg", cluster.namesrv, check=lambda _: TransactionState.COMMIT, options=options
    )
    async with producer:
        for call in (
            producer.send(message),
            producer.send(message, queue=QUEUE_0),
            producer.send_ordered(message, "key"),
            producer.send_oneway(message),
            producer.send_batch([Message("T", b"y"), message]),
            producer.request(message),
            producer.begin(message),
        ):
            with pytest.raises(InvalidArgument, match=re.escape(text)):
                await call
        with pytest.raises(InvalidArgument, match=re.escape(text)):
            list(producer.split_batch([message]))
        await producer.send(Message("T", b"x", tag="\u00e9 \U0001f375"))
    sent = cluster.broker.requests
    assert sent[RequestCode.SEND_MESSAGE_V2] == 1
    assert not sent[RequestCode.SEND_BATCH_MESSAGE]


@pytest.mark.parametrize("expression", [LONE, MessageSelector.by_sql(f"color = '{LONE}'")])
def test_lone_surrogates_are_not_subscribed(expression: Any) -> None:
    consumer = LitePullConsumer("g", "127.0.0.1:1")
    with pytest.raises(InvalidArgument, match="the expression of a subscription contains"):
        consumer.subscribe("T", expression)


async def test_messages_of_a_wrong_form(cluster: MemoryCluster) -> None:
    message = Message("T", b"x")
    wrong: tuple[Any, ...] = (message, (m for m in [message]), "text")
    async with Producer("pg", cluster.namesrv) as producer:
        for messages in wrong:
            with pytest.raises(InvalidArgument, match=r"must be a list of Message, not \w+"):
                await producer.send_batch(messages)
        with pytest.raises(InvalidArgument, match="must be a list of Message, not Message"):
            list(producer.split_batch(wrong[0]))
        with pytest.raises(
            InvalidArgument, match="message_id of a message must be a string, not 3"
        ):
            await producer.send(Message("T", b"x", message_id=3))  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument, match="a MessageExt that a consumer received, not 'x'"):
            await producer.reply("x", b"y")  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument, match="name of a topic must be a string, not NoneType"):
            await producer.queues(None)  # type: ignore[arg-type]
        with pytest.raises(
            InvalidArgument, match=r"name servers must be a string .* not \['a:1'\]"
        ):
            producer.use_namesrv(["a:1"])  # type: ignore[arg-type]


async def test_admin_arguments(cluster: MemoryCluster) -> None:
    wrong: Any = "4"
    async with AdminClient(cluster.namesrv) as admin:
        with pytest.raises(InvalidArgument, match=r"queue_count must be .* at least 1, not '4'"):
            await admin.create_topic("New", queue_count=wrong)
        with pytest.raises(InvalidArgument, match=r"timestamp_ms must be .* at least -1, not '4'"):
            await admin.reset_offsets("cg", "T", wrong)
        with pytest.raises(InvalidArgument, match="queue must be a MessageQueue"):
            await admin.max_offset(wrong)
        with pytest.raises(InvalidArgument, match="hex digits only"):
            await admin.stored_message("x" * 32)


@pytest.mark.parametrize(
    ("kind", "field", "text"),
    [
        (Message, "tags", "Message has no field tags; did you mean tag?"),
        (Message, "header", "Message has no field header: its fields are topic, body, tag, keys,"),
        (
            SubscriptionGroupConfig,
            "group",
            "Config has no field group; did you mean group_name?",
        ),
        (TopicConfig, "topic", "TopicConfig has no field topic; a similar one is topic_name"),
        (SessionCredentials, "acces_key", "no field acces_key; did you mean access_key?"),
        (TlsSettings, "enabled", "TlsSettings has no field enabled; did you mean enable?"),
        (MessageSelector, "kinds", "no field kinds; did you mean kind?"),
        (ConsumeResult, "delay_levl", "no field delay_levl; did you mean delay_level?"),
        (OrderlyResult, "pause", "OrderlyResult has no field pause; did you mean pause_ms?"),
    ],
)
def test_misspelt_fields_are_named_with_the_right_ones(
    kind: type[Any], field: str, text: str
) -> None:
    with pytest.raises(TypeError, match=re.escape(text)):
        kind(**{field: "x"})


def test_other_mistakes_in_fields_keep_their_errors() -> None:
    make: Any = Message
    with pytest.raises(TypeError, match="Missing required argument 'body'"):
        make("T")
    with pytest.raises(InvalidArgument, match="delay_level must be"):
        ConsumeResult(delay_level=-7)


async def test_queues_are_message_queues(cluster: MemoryCluster) -> None:
    async with LitePullConsumer("lg", cluster.namesrv) as consumer:
        wrongs: tuple[Any, ...] = ("T", None, 7)
        for wrong in wrongs:
            with pytest.raises(InvalidArgument, match="queues must be a MessageQueue or a list of"):
                consumer.pause(wrong)
        with pytest.raises(ClientStateError, match=r"call `assign` before the start.*AdminClient"):
            consumer.assign(QUEUE_0)
    with pytest.raises(InvalidArgument, match="queues must be a MessageQueue or a list of them"):
        LitePullConsumer("lg", cluster.namesrv).assign("T")  # type: ignore[arg-type]


@pytest.mark.parametrize("address", ["nonsense", "127.0.0.1", "127.0.0.1:99999", "", None, 7])
async def test_a_brokers_address_is_host_and_port(cluster: MemoryCluster, address: Any) -> None:
    async with AdminClient(cluster.namesrv) as admin:
        with pytest.raises(InvalidArgument, match="address must be host:port, such as '127"):
            admin.broker(address)


@pytest.mark.parametrize("kind", [sync.Producer, sync.LitePullConsumer])
async def test_blocking_clients_say_that_they_are_started_by_with(kind: type[Any]) -> None:
    with pytest.raises(TypeError, match="is started by `with`; for `async with`, use the class"):
        async with kind("group", ADDRESS):
            pass
