# SPDX-License-Identifier: Apache-2.0
import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cometmq.client import (
    ConsumeFrom,
    Message,
    MessageExt,
    Producer,
    ProducerOptions,
    PushConsumer,
    PushOptions,
    TransactionProducer,
)
from cometmq.client.errors import (
    ClientError,
    InvalidArgument,
    NoReply,
    NotARequest,
    RequesterGone,
    SendFailed,
    SendTimeout,
)
from cometmq.client.request_reply import (
    PendingReplies,
    is_request,
    push_reply_message_to_client,
    pushed_reply,
    reply_message,
    requester_gone,
)
from cometmq.client.testing import HANG, MemoryCluster, eventually
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import Call, Response
from cometmq.remoting.commands.request_reply import PushReplyMessageToClient
from cometmq.remoting.commands.send import SendMessageReply
from cometmq.remoting.errors import (
    AccessDenied,
    CommandError,
    MessageIllegal,
    Outage,
    ServerError,
    SystemBusy,
)
from cometmq.remoting.message.compression import compress
from cometmq.remoting.message.flags import CompressionType, SysFlag
from cometmq.remoting.message.properties import parse_properties
from cometmq.remoting.typed_decode import convert_ext
from cometmq.testing.client.messages import message_ext
from cometmq.testing.remoting.golden import Exchange, load_exchanges

FIRST = PushOptions(consume_from=ConsumeFrom.FIRST_OFFSET)


def replier(cluster: MemoryCluster, producer: Producer) -> PushConsumer:
    async def answer(messages: list[MessageExt]) -> None:
        for message in messages:
            await producer.reply(message, b"re:" + message.body)

    consumer = PushConsumer("cg", cluster.namesrv, listener=answer, options=FIRST)
    consumer.subscribe("T")
    return consumer


@pytest.mark.parametrize("way", ["any queue", "queue", "argument"])
@pytest.mark.parametrize("short_headers", [True, False])
async def test_a_request_is_answered(cluster: MemoryCluster, way: str, short_headers: bool) -> None:
    options = ProducerOptions(short_headers=short_headers)
    queue = MessageQueue("T", "broker-a", 1)
    async with (
        Producer("requester", cluster.namesrv) as requester,
        Producer("answers", cluster.namesrv, options=options) as answers,
        replier(cluster, answers),
    ):
        request = Message("T", b"ask")
        if way == "queue":
            reply = await requester.request(request, 5_000, queue=queue)
        elif way == "argument":
            reply = await requester.request(request, 5_000, argument=2)
        else:
            reply = await requester.request(request, 5_000)
        client_id = requester.client_id
    assert reply.body == b"re:ask"
    (stored,) = cluster.messages("T")
    assert stored.properties["REPLY_TO_CLIENT"] == client_id
    assert stored.properties["TTL"] == "5000"
    assert reply.properties["CORRELATION_ID"] == stored.properties["CORRELATION_ID"]
    assert reply.properties["MSG_TYPE"] == "reply"
    assert int(reply.properties["ARRIVE_TIME"]) >= reply.store_timestamp
    code = RequestCode.SEND_REPLY_MESSAGE_V2 if short_headers else RequestCode.SEND_REPLY_MESSAGE
    assert cluster.broker.requests[code] == 1
    assert stored.queue.queue_id == {"queue": 1, "argument": 2}.get(way, stored.queue.queue_id)


FORMS: dict[str, Callable[[TransactionProducer, Message], Any]] = {
    "a reply cannot be sent in a batch": lambda producer, reply: producer.send_batch([reply]),
    "a reply can be neither a request nor": lambda producer, reply: producer.request(reply),
    "a reply can be .* part of a transaction": lambda producer, reply: producer.begin(reply),
}


@pytest.mark.parametrize("text", FORMS)
async def test_a_reply_is_not_sent_where_its_routing_is_lost(
    cluster: MemoryCluster, text: str
) -> None:
    """Otherwise the requester would wait in vain, and the reply's producer would see a success."""
    properties = {"CLUSTER": "c", "CORRELATION_ID": "i", "REPLY_TO_CLIENT": "r", "TTL": "1"}
    request = msgspec.structs.replace(message_ext(0), properties=properties)
    async with TransactionProducer("pg", cluster.namesrv, check=lambda _: None) as producer:
        with pytest.raises(InvalidArgument, match=text):
            await FORMS[text](producer, reply_message(request, b"x"))
        with pytest.raises(InvalidArgument, match="a reply cannot be sent in a batch"):
            list(producer.split_batch([reply_message(request, b"x")]))
    assert cluster.messages("c_REPLY_TOPIC") == []


async def test_without_a_reply_the_request_ends_in_time(cluster: MemoryCluster) -> None:
    async with Producer("requester", cluster.namesrv) as requester:
        with pytest.raises(
            NoReply, match="no reply to the request to the topic T in 1000 ms"
        ) as it:
            await requester.request(Message("T", b"x"), 1_000)
        assert not len(requester._running().members.replies)
    assert it.value.code == 10006
    assert len(cluster.messages("T")) == 1


async def test_a_request_to_a_frozen_broker_says_how_long_it_took(cluster: MemoryCluster) -> None:
    """The error message used to leave out the time of the heartbeat before the request."""
    async with Producer("requester", cluster.namesrv) as requester:
        await requester.send(Message("T", b"x"))
        requester._running().heartbeats._greeted.clear()
        for code in (RequestCode.HEART_BEAT, RequestCode.SEND_MESSAGE_V2):
            cluster.broker.fail(code, HANG, times=10)
        with pytest.raises(SendTimeout, match=r"gave up after 1 attempt in \d+ ms") as caught:
            await requester.request(Message("T", b"x"), 1_000)
    text = r"in (\d+) ms \(its timeout is 1000 ms\) at broker-a: .* within (\d+) ms"
    words = re.search(text, str(caught.value))
    assert words is not None
    assert int(words[1]) >= 990
    assert int(words[2]) >= 300


async def test_a_frozen_broker_leaves_time_for_a_request_to_another(pair: MemoryCluster) -> None:
    async with Producer("requester", pair.namesrv) as requester:
        await requester.queues("T")
        requester._running().heartbeats._greeted.clear()
        pair.brokers[0].fail(RequestCode.HEART_BEAT, HANG, times=10)
        with pytest.raises(NoReply):  # stored, but no consumer runs
            await requester.request(
                Message("T", b"x"), 2_000, queue=MessageQueue("T", "broker-b", 0)
            )


async def test_a_request_without_time_is_not_sent(cluster: MemoryCluster) -> None:
    options = ProducerOptions(pending_sends_max=1)
    async with Producer("requester", cluster.namesrv, options=options) as requester:
        text = r"was not sent in \d+ ms \(its timeout is 100 ms\)"

        async def ask() -> None:
            with pytest.raises(SendTimeout, match=text):
                await requester.request(Message("T", b"x"), 100)

        async with asyncio.TaskGroup() as group, requester._room:
            group.create_task(ask())
            await asyncio.sleep(0.2)
    assert not cluster.messages("T")


async def test_a_request_that_is_not_stored_raises(cluster: MemoryCluster) -> None:
    cluster.broker.fail(RequestCode.SEND_MESSAGE_V2, ServerError("disk"), times=4)
    async with Producer("requester", cluster.namesrv) as requester:
        with pytest.raises(SendFailed, match="was not stored after 3 attempts"):
            await requester.request(Message("T", b"x"), 5_000)
        with pytest.raises(SendFailed, match="to the topic T was not stored after 1 attempt "):
            await requester.request(Message("T", b"x"), 5_000, argument=1)


@pytest.mark.parametrize(
    "refusal", [MessageIllegal("too long"), AccessDenied("no rights"), SystemBusy("later")]
)
@pytest.mark.parametrize("argument", [{}, {"argument": 1}])
async def test_a_refused_request_raises_what_a_send_raises(
    cluster: MemoryCluster, refusal: CommandError, argument: dict[str, Any]
) -> None:
    cluster.broker.fail(RequestCode.SEND_MESSAGE_V2, refusal, times=2)
    async with Producer("requester", cluster.namesrv) as requester:
        with pytest.raises(type(refusal)) as of_send:
            await requester.send(Message("T", b"x"), timeout_ms=60_000)
        with pytest.raises(type(refusal)) as of_request:
            await requester.request(Message("T", b"x"), 60_000, **argument)
    assert not isinstance(of_request.value, Outage)
    assert of_request.value.remark == of_send.value.remark
    assert cluster.broker.requests[RequestCode.SEND_MESSAGE_V2] == 2


async def test_requests_are_bounded(cluster: MemoryCluster) -> None:
    options = ProducerOptions(pending_requests_max=1)
    async with Producer("requester", cluster.namesrv, options=options) as requester:
        async with asyncio.TaskGroup() as group:
            first = group.create_task(requester.request(Message("T", b"x"), 60_000))
            await eventually(lambda: cluster.messages("T"))
            with pytest.raises(ClientError, match="1 requests are pending already"):
                await requester.request(Message("T", b"x"))
            first.cancel()
        with pytest.raises(NoReply):
            await requester.request(Message("T", b"x"), 1_000)


async def test_the_brokers_know_a_requester_before_its_first_request(pair: MemoryCluster) -> None:
    pair.create_topic("Late", queue_count=1)
    async with Producer("requester", pair.namesrv) as requester:
        with pytest.raises(NoReply):
            await requester.request(Message("Late", b"x"), 1_000)
        for broker in pair.brokers:
            assert requester.client_id in broker.peers


def test_a_message_without_a_cluster_cannot_be_replied_to() -> None:
    assert not is_request(message_ext(0))
    with pytest.raises(NotARequest, match="CLUSTER") as caught:
        reply_message(message_ext(0), b"x")
    assert caught.value.code == 10007


async def test_a_plain_message_cannot_be_replied_to(
    cluster: MemoryCluster, producer: Producer
) -> None:
    await producer.send(Message("T", b"x"))
    (stored,) = cluster.messages("T")
    with pytest.raises(NotARequest, match="no property CORRELATION_ID"):
        await producer.reply(stored, b"x")


# -- replies to nobody --------------------------------------------------------------------------

REPLY = RequestCode.SEND_REPLY_MESSAGE_V2
REPLY_TOPIC = "MemoryCluster_REPLY_TOPIC"


async def _stored(cluster: MemoryCluster, count: int) -> None:
    await eventually(lambda: len(cluster.messages("T")) == count)


async def late_request(cluster: MemoryCluster) -> MessageExt:
    """Return a stored request whose requester has ended."""
    async with (
        Producer("requester", cluster.namesrv) as requester,
        asyncio.TaskGroup() as group,
    ):
        asked = group.create_task(requester.request(Message("T", b"x"), 60_000))
        await eventually(lambda: cluster.messages("T"))
        asked.cancel()
    (stored,) = cluster.messages("T")
    await eventually(lambda: not any(broker.peers for broker in cluster.brokers))
    return stored


async def test_a_reply_to_a_requester_that_is_gone_is_sent_once(cluster: MemoryCluster) -> None:
    request = await late_request(cluster)
    async with Producer("answers", cluster.namesrv) as answers:
        with pytest.raises(RequesterGone) as caught:
            await answers.reply(request, b"late")
        assert answers.stats().failed_count == 1
    assert cluster.broker.requests[REPLY] == 1
    (reply,) = cluster.messages(REPLY_TOPIC)
    assert caught.value.offset_message_id == reply.offset_message_id
    assert f"the reply is stored as {reply.offset_message_id}, but its requester" in str(
        caught.value
    )
    assert not isinstance(caught.value, Outage)
    assert caught.value.code == 1


async def test_no_broker_is_asked_twice_for_a_requester_that_is_gone(pair: MemoryCluster) -> None:
    request = await late_request(pair)
    async with Producer("answers", pair.namesrv) as answers:
        with pytest.raises(RequesterGone):
            await answers.reply(request, b"late")
    assert [broker.requests[REPLY] for broker in pair.brokers] == [1, 1]


async def test_a_reply_finds_a_requester_that_only_one_broker_knows(pair: MemoryCluster) -> None:
    async with (
        Producer("requester", pair.namesrv) as requester,
        Producer("answers", pair.namesrv) as answers,
        asyncio.TaskGroup() as group,
    ):
        for count in range(1, 5):  # replies start at either broker
            message = Message("T", b"x", keys=str(count))
            asked = group.create_task(requester.request(message, 60_000))
            await _stored(pair, count)
            pair.brokers[0].peers.pop(requester.client_id, None)
            (request,) = [one for one in pair.messages("T") if one.keys == (str(count),)]
            await answers.reply(request, b"found")
            assert (await asked).body == b"found"


async def test_a_lost_broker_does_not_hide_that_a_reply_is_stored(pair: MemoryCluster) -> None:
    request = await late_request(pair)
    async with Producer("answers", pair.namesrv) as answers:
        pair.brokers[1].fail(REPLY, SystemBusy("later"), times=10)
        raised = []
        for _ in range(2):  # one of two replies starts at the broker that stores it
            with pytest.raises((RequesterGone, SystemBusy)) as caught:
                await answers.reply(request, b"late")
            raised.append(type(caught.value))
    assert RequesterGone in raised
    assert len(pair.messages(REPLY_TOPIC)) == raised.count(RequesterGone)


async def test_a_reply_that_a_broker_refuses_is_sent_again(cluster: MemoryCluster) -> None:
    request = await late_request(cluster)
    cluster.broker.fail(REPLY, ServerError("disk"), times=3)
    async with Producer("answers", cluster.namesrv) as answers:
        with pytest.raises(SendFailed, match="was not stored after 3 attempts"):
            await answers.reply(request, b"late")
    assert cluster.broker.requests[REPLY] == 3


# -- pushes from brokers ------------------------------------------------------------------------


class Requester:
    def __init__(self) -> None:
        self.replies = PendingReplies()


def pushed(**fields: object) -> PushReplyMessageToClient:
    values = {
        "producer_group": "g",
        "topic": "c_REPLY_TOPIC",
        "default_topic": "TBW102",
        "default_topic_queue_nums": 4,
        "queue_id": 0,
        "sys_flag": 0,
        "born_timestamp": 1,
        "flag": 0,
        "born_host": "127.0.0.1:1",
        "store_host": "127.0.0.1:2",
        "store_timestamp": 2,
        "properties": "CORRELATION_ID\x01nobody",
        **fields,
    }
    return PushReplyMessageToClient(**values)  # type: ignore[arg-type]


async def test_a_late_or_foreign_reply_is_dropped_unread() -> None:
    replies, read_count = PendingReplies(), 0

    async def read() -> MessageExt:
        nonlocal read_count
        read_count += 1
        return pushed_reply(pushed(), b"x")

    assert not await replies.resolve("nobody", read)
    async with replies.expect(count_max=1) as (correlation_id, future):
        assert await replies.resolve(correlation_id, read)
        assert not await replies.resolve(correlation_id, read)
        assert (await future).body == b"x"
    assert not await replies.resolve(correlation_id, read)
    assert read_count == 1


async def test_one_reply_of_a_request_is_read_at_a_time() -> None:
    """A broker may push any number of replies; each may expand to 32 MiB."""
    replies, may_end = PendingReplies(), asyncio.Event()
    reply = pushed_reply(pushed(), b"x")

    async def read() -> MessageExt:
        await may_end.wait()
        return reply

    async def fail() -> MessageExt:
        raise ServerError("broken")

    async with replies.expect(count_max=1) as (correlation_id, future):
        with pytest.raises(ServerError):  # the next reply may be whole
            await replies.resolve(correlation_id, fail)
        async with asyncio.TaskGroup() as group:
            first = group.create_task(replies.resolve(correlation_id, read))
            await asyncio.sleep(0)
            assert not await replies.resolve(correlation_id, read)
            may_end.set()
        assert first.result()
        assert await future is reply


async def test_a_reply_that_is_read_too_late_is_dropped() -> None:
    replies, may_end = PendingReplies(), asyncio.Event()

    async def read() -> MessageExt:
        await may_end.wait()
        return pushed_reply(pushed(), b"x")

    async with asyncio.TaskGroup() as group:
        async with replies.expect(count_max=1) as (correlation_id, _):
            reading = group.create_task(replies.resolve(correlation_id, read))
            await asyncio.sleep(0)
        may_end.set()
    assert not reading.result()


async def test_a_reply_of_any_compression_is_read() -> None:
    body = compress(b"x" * 100, CompressionType.ZLIB, level=5)
    requester = Requester()
    async with requester.replies.expect(count_max=1) as (correlation_id, future):
        properties = f"CORRELATION_ID\x01{correlation_id}"
        header = pushed(sys_flag=int(SysFlag.COMPRESSED), properties=properties)
        call = Call(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, header, body=body)
        await push_reply_message_to_client(requester, call)
        assert (await future).body == b"x" * 100


GOLDEN = Path(__file__).resolve().parents[3] / "tests" / "golden"
PUSHED = [
    exchange for exchange in load_exchanges(GOLDEN, "326-*.jsonl") if exchange.receiver == "client"
]


@pytest.mark.parametrize("exchange", PUSHED, ids=lambda exchange: exchange.name)
async def test_replies_pushed_by_java_complete_the_request(exchange: Exchange) -> None:
    header = convert_ext(exchange.request.ext, PushReplyMessageToClient)
    assert isinstance(header, PushReplyMessageToClient)
    body = (exchange.request.body_text or "").encode()
    requester = Requester()
    correlation_id = parse_properties(header.properties)["CORRELATION_ID"]
    future = asyncio.get_running_loop().create_future()
    requester.replies._waiting[correlation_id] = future
    call = Call(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, header, body=body)
    assert (await push_reply_message_to_client(requester, call)).code == 0
    reply = await future
    assert (reply.body, reply.properties["MSG_TYPE"]) == (body, "reply")
    assert reply.topic == "PeersCluster_REPLY_TOPIC"
    assert exchange.response is not None
    assert exchange.response.code == 0


REFUSED = [
    exchange
    for code in (324, 325)
    for exchange in load_exchanges(GOLDEN, f"{code}-*.jsonl")
    if exchange.response is not None and exchange.response.code == 1
]


@pytest.mark.parametrize("exchange", REFUSED, ids=lambda exchange: exchange.name)
def test_what_java_answers_about_a_missing_requester_is_understood(exchange: Exchange) -> None:
    answer = exchange.response
    assert answer is not None
    remark = str(answer.header["remark"])
    header = convert_ext(answer.ext, SendMessageReply)
    gone = requester_gone(Response(1, header, answer.ext, b"", remark), "broker-a")
    if remark.startswith("push reply message"):
        assert gone is not None
        assert gone.offset_message_id == answer.ext["msgId"]
        assert "its requester nobody is not connected to broker-a any more" in str(gone)
    else:
        assert gone is None


@pytest.mark.parametrize(
    ("remark", "header", "words"),
    [
        ("push reply message to c@1fail.", SendMessageReply("7F", 0, 1), "c@1 did not accept it"),
        ("push reply message fail, channel of <c> not found.", None, "the reply is not stored"),
        ("push reply message to cfail.", SendMessageReply("0", 0, 0), "the reply is not stored"),
    ],
)
def test_errors_say_whether_the_reply_is_stored(
    remark: str, header: SendMessageReply | None, words: str
) -> None:
    gone = requester_gone(Response(1, header, {}, b"", remark), "broker-a")
    assert words in str(gone)


def test_there_are_captured_replies() -> None:
    assert len(REFUSED) >= 4
    assert len(PUSHED) >= 4


async def test_a_broken_reply_is_refused_as_java_refuses_it() -> None:
    requester = Requester()
    async with requester.replies.expect(count_max=1) as (correlation_id, future):
        properties = f"CORRELATION_ID\x01{correlation_id}"
        header = pushed(sys_flag=int(SysFlag.COMPRESSED), properties=properties)
        call = Call(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, header, body=b"not zlib")
        with pytest.raises(ServerError, match="process reply message fail"):
            await push_reply_message_to_client(requester, call)
        assert not future.done()
