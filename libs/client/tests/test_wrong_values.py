# SPDX-License-Identifier: Apache-2.0
"""Wrong values are refused where they are passed, before anything is sent; the error names them."""

import re
from datetime import UTC, datetime
from typing import Any

import pytest

from cometmq.client import (
    AdminClient,
    ConsumeResult,
    InvalidArgument,
    LitePullConsumer,
    Message,
    MessageQueue,
    MessageSelector,
    OrderlyResult,
    Producer,
    ProducerOptions,
    PullConsumer,
    PushConsumer,
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
from cometmq.client.admin import END
from cometmq.client.consume.queues.rebalance import AllocateByConsistentHash
from cometmq.client.testing import MemoryCluster, eventually
from cometmq.remoting.codes import RequestCode
from cometmq.testing.client.listening import QUEUE_0, Recorder, consumer_of, send, texts

ADDRESS = "127.0.0.1:1"
LONE = "x\ud800"
SECONDS = 1_700_000_000
NEGATIVE = MessageQueue("T", "broker-a", -1)
CONSUMERS: Any = (
    lambda n: PushConsumer("p", n, listener=print),
    lambda n: LitePullConsumer("l", n),
)


def refuses(call: Any, *named: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        call()
    assert [text for text in named if text not in str(caught.value)] == []


async def refuses_each(target: Any, *calls: tuple[Any, str]) -> None:
    """Fail unless each call is refused with an error that names the text."""
    for call, named in calls:
        with pytest.raises(InvalidArgument) as caught:
            await call(target)
        assert named in str(caught.value)


# -- messages ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "named"),
    [
        (b"x", "send a Message(topic, body), not bytes"),
        ({"body": "text"}, "encode it, body=text.encode()"),
        ({"body": 5}, "bytes, not int"),
        ({"topic": 5}, "topic must be a string"),
        ({"topic": LONE}, r"'x\ud800' of a topic contains illegal characters"),
        ({"tag": 5}, "tag must be a string"),
        ({"tag": "a||b"}, "one tag, without ||"),
        ({"tag": "new "}, "use tag.strip()"),
        ({"tag": " "}, "use None"),
        ({"tag": LONE}, r"the tag contains the lone surrogate '\ud800' at 1"),
        ({"keys": 17}, "keys must be a string or a list of strings"),
        ({"keys": [5]}, "a key must be a string"),
        ({"keys": ["a", LONE]}, "a key contains the lone surrogate"),
        ({"properties": None}, "properties must be a dict"),
        ({"properties": {"price": 5}}, "'price' is 5; wrap both in str"),
        ({"properties": {"colour": ""}}, "'colour' is ''"),
        ({"properties": {" ": "red"}}, "must not be blank"),
        ({"properties": {"color": LONE}}, "the property color contains the lone surrogate"),
        ({"properties": {LONE: "red"}}, r"the property name 'x\ud800' contains"),
        ({"properties": {"UNIQ_KEY": "1"}}, "the property UNIQ_KEY is set by the client: set a fi"),
        *[({"flag": flag}, "flag of a message") for flag in ("a", True, 1 << 31)],
        ({"wait_store_ok": "false"}, "wait_store_ok"),
        ({"message_id": 3}, "message_id of a message must be a string"),
        ({"message_id": LONE}, "the message_id contains the lone surrogate"),
        *[({"delay_level": level}, "delay level") for level in ("3", -1, True, 0.0, None)],
        ({"delay_level": 99}, "delay_level_max"),
    ],
)  # fmt: skip
async def test_messages(cluster: MemoryCluster, message: Any, named: str) -> None:
    if isinstance(message, dict):
        message = Message(**{"topic": "T", "body": b"x", **message})
    producer = TransactionProducer(
        "pg",
        cluster.namesrv,
        check=lambda _: TransactionState.COMMIT,
        options=TransactionOptions(trace_context=True),
    )
    async with producer:
        calls = [
            lambda it: it.send(message),
            lambda it: it.send(message, queue=QUEUE_0),
            lambda it: it.send_ordered(message, "key"),
            lambda it: it.send_oneway(message),
            lambda it: it.request(message),
            lambda it: it.begin(message),
        ]
        if "delay" not in named:  # messages of a batch may not have a delay level, valid or not
            calls.append(lambda it: it.send_batch([Message("T", b"y"), message]))
        await refuses_each(producer, *((call, named) for call in calls))
        await producer.send(Message("T", b"x", tag="\u00e9 \U0001f375"))
    assert cluster.broker.requests[RequestCode.SEND_MESSAGE_V2] == 1
    assert not cluster.broker.requests[RequestCode.SEND_BATCH_MESSAGE]


async def test_lists_of_messages(producer: Producer) -> None:
    message = Message("T", b"x")
    for wrong in (message, (it for it in [message]), "text"):
        await refuses_each(
            producer,
            (lambda it, wrong=wrong: it.send_batch(wrong), "must be a list of Message"),
        )
    refuses(lambda: list(producer.split_batch(message)), "must be a list")  # type: ignore[arg-type]
    refuses(lambda: list(producer.split_batch([Message("T", b"x", tag=LONE)])), "lone")


# -- calls ------------------------------------------------------------------------------------


@pytest.mark.parametrize("timeout_ms", ["1", -1, 0, 1.5, True])
async def test_timeouts(cluster: MemoryCluster, timeout_ms: Any) -> None:
    message = Message("T", b"x")
    named = f"timeout_ms must be a whole number of at least 1, not {timeout_ms!r}"
    async with Producer("pg", cluster.namesrv) as producer, AdminClient(cluster.namesrv) as admin:
        await refuses_each(
            producer,
            (lambda it: it.send(message, timeout_ms=timeout_ms), named),
            (lambda it: it.send_batch([message], timeout_ms=timeout_ms), named),
            (lambda it: it.send_ordered(message, "a", timeout_ms=timeout_ms), named),
            (lambda it: it.request(message, timeout_ms), named),
        )
        refuses(lambda: admin.broker(ADDRESS, timeout_ms=timeout_ms), named)


async def test_arguments_of_producers(cluster: MemoryCluster) -> None:
    x, selector = Message("T", b"x"), "must return one of its queues, not 1"
    async with Producer("pg", cluster.namesrv) as producer:
        await refuses_each(
            producer,
            (lambda it: it.send(x, queue=3), "queue must be a MessageQueue"),
            (lambda it: it.send_ordered(x, None), "a string or a whole number"),
            (lambda it: it.send_ordered(x, 1.5), "a string or a whole number"),
            (lambda it: it.send_ordered(x, ["a"]), "a string or a whole number"),
            (lambda it: it.send_ordered(x, "a", selector=lambda *_: 1), selector),
            (lambda it: it.send_ordered(x, "a", selector=7), "def selector(queues, message"),
            (lambda it: it.reply("x", b"y"), "a MessageExt that a consumer received, not 'x'"),
            (lambda it: it.queues(None), "topic must be a string"),
        )
        refuses(lambda: producer.use_namesrv(["a:1"]), "not ['a:1']")  # type: ignore[arg-type]
    refuses(lambda: Producer("pg", ["a:1"]), "not ['a:1']")  # type: ignore[arg-type]
    for address in ("9876", "a,b", "a:1,b:2", "127.0.0.1:", "host:port"):
        refuses(lambda address=address: Producer("pg", address), "write host:port")
    for wrong, named in (
        ("DEFAULT_PRODUCER", "is reserved"), ("g" * 256, "longer than 255"), ("a b", "illegal")
    ):  # fmt: skip
        refuses(lambda wrong=wrong: Producer(wrong, ADDRESS), named)
    refuses(lambda: LitePullConsumer("DEFAULT_CONSUMER", ADDRESS), "is reserved")
    refuses(lambda: Producer("pg", ADDRESS, log=print), "log must be a logger")  # type: ignore[arg-type]
    long = ProducerOptions(namespace="ns")
    refuses(lambda: Producer("g" * 254, ADDRESS, options=long), "longer than 255")
    for group in ("", " ", None):
        for kind in (Producer, LitePullConsumer, PullConsumer, sync.Producer):
            refuses(lambda kind=kind, group=group: kind(group, ADDRESS), "group")


async def test_a_long_value_is_shortened_in_an_error(cluster: MemoryCluster) -> None:
    """Otherwise the error for a message passed as a queue would contain its whole body."""
    message: Any = Message("T", b"x" * 100_000)
    async with Producer("pg", cluster.namesrv) as producer:
        with pytest.raises(InvalidArgument, match="not Message") as caught:
            await producer.send(message, queue=message)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("make", CONSUMERS)
def test_subscriptions(make: Any) -> None:
    consumer = make(ADDRESS)
    refuses(lambda: consumer.subscribe(7), "topic must be a string")
    refuses(lambda: consumer.subscribe(""), "topic is empty")
    wrong: dict[str, list[Any]] = {
        "'A || B'": [["A", "B"], None],
        "expression": [LONE, MessageSelector.by_sql(f"color = '{LONE}'")],
    }
    for named, expressions in wrong.items():
        for one in expressions:
            refuses(lambda one=one: consumer.subscribe("T", one), named)


async def test_arguments_of_consumers(cluster: MemoryCluster) -> None:
    await send(cluster, *texts(1))
    topic = "topic must be a string"
    async with PullConsumer("cg", cluster.namesrv) as consumer:
        (message,) = (await consumer.pull(QUEUE_0, 0)).messages
        await refuses_each(
            consumer,
            (lambda it: it.pull("T", 0), "queue must be a MessageQueue"),
            (lambda it: it.pull(QUEUE_0, "0"), "offset must be a whole number"),
            (lambda it: it.pull(QUEUE_0, 0, count_max=0), "count_max must be"),
            (lambda it: it.pull(NEGATIVE, 0), "numbered from 0"),
            (lambda it: it.max_offset(NEGATIVE), "numbered from 0"),
            (lambda it: it.search_offset(NEGATIVE, 0), "numbered from 0"),
            (lambda it: it.queues_in_balance(7), topic),
            (lambda it: it.unsubscribe(7), topic),
            (lambda it: it.send_message_back("m"), "a MessageExt that a consumer received"),
            *(
                (lambda it, v=v: it.send_message_back(message, v), repr(v))
                for v in (True, 1.5, "1")
            ),
        )
        refuses(lambda: consumer.update_offset(NEGATIVE, 1), "numbered from 0")
        refuses(lambda: consumer.update_offset(QUEUE_0, -1), "offset must be a whole number")
    async with LitePullConsumer("lg", cluster.namesrv) as lite:
        await refuses_each(
            lite, (lambda it: it.poll(-1), "timeout_ms"), (lambda it: it.unsubscribe(7), topic)
        )
        for wrong in ("T", None, 7):
            refuses(lambda wrong=wrong: lite.pause(wrong), "queues must be a MessageQueue")
    refuses(lambda: LitePullConsumer("lg", ADDRESS).assign("T"), "queues must be")  # type: ignore[arg-type]


@pytest.mark.parametrize("queue_id", ["1", True, 1.0, -1])
async def test_a_malformed_queue_does_not_reach_the_broker(
    cluster: MemoryCluster, queue_id: Any
) -> None:
    queue, x = MessageQueue("T", "broker-a", queue_id), Message("T", b"x")
    named = "numbered from 0" if queue_id == -1 else "a whole number as queue_id"
    async with Producer("pg", cluster.namesrv) as producer, AdminClient(cluster.namesrv) as admin:
        await refuses_each(
            producer,
            (lambda it: it.send(x, queue=queue), named),
            (lambda it: it.send_oneway(x, queue=queue), named),
            (lambda it: it.send_batch([x], queue=queue), named),
            (lambda it: it.request(x, queue=queue), named),
            (lambda it: it.admin.max_offset(queue), named),
        )
        await refuses_each(admin, (lambda it: it.max_offset(queue), named))
    assert cluster.messages("T") == []


RECEIVED = "a MessageExt that a consumer received"


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda it: it.create_group("cg"), "config must be SubscriptionGroupConfig(...)"),
        (lambda it: it.put_topic("T", []), "config must be TopicConfig(...)"),
        (lambda it: it.create_topic("T", broker_names="broker-a"), "must be a list of strings"),
        (lambda it: it.create_topic("T", broker_names=[7]), "a list of strings, not [7]"),
        (lambda it: it.create_topic("T", broker_names=[]), "broker_names is empty"),
        (lambda it: it.create_topic("New", queue_count="4"), "queue_count"),
        *[
            (lambda it, perm=perm: it.create_topic("New", perm=perm), "perm must be")
            for perm in (-1, 16, "rw", True)
        ],
        (lambda it: it.masters(["c"]), "cluster must be a string, not ['c']"),
        (lambda it: it.view_message(7, "T"), "message_id must be a string"),
        (lambda it: it.stored_message("x" * 32), "hex digits"),
        (lambda it: it.stored_message("abc"), "hex digits"),
        (lambda it: it.consume_directly("cg", "id", "A1"), RECEIVED),
        (lambda it: it.message_tracks("A1"), RECEIVED),
        (lambda it: it.resend(Message("T", b"x")), RECEIVED),
        (lambda it: it.replay("A1", "cg"), RECEIVED),
        (lambda it: it.check_replay(7), "group must be a string"),
        (lambda it: it.check_replay("cg", topic=7), "topic must be a string"),
        (lambda it: it.max_offset("4"), "queue must be a MessageQueue"),
        (lambda it: it.commit_offset("g", QUEUE_0, "1"), "offset"),
        (lambda it: it.commit_offset("g", QUEUE_0, -5), "-5"),
        (lambda it: it.commit_offset(None, QUEUE_0, 1), "group"),
        (lambda it: it.commit_offset("a b", QUEUE_0, 1), "'a b'"),
        (lambda it: it.broker(ADDRESS).commit_offset("a b", "T", 0, 1), "'a b'"),
        (lambda it: it.committed_offset(object(), QUEUE_0), "group"),
        (lambda it: it.search_offset(QUEUE_0, "yesterday"), "timestamp_ms"),
        (lambda it: it.search_offset(QUEUE_0, END), "-1"),
        (lambda it: it.search_offset(QUEUE_0, SECONDS), "milliseconds"),
        (lambda it: it.search_offset(QUEUE_0, 1.7e9), "timestamp_ms"),
        (lambda it: it.broker(ADDRESS).search_offset("T", 0, 1.5), "timestamp_ms"),
        (lambda it: it.reset_offsets("g", "T", "4"), "timestamp_ms"),
        (lambda it: it.reset_offsets("g", "T", SECONDS), "milliseconds since 1970"),
        (lambda it: it.reset_offsets("g", "T", datetime.now(tz=UTC)), "timestamp_ms"),
        (lambda it: it.reset_members("g", "T", SECONDS), "milliseconds"),
        (lambda it: it.roll_back("g", "T", SECONDS), "milliseconds"),
        (lambda it: it.query_by_key("T", "k", end_ms=SECONDS), "end_ms"),
        (lambda it: anext(it.dead_letters("g", begin_ms=SECONDS)), "begin_ms"),
        (lambda it: anext(it.dead_letters("g", begin_ms=1.5)), "1.5"),
        (lambda it: anext(it.read(QUEUE_0, "1", 5)), "'1'"),
        (lambda it: it.set_order_queues("T", "broker-a", True), "True"),
        (lambda it: it.namesrv.get_kv("n", 7), "key=7"),
    ],
)
async def test_arguments_of_admin_calls(cluster: MemoryCluster, call: Any, named: str) -> None:
    async with AdminClient(cluster.namesrv) as admin:
        await refuses_each(admin, (call, named))
        assert await admin.max_offset(QUEUE_0) == 0  # over the same connection
    assert "New" not in cluster.topics()


@pytest.mark.parametrize("address", ["nonsense", "127.0.0.1", "127.0.0.1:99999", "", None, 7])
async def test_the_address_of_a_broker(admin: AdminClient, address: Any) -> None:
    refuses(lambda: admin.broker(address), "address must be host:port")


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"retry_max_times": -1}, "retry_max_times"),
        ({"retry_max_times": "16"}, "retry_max_times='16'"),
        ({"retry_max_times": 1.5}, "retry_max_times=1.5"),
        ({"retry_queue_nums": -1}, "retry_queue_nums"),
        ({"broker_id": -1}, "broker_id"),
        ({"which_broker_when_consume_slowly": -1}, "which_broker_when_consume_slowly"),
        ({"consume_enable": "yes"}, "consume_enable='yes'"),
    ],
)
async def test_settings_of_groups(cluster: MemoryCluster, fields: Any, named: str) -> None:
    config = SubscriptionGroupConfig(group_name="cg", **fields)
    async with AdminClient(cluster.namesrv) as admin:
        await refuses_each(admin, (lambda it: it.create_group(config), named))
    assert "cg" not in cluster.broker.group_configs


# -- results and constructors -----------------------------------------------------------------


@pytest.mark.parametrize("value", [True, 1.5, "1"])
def test_numbers_of_results_and_constructors(value: Any) -> None:
    for call in (
        lambda: ConsumeResult(value),
        lambda: ConsumeResult(0, value),
        lambda: ConsumeResult.consumed(value),
        lambda: ConsumeResult.later(value),
        lambda: OrderlyResult.suspend(value),
        lambda: OrderlyResult.rollback(value),
        lambda: ScheduledPull("cg", ADDRESS, concurrency=value),
        lambda: sync.ScheduledPull("cg", ADDRESS, concurrency=value),
        lambda: AllocateByConsistentHash(value),
    ):
        refuses(call, f"not {value!r}")
    refuses(lambda: ConsumeResult.consumed(-1), "count of consumed messages")
    refuses(lambda: ConsumeResult.later(50), "delay level of a redelivery")
    refuses(lambda: ConsumeResult(delay_level=-7), "delay_level")
    refuses(lambda: MemoryCluster("b"), "broker_names must be a list of strings, not 'b'")


async def test_an_impossible_result_redelivers_the_messages(cluster: MemoryCluster) -> None:
    answers = [lambda: ConsumeResult(-1), lambda: ConsumeResult.SUCCESS]
    seen = Recorder(lambda _: answers.pop(0)())
    async with consumer_of(cluster, seen):
        await send(cluster, *texts(1))
        await eventually(lambda: seen.bodies == [b"0", b"0"])


@pytest.mark.parametrize(
    ("kind", "field", "text"),
    [
        (Message, "tags", "Message has no field tags; did you mean tag?"),
        (Message, "header", "Message has no field header: its fields are topic, body, tag, keys,"),
        (SubscriptionGroupConfig, "group", "no field group; did you mean group_name?"),
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
