# SPDX-License-Identifier: Apache-2.0

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cometmq.broker.broker import Broker
from cometmq.broker.clients.producers import Client
from cometmq.broker.handlers import replies
from cometmq.broker.limits import REPLY_BYTES
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.command import Call, Reply, Response
from cometmq.remoting.commands.request_reply import PushReplyMessageToClient, SendReplyMessageV2
from cometmq.remoting.commands.send import SendMessageReply
from cometmq.remoting.errors import RequestTimeout
from cometmq.remoting.message.properties import parse_properties
from cometmq.remoting.message.record import MessageRecord, decode_record
from cometmq.store.writing.write_state import Refusal
from cometmq.testing.broker import FakePeer, RecordingLog, expected_answer
from cometmq.testing.broker.replay import Answer, call_of, frame_of, name_of, read_answer, serve
from cometmq.testing.broker.stored import call_with, stored_broker
from cometmq.testing.remoting.golden import Exchange, load_exchanges

GOLDEN = Path(__file__).parents[4] / "tests" / "golden"
TOPIC = "PeersCluster_REPLY_TOPIC"
EXT = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
TEXT = "MSG_TYPE\x01reply\x02REPLY_TO_CLIENT\x01asker\x02CORRELATION_ID\x01c7\x02TAGS\x01A\x02"
HEADER = SendReplyMessageV2("P", TOPIC, "TBW102", 4, 0, 1, 1_600_000_000_000, 3, TEXT)
TAKEN = Response(0, None, {}, b"", None)
FIRST_ID = "7F00000100002A9F0000000000000000"


def exchanges(pattern: str) -> list[Exchange]:
    return list(load_exchanges(GOLDEN, pattern))


def requester(broker: Broker, client_id: str = "asker") -> FakePeer:
    """Connect a producer that accepts replies."""
    peer = FakePeer("127.0.0.1:50001")
    peer.answers[326] = TAKEN
    broker.clients.producers.register(
        "P", Client(peer, client_id, language=0, version=401, seen_ms=0)
    )
    return peer


async def send(broker: Broker, **fields: Any) -> Reply:
    header = msgspec.structs.replace(HEADER, **fields)
    return await serve(broker, call_with(325, header, b"answer"), replies.send_reply_message)


def stored(broker: Broker) -> list[MessageRecord]:
    return [decode_record(one) for one in broker.store.reader.get_messages(TOPIC, 0, 0, 32).records]


async def served(broker: Broker, call: Call[Any]) -> Answer:
    return read_answer(frame_of(call, await serve(broker, call, replies.send_reply_message)))


@pytest.mark.parametrize("exchange", [*exchanges("324-*"), *exchanges("325-*")], ids=name_of)
async def test_captured_replies(broker: Broker, exchange: Exchange) -> None:
    """Our reply is stored at a different position from the captured reply; all else is equal."""
    call = call_of(exchange.request, FakePeer())
    client_id = parse_properties(call.header.properties).get("REPLY_TO_CLIENT", "nobody")
    peer = FakePeer() if client_id == "nobody" else requester(broker, client_id)

    answer = await served(broker, call)

    expected = expected_answer(exchange)
    place = {"msgId": FIRST_ID, "queueOffset": "0"}
    assert answer == msgspec.structs.replace(expected, ext={**expected.ext, **place})
    assert len(peer.asked) == int(client_id != "nobody")
    (record,) = stored(broker)
    assert record.body.decode() == exchange.request.body_text
    assert record.properties == parse_properties(call.header.properties)


@pytest.mark.parametrize("exchange", exchanges("326-*"), ids=name_of)
async def test_captured_deliveries(broker: Broker, exchange: Exchange) -> None:
    """For the same reply, our broker and the Java broker send the requester the same bytes."""
    captured = call_of(exchange.request, FakePeer())
    wanted: PushReplyMessageToClient = captured.header
    properties = parse_properties(wanted.properties)
    del properties["PUSH_REPLY_TIME"]
    text = "\x02".join(f"{name}\x01{value}" for name, value in properties.items())
    peer = requester(broker, properties["REPLY_TO_CLIENT"])
    fields = {
        name: getattr(wanted, name)
        for name in SendReplyMessageV2.__struct_fields__
        if name in PushReplyMessageToClient.__struct_fields__
    }
    header = SendReplyMessageV2(**{**fields, "properties": text})
    replier = FakePeer(wanted.born_host)

    await replies.send_reply_message(broker, Call(325, header, body=captured.body, peer=replier))

    (asked,) = peer.asked
    now_ms = broker.clock.now_ms()
    assert (asked.code, asked.body) == (326, captured.body)
    assert isinstance(asked.header, PushReplyMessageToClient)
    assert parse_properties(asked.header.properties) == {
        **properties,
        "PUSH_REPLY_TIME": str(now_ms),
    }
    assert asked.header == msgspec.structs.replace(
        wanted,
        store_host="127.0.0.1:10911",
        store_timestamp=now_ms,
        properties=asked.header.properties,
    )


async def test_a_reply_is_stored_unchanged(broker: Broker) -> None:
    requester(broker)

    reply = await send(broker, sys_flag=1 | 0x8)

    assert (reply.code, reply.remark, reply.ext) == (0, None, EXT)
    assert reply.header == SendMessageReply(FIRST_ID, 0, 0)
    (record,) = stored(broker)
    assert (record.body, record.flag, record.born_timestamp) == (b"answer", 3, 1_600_000_000_000)
    assert record.sys_flag == 1
    assert record.properties == parse_properties(TEXT)
    assert broker.stats.topics[TOPIC].put_count == 1


async def test_without_storing_the_answer_has_no_position(tmp_path: Path) -> None:
    async with stored_broker(tmp_path, storeReplyMessageEnable="false") as broker:
        requester(broker)

        taken = await send(broker)
        missed = await send(broker, properties="REPLY_TO_CLIENT\x01nobody")

        assert (taken.code, taken.header, taken.ext) == (0, SendMessageReply("0", 0, 0), EXT)
        assert (missed.code, missed.header, missed.ext) == (1, None, EXT)
        assert stored(broker) == []


async def test_a_reply_that_cannot_be_stored_is_still_pushed(broker: Broker) -> None:
    log = RecordingLog()
    broker.log = log
    peer = requester(broker)
    broker.store.write_state.set(Refusal.DISK_FULL, holds=True)

    reply = await send(broker)

    assert (reply.code, reply.header) == (0, SendMessageReply("0", 0, 0))
    assert len(peer.asked) == 1
    assert [facts["reason"] for facts in log.named("reply.not_stored")] == ["SERVICE_NOT_AVAILABLE"]


@pytest.mark.parametrize(
    ("text", "remark"),
    [
        ("", "reply message properties[REPLY_TO_CLIENT] is null"),
        ("REPLY_TO_CLIENT\x01nobody", "push reply message fail, channel of <nobody> not found."),
    ],
)
async def test_replies_without_a_requester_are_stored(
    broker: Broker, text: str, remark: str
) -> None:
    reply = await send(broker, properties=text)

    assert (reply.code, reply.remark) == (1, remark)
    assert reply.header == SendMessageReply(FIRST_ID, 0, 0)
    assert len(stored(broker)) == 1


@pytest.mark.parametrize(
    "answer", [Response(1, None, {}, b"", "no"), RequestTimeout("no answer")], ids=["no", "late"]
)
async def test_a_requester_that_refuses_the_reply(
    broker: Broker, answer: Response | RequestTimeout
) -> None:
    log = RecordingLog()
    broker.log = log
    requester(broker).answers[326] = answer

    reply = await send(broker)

    assert (reply.code, reply.remark) == (1, "push reply message to askerfail.")
    assert isinstance(reply.header, SendMessageReply)
    assert [facts["client_id"] for facts in log.named("reply.not_taken")] == ["asker"]


async def test_a_requester_that_left_is_not_found(broker: Broker) -> None:
    peer = requester(broker)
    for group in broker.clients.producers.groups_of(peer):
        broker.clients.producers.unregister(group, peer)

    assert (await send(broker)).remark == "push reply message fail, channel of <asker> not found."


@pytest.mark.parametrize(
    ("fields", "code", "remark"),
    [
        ({"topic": ""}, 1, "The specified topic is blank."),
        (
            {"topic": "SCHEDULE_TOPIC_XXXX"},
            16,
            "Sending message to topic[SCHEDULE_TOPIC_XXXX] is forbidden.",
        ),
        ({"queue_id": 1}, 1, "request queueId[1] is illegal, "),
    ],
)
async def test_replies_pass_the_checks_of_sends(
    broker: Broker, fields: dict[str, Any], code: int, remark: str
) -> None:
    peer = requester(broker)

    reply = await send(broker, **fields)

    assert (reply.code, reply.ext) == (code, EXT)
    assert (reply.remark or "").startswith(remark)
    assert peer.asked == []
    assert stored(broker) == []


async def test_any_queue_may_be_chosen_by_the_broker(broker: Broker) -> None:
    peer = requester(broker)

    reply = await send(broker, queue_id=-1)

    assert reply.header == SendMessageReply(FIRST_ID, 0, 0)
    assert isinstance(peer.asked[0].header, PushReplyMessageToClient)
    assert peer.asked[0].header.queue_id == -1


async def test_a_disconnected_replier_causes_no_error(broker: Broker) -> None:
    """The task that serves the replier's request may be cancelled before the store has answered."""
    requester(broker)
    serving = replies.send_reply_message(broker, call_with(325, HEADER, b"answer"))
    waited_for = serving.send(None)
    assert isinstance(waited_for, asyncio.Future)
    waited_for.cancel()
    serving.close()

    await broker.driver.drain()

    assert len(stored(broker)) == 1


async def test_replies_that_wait_for_their_requesters_are_bounded(broker: Broker) -> None:
    """A client that answers nothing keeps a reply for 10 s, however large it is."""
    peer, under_way = requester(broker), broker.pending.replies
    under_way.size = REPLY_BYTES.fixed - len(b"answer") + 1

    answer = await send(broker)

    assert answer.code == ResponseCode.SYSTEM_BUSY
    assert "limit reached: Bytes of the replies" in str(answer.remark)
    assert not peer.asked
    assert not stored(broker)
    under_way.size -= 1
    assert (await send(broker)).code == ResponseCode.SUCCESS
    assert under_way.size == REPLY_BYTES.fixed - len(b"answer")
