# SPDX-License-Identifier: Apache-2.0
import asyncio

import pytest

from cometmq.client import (
    ConsumeFrom,
    ConsumeResult,
    LitePullConsumer,
    LitePullOptions,
    Message,
    MessageExt,
    Producer,
    ProducerOptions,
    PushConsumer,
    PushOptions,
)
from cometmq.client.hooks import ConsumeOutcome, MessageKind, TransactionState
from cometmq.client.listener import OrderlyResult
from cometmq.client.settings import AccessChannel
from cometmq.client.testing import MemoryCluster, eventually
from cometmq.client.trace import (
    CorruptTrace,
    EndTransaction,
    Pub,
    SubAfter,
    SubBefore,
    TraceRecord,
    decode_trace,
    encode_record,
    record_keys,
)
from cometmq.client.trace.hooks import (
    BODY_CHARS_MAX,
    KEYS_CHARS_MAX,
    RECORD_COUNT_MAX,
    TraceDispatcher,
)
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.errors import RequestTimeout, ServerError
from cometmq.remoting.log import NO_LOG
from cometmq.remoting.transport.tasks import TaskSet

TOPIC = "RMQ_SYS_TRACE_TOPIC"
PUB = Pub(
    timestamp=1700000000000,
    region="DefaultRegion",
    group="pg",
    topic="T",
    message_id="ID",
    tag="TagA",
    keys="k1 k2",
    store_host="127.0.0.1:10911",
    body_bytes=5,
    cost_ms=3,
    kind=MessageKind.NORMAL,
    offset_message_id="OFFSET",
)
BEFORE = SubBefore(1700000000001, None, "cg", "REQUEST", "ID", 2, None)
AFTER = SubAfter("REQUEST", "ID", 7, False, "k1", int(ConsumeOutcome.FAILED), 1700000000002, "cg")
END = EndTransaction(
    timestamp=1700000000003,
    region="DefaultRegion",
    group="pg",
    topic="T",
    message_id="ID",
    tag=None,
    keys=None,
    store_host="127.0.0.1:10911",
    kind=MessageKind.TRANSACTION_COMMIT,
    transaction_id="TX",
    state=TransactionState.ROLLBACK,
    is_from_check=True,
)
TEXTS = {
    PUB: "Pub|1700000000000|DefaultRegion|pg|T|ID|TagA|k1 k2|127.0.0.1:10911|5|3|0|OFFSET|true",
    BEFORE: "SubBefore|1700000000001|null|cg|REQUEST|ID|2|null",
    AFTER: "SubAfter|REQUEST|ID|7|false|k1|4|1700000000002|cg",
    END: "EndTransaction|1700000000003|DefaultRegion|pg|T|ID|null|null|127.0.0.1:10911|2|TX|"
    "ROLLBACK_MESSAGE|true",
}


def line(text: str) -> str:
    return text.replace("|", "\x01") + "\x02"


# -- records ----------------------------------------------------------------------------------


@pytest.mark.parametrize("record", TEXTS, ids=lambda record: type(record).__name__)
def test_a_record_is_written_and_read_as_java_does(record: TraceRecord) -> None:
    assert encode_record(record) == line(TEXTS[record])
    assert decode_trace(line(TEXTS[record]).encode()) == [record]


def test_records_of_older_and_newer_clients_are_read() -> None:
    old = "Pub|1|R|pg|T|ID|t|k|h|5|3|3|false"
    new = "Pub|1|R|pg|T|ID|t|k|h|5|3|0|OFF|true|10.0.0.1"
    (first, second) = decode_trace(line(old) + line(new))
    assert isinstance(first, Pub)
    assert isinstance(second, Pub)
    assert (first.offset_message_id, first.is_success, first.kind) == (
        None,
        False,
        MessageKind.DELAY,
    )
    assert (second.client_host, second.is_success) == ("10.0.0.1", True)
    assert decode_trace(encode_record(second)) == [second]
    assert decode_trace(line("SubAfter|R|ID|7|true|k")) == [SubAfter("R", "ID", 7, True, "k")]
    assert decode_trace(line("SubAfter|R|ID|7|true|k|2")) == [SubAfter("R", "ID", 7, True, "k", 2)]


@pytest.mark.parametrize("text", ["Pub|1|R", "SubBefore|x|R|g|r|i|0|k", "EndTransaction|1"])
def test_a_broken_record_is_named(text: str) -> None:
    with pytest.raises(CorruptTrace, match=text.partition("|")[0]):
        decode_trace(line(text))


def test_a_trace_is_found_by_id_and_keys() -> None:
    assert record_keys(PUB) == ["ID", "k1", "k2"]
    assert record_keys(BEFORE) == ["ID"]


def traced_ids(cluster: MemoryCluster) -> list[str]:
    records = [one for trace in cluster.messages(TOPIC) for one in decode_trace(trace.body)]
    return sorted((one.message_id for one in records), key=len)


async def test_an_id_with_a_space_does_not_lose_the_traces_of_others(
    cluster: MemoryCluster,
) -> None:
    options = ProducerOptions(trace=True)
    async with Producer("pg", cluster.namesrv, options=options) as producer:
        await producer.send(Message("T", b"x", message_id="first"), timeout_ms=60_000)
        await producer.send(Message("T", b"x", message_id=" my  id"), timeout_ms=60_000)
        await eventually(lambda: traced_ids(cluster) == ["first", " my  id"])
    keys = {key for trace in cluster.messages(TOPIC) for key in trace.keys}
    assert keys >= {"first", "my", "id"}


# -- the way to the broker --------------------------------------------------------------------


class Sent:
    def __init__(self, *, fails: bool = False) -> None:
        self.messages: list[tuple[str, str, list[str]]] = []
        self._fails = fails

    async def __call__(self, topic: str, text: str, keys: object) -> None:
        if self._fails:
            raise RequestTimeout("silence")
        self.messages.append((topic, text, list(keys)))  # type: ignore[call-overload]


async def test_records_are_gathered_and_sent_at_the_end() -> None:
    sent = Sent()
    dispatcher = TraceDispatcher(sent, TaskSet(NO_LOG), NO_LOG)
    assert dispatcher.append("A", [PUB, BEFORE])
    assert dispatcher.append("B", [AFTER])
    assert not sent.messages
    await dispatcher.close()
    assert sent.messages == [
        ("A", line(TEXTS[PUB]) + line(TEXTS[BEFORE]), ["ID", "k1", "k2"]),
        ("B", line(TEXTS[AFTER]), ["ID", "k1"]),
    ]


async def test_a_message_of_traces_has_a_bound() -> None:
    sent = Sent()
    dispatcher = TraceDispatcher(sent, TaskSet(NO_LOG), NO_LOG)
    for number in range(3000):
        record = SubAfter(f"R{number}", f"{number:032X}", 1, True, None)
        assert dispatcher.append("A", [record])
    await dispatcher.close()
    assert len(sent.messages) > 3
    assert sum(len(decode_trace(text)) for _, text, _ in sent.messages) == 3000
    for _, _, keys in sent.messages:
        assert len(" ".join(keys)) < KEYS_CHARS_MAX + 100


@pytest.mark.parametrize("own", ["", " ".join(f"key{n}" for n in range(4000))], ids=["id", "keys"])
async def test_the_records_of_one_call_are_split_too(own: str) -> None:
    """A listener may get 1024 messages at once, and a message may have 32 KiB of keys."""
    sent = Sent()
    dispatcher = TraceDispatcher(sent, TaskSet(NO_LOG), NO_LOG)
    records = [
        SubAfter(f"R{number}", f"{number:032X}", 1, True, f"{own} last{number}".strip(), 0, 5, "cg")
        for number in range(1024 if not own else 9)
    ]
    assert dispatcher.append("A", records)
    await dispatcher.close()
    assert [it for _, text, _ in sent.messages for it in decode_trace(text)] == records
    for _, text, keys in sent.messages:
        assert len(" ".join(keys)) <= KEYS_CHARS_MAX
        assert len(text) <= BODY_CHARS_MAX
        assert {it.message_id for it in decode_trace(text)} <= set(keys)


async def test_too_many_records_are_dropped_until_some_are_sent() -> None:
    dispatcher = TraceDispatcher(Sent(), TaskSet(NO_LOG), NO_LOG)
    for _ in range(RECORD_COUNT_MAX):
        assert dispatcher.append("A", [BEFORE])
    assert not dispatcher.append("A", [BEFORE])
    await dispatcher.close()
    assert dispatcher.append("A", [BEFORE])
    await dispatcher.close()


async def test_failed_sends_free_the_buffer() -> None:
    dispatcher = TraceDispatcher(Sent(fails=True), TaskSet(NO_LOG), NO_LOG)
    for _ in range(3):
        assert dispatcher.append("A", [BEFORE] * RECORD_COUNT_MAX)
        await dispatcher.close()


# -- producers --------------------------------------------------------------------------------


def traces(cluster: MemoryCluster, topic: str = TOPIC) -> list[TraceRecord]:
    return [r for message in cluster.messages(topic) for r in decode_trace(message.body)]


async def test_sends_are_traced(cluster: MemoryCluster) -> None:
    options = ProducerOptions(trace=True)
    async with Producer("pg", cluster.namesrv, options=options) as producer:
        first = await producer.send(Message("T", b"hello", tag="TagA", keys=["k1", "k2"]))
        second = await producer.send(Message("T", b"x", delay_level=1))
        batch = await producer.send_batch(
            [Message("T", b"1", tag="t", keys="k3"), Message("T", b"22")]
        )
        await producer.send_oneway(Message("T", b"unseen"))
    pubs = traces(cluster)
    assert all(isinstance(record, Pub) and record.is_success for record in pubs)
    assert [record.message_id for record in pubs] == [
        first.message_id,
        second.message_id,
        *batch.message_id.split(","),
    ]
    pub = pubs[0]
    assert isinstance(pub, Pub)
    assert (pub.group, pub.topic, pub.tag, pub.keys) == ("pg", "T", "TagA", "k1 k2")
    assert (pub.store_host, pub.body_bytes) == (cluster.broker.address, 5)
    assert (pub.region, pub.offset_message_id) == ("DefaultRegion", first.offset_message_id)
    assert [record.kind for record in pubs if isinstance(record, Pub)] == [0, 3, 0, 0]
    assert [(it.tag, it.keys, it.body_bytes) for it in pubs[2:] if isinstance(it, Pub)] == [
        ("t", "k3", 1),
        (None, None, 2),
    ]
    offset_ids = [it.offset_message_id for it in pubs[2:] if isinstance(it, Pub)]
    assert offset_ids == batch.offset_message_id.split(",")
    (trace,) = cluster.messages(TOPIC)
    ids = {first.message_id, second.message_id, *batch.message_id.split(",")}
    assert set(trace.keys) == {*ids, "k1", "k2", "k3"}


async def test_the_trace_producer_has_its_own_group(cluster: MemoryCluster) -> None:
    options = ProducerOptions(trace=True)
    async with Producer("pg", cluster.namesrv, options=options):
        groups = set(cluster.broker.producers)
    (own,) = groups - {"pg"}
    assert own.startswith("_INNER_TRACE_PRODUCER-pg-PRODUCE-")
    assert not any(cluster.broker.producers.values())


async def test_a_broker_may_refuse_traces(cluster: MemoryCluster) -> None:
    cluster.broker.send_ext["TRACE_ON"] = "false"
    async with Producer("pg", cluster.namesrv, options=ProducerOptions(trace=True)) as producer:
        await producer.send(Message("T", b"x"))
    assert not cluster.messages(TOPIC)


async def test_traces_are_not_traced(cluster: MemoryCluster) -> None:
    async with Producer("pg", cluster.namesrv, options=ProducerOptions(trace=True)) as producer:
        await producer.send(Message(TOPIC, b"x"))
    assert len(cluster.messages(TOPIC)) == 1


async def test_failed_attempts_leave_no_trace(cluster: MemoryCluster) -> None:
    cluster.broker.fail(RequestCode.SEND_MESSAGE_V2, ServerError("disk"))
    async with Producer("pg", cluster.namesrv, options=ProducerOptions(trace=True)) as producer:
        result = await producer.send(Message("T", b"x"))
    assert [record.message_id for record in traces(cluster)] == [result.message_id]


async def test_the_trace_topic_can_be_chosen(cluster: MemoryCluster) -> None:
    options = ProducerOptions(trace=True, trace_topic="MyTraces", namespace="ns")
    async with Producer("pg", cluster.namesrv, options=options) as producer:
        await producer.send(Message("T", b"x"))
    (record,) = traces(cluster, "MyTraces")
    assert isinstance(record, Pub)
    assert (record.topic, record.group) == ("T", "pg")


async def test_hosted_services_have_a_trace_topic_per_region(cluster: MemoryCluster) -> None:
    options = ProducerOptions(trace=True, access_channel=AccessChannel.CLOUD)
    async with Producer("pg", cluster.namesrv, options=options) as producer:
        await producer.send(Message("T", b"x"))
    assert len(traces(cluster, "rmq_sys_TRACE_DATA_DefaultRegion")) == 1


async def test_a_broker_without_traces_delays_no_send(cluster: MemoryCluster) -> None:
    cluster.broker.may_create_topics = False
    async with Producer("pg", cluster.namesrv, options=ProducerOptions(trace=True)) as producer:
        await producer.send(Message("T", b"x"))
    assert len(cluster.messages("T")) == 1
    assert not cluster.messages(TOPIC)


# -- consumers --------------------------------------------------------------------------------

FIRST = PushOptions(consume_from=ConsumeFrom.FIRST_OFFSET, trace=True)


async def consumed(
    cluster: MemoryCluster, listener: object, options: PushOptions = FIRST
) -> list[TraceRecord]:
    """Send and consume one message; return its traces."""
    done = asyncio.Event()

    async def listen(messages: list[MessageExt]) -> object:
        done.set()
        return listener(messages)  # type: ignore[operator]

    consumer = PushConsumer("cg", cluster.namesrv, listener=listen, options=options)  # type: ignore[arg-type]
    consumer.subscribe("T")
    async with Producer("pg", cluster.namesrv) as producer:
        await producer.send(Message("T", b"x", keys="k1"))
    async with consumer:
        await done.wait()
    return traces(cluster)


@pytest.mark.parametrize(
    ("result", "orderly", "outcome"),
    [
        (None, False, ConsumeOutcome.SUCCESS),
        (ConsumeResult.DEAD_LETTER, False, ConsumeOutcome.FAILED),
        (OrderlyResult.SUCCESS, True, ConsumeOutcome.SUCCESS),
        (OrderlyResult.suspend(60_000), True, ConsumeOutcome.FAILED),
    ],
)
async def test_consumption_is_traced(
    cluster: MemoryCluster, result: object, orderly: bool, outcome: ConsumeOutcome
) -> None:
    options = PushOptions(consume_from=ConsumeFrom.FIRST_OFFSET, trace=True, orderly=orderly)
    before, after = (await consumed(cluster, lambda _: result, options))[:2]
    (stored,) = cluster.messages("T")
    assert isinstance(before, SubBefore)
    assert isinstance(after, SubAfter)
    assert before.message_id == after.message_id == stored.message_id
    assert before.request_id == after.request_id
    assert (before.group, before.keys, before.retry_times) == ("cg", "k1", 0)
    assert (after.group, after.keys, after.outcome) == ("cg", "k1", outcome)
    assert after.is_success is (outcome is ConsumeOutcome.SUCCESS)


async def test_a_listener_that_raises_is_traced_as_that(cluster: MemoryCluster) -> None:
    def failing(_: object) -> object:
        raise ValueError("no")

    after = (await consumed(cluster, failing))[1]
    assert isinstance(after, SubAfter)
    assert (after.is_success, after.outcome) == (False, ConsumeOutcome.EXCEPTION)


async def test_a_listener_that_takes_too_long_is_traced_as_that(cluster: MemoryCluster) -> None:
    options = PushOptions(
        consume_from=ConsumeFrom.FIRST_OFFSET, trace=True, consume_timeout_ms=1, orderly=True
    )

    def slow(_: object) -> object:
        loop = asyncio.get_running_loop()
        end = loop.time() + 0.01
        while loop.time() < end:
            pass
        return OrderlyResult.SUCCESS

    after = (await consumed(cluster, slow, options))[1]
    assert isinstance(after, SubAfter)
    assert (after.is_success, after.outcome) == (True, ConsumeOutcome.TIME_OUT)


async def test_polling_is_traced(cluster: MemoryCluster) -> None:
    options = LitePullOptions(consume_from=ConsumeFrom.FIRST_OFFSET, trace=True)
    async with Producer("pg", cluster.namesrv) as producer:
        await producer.send(Message("T", b"x"))
    consumer = LitePullConsumer("cg", cluster.namesrv, options=options)
    consumer.subscribe("T")
    async with consumer:
        assert await consumer.next_message() is not None
    assert [type(record) for record in traces(cluster)] == [SubBefore, SubAfter]


async def test_traces_come_while_a_client_runs(cluster: MemoryCluster) -> None:
    async with Producer("pg", cluster.namesrv, options=ProducerOptions(trace=True)) as producer:
        await producer.send(Message("T", b"x"))
        await eventually(lambda: traces(cluster))
