# SPDX-License-Identifier: Apache-2.0
import asyncio
from pathlib import Path
from typing import Any

import pytest

from cometmq.client import (
    ConsumeFrom,
    Message,
    MessageExt,
    Producer,
    ProducerOptions,
    PushConsumer,
    PushOptions,
)
from cometmq.client.errors import ClientError, InvalidArgument, NoReply, NotARequest, SendFailed
from cometmq.client.request_reply import (
    PendingReplies,
    is_request,
    push_reply_message_to_client,
    pushed_reply,
    reply_message,
)
from cometmq.client.testing import MemoryCluster, eventually
from cometmq.client.testing.messages import message_ext
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import Call
from cometmq.remoting.commands.request_reply import PushReplyMessageToClient
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
from cometmq.remoting.testing.golden import Exchange, load_exchanges
from cometmq.remoting.typed_decode import convert_ext

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


async def test_many_requests_get_their_own_replies(cluster: MemoryCluster) -> None:
    async with (
        Producer("requester", cluster.namesrv) as requester,
        Producer("answers", cluster.namesrv) as answers,
        replier(cluster, answers),
        asyncio.TaskGroup() as group,
    ):
        tasks = [
            group.create_task(requester.request(Message("T", b"%d" % number), 10_000))
            for number in range(50)
        ]
    assert [task.result().body for task in tasks] == [b"re:%d" % number for number in range(50)]


async def test_a_large_reply_travels_compressed(cluster: MemoryCluster) -> None:
    async with (
        Producer("requester", cluster.namesrv) as requester,
        Producer("answers", cluster.namesrv) as answers,
        replier(cluster, answers),
    ):
        reply = await requester.request(Message("T", b"x" * 9000), 5_000)
    assert reply.body == b"re:" + b"x" * 9000
    assert reply.sys_flag & SysFlag.COMPRESSED


async def test_without_a_reply_the_request_ends_in_time(cluster: MemoryCluster) -> None:
    async with Producer("requester", cluster.namesrv) as requester:
        with pytest.raises(
            NoReply, match="no reply to the request to the topic T in 3000 ms"
        ) as it:
            await requester.request(Message("T", b"x"), 3_000)
        assert not len(requester._running().replies)
    assert it.value.code == 10006
    assert len(cluster.messages("T")) == 1


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
            await requester.request(Message("T", b"x"), 3_000)


async def test_the_brokers_know_a_requester_before_its_first_request(pair: MemoryCluster) -> None:
    pair.create_topic("Late", queue_count=1)
    async with Producer("requester", pair.namesrv) as requester:
        with pytest.raises(NoReply):
            await requester.request(Message("Late", b"x"), 3_000)
        for broker in pair.brokers:
            assert requester.client_id in broker.peers


def test_a_message_without_a_cluster_cannot_be_replied_to() -> None:
    assert not is_request(message_ext(0))
    with pytest.raises(NotARequest, match="CLUSTER") as caught:
        reply_message(message_ext(0), b"x")
    assert caught.value.code == 10007


async def test_a_plain_message_cannot_be_replied_to(cluster: MemoryCluster) -> None:
    async with Producer("pg", cluster.namesrv) as producer:
        await producer.send(Message("T", b"x"))
        (stored,) = cluster.messages("T")
        with pytest.raises(NotARequest, match="no property CORRELATION_ID"):
            await producer.reply(stored, b"x")


@pytest.mark.parametrize("message", ["x", None, Message("T", b"x")])
def test_only_a_received_message_may_be_a_request(message: Any) -> None:
    with pytest.raises(InvalidArgument, match="must be a MessageExt that a consumer received"):
        is_request(message)


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


async def test_a_late_or_foreign_reply_is_dropped() -> None:
    replies = PendingReplies()
    assert not replies.resolve(pushed_reply(pushed(), b"x"))
    async with replies.expect(count_max=1) as (correlation_id, future):
        reply = pushed_reply(pushed(properties=f"CORRELATION_ID\x01{correlation_id}"), b"x")
        assert replies.resolve(reply)
        assert not replies.resolve(reply)
        assert (await future).body == b"x"
    assert not replies.resolve(reply)


def test_a_reply_of_any_compression_is_read() -> None:
    body = compress(b"x" * 100, CompressionType.ZLIB, level=5)
    assert pushed_reply(pushed(sys_flag=int(SysFlag.COMPRESSED)), body).body == b"x" * 100


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
    assert push_reply_message_to_client(requester, call).code == 0
    reply = await future
    assert (reply.body, reply.properties["MSG_TYPE"]) == (body, "reply")
    assert reply.topic == "PeersCluster_REPLY_TOPIC"
    assert exchange.response is not None
    assert exchange.response.code == 0


def test_there_are_captured_replies() -> None:
    assert len(PUSHED) >= 4


def test_a_broken_reply_is_refused_as_java_refuses_it() -> None:
    header = pushed(sys_flag=int(SysFlag.COMPRESSED))
    call = Call(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, header, body=b"not zlib")
    with pytest.raises(ServerError, match="process reply message fail"):
        push_reply_message_to_client(Requester(), call)
