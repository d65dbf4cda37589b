# SPDX-License-Identifier: Apache-2.0

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cometmq.broker.broker import Broker
from cometmq.broker.clients.producers import Client
from cometmq.broker.handlers import client_calls
from cometmq.remoting.bodies.dialect import decode_json, encode_json
from cometmq.remoting.bodies.heartbeat import ConsumerData
from cometmq.remoting.bodies.offsets import ConsumerStatus
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.command import Call, Reply, Request, Response
from cometmq.remoting.commands.admin import InvokeBrokerToGetConsumerStatus
from cometmq.remoting.commands.callbacks import (
    ConsumeMessageDirectly,
    GetConsumerRunningInfo,
    GetConsumerStatusFromClient,
)
from cometmq.remoting.commands.send import SendMessageV2
from cometmq.remoting.errors import Overloaded, RequestTimeout
from cometmq.remoting.message.record import decode_record
from cometmq.remoting.transport.bodies import BODY_BYTES_MAX
from cometmq.remoting.versions import CLIENT_CALLS_MIN, RESET_OFFSET_MIN, V4_9_4
from cometmq.testing.broker import FakePeer, RecordingLog, expected_answer, memory_broker, replay
from cometmq.testing.broker.replay import name_of, serve
from cometmq.testing.broker.stored import ask, call_with, stored_broker
from cometmq.testing.remoting.golden import Exchange, load_exchanges

GOLDEN = Path(__file__).parents[4] / "tests" / "golden"
STATUS = b'{"consumerTable":{},"messageQueueTable":{{"brokerName":"b","queueId":0,"topic":"T"}:6}}'


def exchanges(pattern: str, receiver: str = "broker") -> list[Exchange]:
    return [one for one in load_exchanges(GOLDEN, pattern) if one.receiver == receiver]


def answer(code: int = 0, body: bytes = b"", remark: str | None = None) -> Response:
    return Response(code, None, {}, body, remark, V4_9_4)


def join(
    broker: Broker, client_id: str = "c1", group: str = "G", *, version: int = V4_9_4, port: int = 1
) -> FakePeer:
    peer = FakePeer(f"127.0.0.1:{port}")
    client = Client(peer, client_id, language=0, version=version, seen_ms=0)
    broker.clients.consumers.register(ConsumerData(group_name=group), client, notify=False)
    return peer


async def ask_status(broker: Broker, client_id: str | None = None) -> Reply:
    header = InvokeBrokerToGetConsumerStatus("T", "G", client_id)
    handler = client_calls.invoke_broker_to_get_consumer_status
    return await serve(broker, Call(223, header, peer=FakePeer()), handler)


def clients_in(reply: Reply) -> set[str]:
    assert isinstance(reply.body, bytes)
    return set(decode_json(ConsumerStatus, reply.body).consumer_table)


@pytest.mark.parametrize("exchange", exchanges("223-*"), ids=name_of)
async def test_captured_queries_of_offsets(exchange: Exchange) -> None:
    """For an unknown group, the answer is a remark; Java's remark contains its exception."""
    broker, ext = memory_broker(), exchange.request.ext
    expected = expected_answer(exchange)
    wanted = decode_json(ConsumerStatus, expected.body) if expected.body else ConsumerStatus()
    client_says = expected_answer(exchanges("221-*", "client")[0]).body
    peer: Any = None
    for client_id in wanted.consumer_table:
        peer = join(broker, client_id, ext["group"])
        peer.answers[221] = answer(body=client_says)

    told = await replay(broker, exchange, client_calls.invoke_broker_to_get_consumer_status)

    assert told.code == expected.code
    if not wanted.consumer_table:
        assert told.remark == "No Any Consumer online in the consumer group: [nobody]"
        return
    assert told.remark == expected.remark == "not set any response code"
    said = decode_json(ConsumerStatus, client_says).message_queue_table
    table = decode_json(ConsumerStatus, told.body).consumer_table
    assert table == dict.fromkeys(wanted.consumer_table, said)
    assert peer.asked == [
        Request(221, GetConsumerStatusFromClient(topic=ext["topic"], group=ext["group"]))
    ]


async def test_members_that_fail_are_left_out_and_logged() -> None:
    broker, log = memory_broker(), RecordingLog()
    broker.log = log
    join(broker, "well", port=1).answers[221] = answer(body=STATUS)
    join(broker, "late", port=2).answers[221] = RequestTimeout("no answer")
    join(broker, "refuses", port=3).answers[221] = answer(1, remark="who?")
    join(broker, "garbled", port=4).answers[221] = answer(body=b"]")
    join(broker, "empty", port=5).answers[221] = answer()

    assert clients_in(await ask_status(broker)) == {"well"}

    failed = {facts["client_id"]: facts["reason"] for facts in log.named("client_call.failed")}
    assert failed.keys() == {"late", "refuses", "garbled"}
    assert "who?" in str(failed["refuses"])


async def test_large_answers_of_members_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand members may answer with a frame each, and all are encoded in one step."""
    monkeypatch.setattr(client_calls, "STATUSES_BYTES_MAX", 3 * len(STATUS))
    broker, log = memory_broker(), RecordingLog()
    broker.log = log
    join(broker, "huge", port=1).answers[221] = answer(body=STATUS + b" " * (1 << 20))
    for number in range(5):
        join(broker, f"c{number}", port=2 + number).answers[221] = answer(body=STATUS)

    found = clients_in(await ask_status(broker))

    assert len(found) == 3
    assert "huge" not in found
    assert len(log.named("client_call.failed")) == 3
    assert broker.pending.questions.size == 0


@pytest.mark.parametrize("queue_count", [12_000, 25_000])
async def test_a_member_whose_answer_would_hold_the_loop_is_left_out(queue_count: int) -> None:
    """The keys of 16 MiB took 6 s to decode."""
    broker, log = memory_broker(), RecordingLog()
    broker.log = log
    table = {MessageQueue("T", "b", number): 1 for number in range(queue_count)}
    body = encode_json(ConsumerStatus(message_queue_table=table))
    assert (len(body) > BODY_BYTES_MAX) == (queue_count > 12_000)
    join(broker, "well", port=1).answers[221] = answer(body=STATUS)
    join(broker, "large", port=2).answers[221] = answer(body=body)

    assert clients_in(await ask_status(broker)) == {"well"}

    (failed,) = log.named("client_call.failed")
    assert failed["client_id"] == "large"
    assert "at most" in str(failed["reason"])


async def test_a_single_member_can_be_asked() -> None:
    broker = memory_broker()
    one, two = join(broker, "c1", port=1), join(broker, "c2", port=2)
    one.answers[221] = two.answers[221] = answer(body=STATUS)

    assert clients_in(await ask_status(broker, "c2")) == {"c2"}
    assert one.asked == []
    assert clients_in(await ask_status(broker, "nobody")) == set()
    assert clients_in(await ask_status(broker, " ")) == {"c1", "c2"}


async def test_members_too_old_for_the_request() -> None:
    broker = memory_broker()
    join(broker, version=RESET_OFFSET_MIN - 1)

    reply = await ask_status(broker)

    assert (reply.code, reply.remark) == (
        1,
        "the client does not support this feature. version=V3_0_6",
    )


@pytest.mark.parametrize("exchange", exchanges("307-*"), ids=name_of)
async def test_captured_queries_of_a_clients_state(exchange: Exchange) -> None:
    broker, ext = memory_broker(), exchange.request.ext
    expected = expected_answer(exchange)
    is_known = ext["clientId"] != "nobody"
    peer = join(broker, ext["clientId"] if is_known else "c1", ext["consumerGroup"])
    peer.answers[307] = answer(body=expected.body, remark=expected.remark)

    assert await replay(broker, exchange, client_calls.get_consumer_running_info) == expected

    passed_on = [Request(307, GetConsumerRunningInfo(ext["consumerGroup"], ext["clientId"]))]
    assert peer.asked == (passed_on if is_known else [])


@pytest.fixture
async def stored(tmp_path: Path) -> AsyncIterator[Broker]:
    async with stored_broker(tmp_path) as broker:
        ask(broker, call_with(310, SendMessageV2("P", "T", "TBW102", 4, 1, 0, 0, 0), b"hello"))
        yield broker


def id_at(offset: int) -> str:
    return f"7F00000100002A9F{offset:016X}"


@pytest.mark.parametrize("exchange", exchanges("309-*"), ids=name_of)
async def test_captured_requests_to_consume_a_message(stored: Broker, exchange: Exchange) -> None:
    """The captured broker had more messages; ours has only the first."""
    ext = exchange.request.ext
    expected = expected_answer(exchange)
    peer = join(stored, ext["clientId"], ext["consumerGroup"])
    peer.answers[309] = answer(body=expected.body, remark=expected.remark)

    told = await replay(stored, exchange, client_calls.consume_message_directly)

    offset = int(ext["msgId"][16:], 16)
    if offset == 0:
        assert told == expected
        assert len(peer.asked) == 1
    else:
        assert (told.code, told.remark) == (1, f"can not find message by the offset, {offset}")
        assert peer.asked == []


@pytest.mark.parametrize("exchange", exchanges("309-*", "client"), ids=name_of)
async def test_captured_requests_that_a_broker_forwarded(
    stored: Broker, exchange: Exchange
) -> None:
    """The client receives the fields of the request, the broker's name and the stored record."""
    ext = exchange.request.ext
    peer = join(stored, ext["clientId"], ext["consumerGroup"])
    peer.answers[309] = answer()
    header = ConsumeMessageDirectly(
        ext["consumerGroup"], ext["clientId"], id_at(0), topic=ext.get("topic")
    )

    await client_calls.consume_message_directly(stored, call_with(309, header))

    (asked,) = peer.asked
    assert asked.header == ConsumeMessageDirectly(
        ext["consumerGroup"], ext["clientId"], id_at(0), ext["brokerName"], ext.get("topic")
    )
    assert isinstance(asked.body, bytes)
    record = decode_record(asked.body)
    assert (record.topic, record.body, record.physical_offset) == ("T", b"hello", 0)


@pytest.mark.parametrize("message_id", [None, "", "x" * 32, "7F"])
async def test_the_error_names_an_invalid_message_id(
    stored: Broker, message_id: str | None
) -> None:
    join(stored)
    header = ConsumeMessageDirectly("G", "c1", message_id)

    reply = await serve(stored, call_with(309, header), client_calls.consume_message_directly)

    assert reply.code == 1
    assert (reply.remark or "").startswith(f"msgId={message_id}: ")


async def state(broker: Broker, client_id: str = "c1", group: str = "G") -> tuple[int, str | None]:
    call: Call[Any] = Call(307, GetConsumerRunningInfo(group, client_id), peer=FakePeer())
    reply = await serve(broker, call, client_calls.get_consumer_running_info)
    return reply.code, reply.remark


async def test_clients_that_are_offline_or_too_old() -> None:
    broker = memory_broker()
    assert await state(broker) == (1, "The Consumer <G> <c1> not online")
    join(broker, version=CLIENT_CALLS_MIN - 1)

    assert await state(broker, "c2") == (1, "The Consumer <G> <c2> not online")
    code, remark = await state(broker)
    assert code == 1
    assert remark == (
        "The Consumer <c1> Version <V3_1_7> too low to finish, please upgrade it to V3_1_8_SNAPSHOT"
    )


async def test_clients_that_do_not_answer() -> None:
    broker = memory_broker()
    peer = join(broker, version=CLIENT_CALLS_MIN)

    peer.answers[307] = RequestTimeout("no answer")
    assert await state(broker) == (
        207,
        "consumer <G> <c1> Timeout: 127.0.0.1:1 did not answer in 10000 ms",
    )
    peer.answers[307] = Overloaded("too much unsent output")
    assert await state(broker) == (
        1,
        "invoke consumer <G> <c1> Exception: Overloaded: too much unsent output",
    )


async def test_the_refusal_of_a_client_is_forwarded() -> None:
    broker = memory_broker()
    join(broker).answers[307] = answer(1, remark="The Consumer Group <G> not exist")

    assert await state(broker) == (1, "The Consumer Group <G> not exist")
