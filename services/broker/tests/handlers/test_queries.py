# SPDX-License-Identifier: Apache-2.0

import json
from pathlib import Path
from typing import Any

import pytest

from cometmq.broker.broker import Broker
from cometmq.broker.clients.producers import Client
from cometmq.broker.handlers import queries
from cometmq.remoting.bodies.dialect import decode_json
from cometmq.remoting.bodies.heartbeat import ConsumerData
from cometmq.remoting.codes import RequestCode as Code
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.commands.queries import QueryConsumeQueue, QueryMessage, ViewMessageById
from cometmq.remoting.commands.send import SendMessageV2
from cometmq.remoting.message.record import decode_record
from cometmq.testing.broker import expected_answer
from cometmq.testing.broker.replay import call_of
from cometmq.testing.broker.stored import ask, call_with
from cometmq.testing.remoting.golden import load_exchanges

GOLDEN = Path(__file__).parents[4] / "tests" / "golden"
FOREVER = (1 << 63) - 1


def store(broker: Broker, text: str, topic: str = "T") -> None:
    header = SendMessageV2("P", topic, "TBW102", 4, 1, 0, 0, 0, text)
    ask(broker, call_with(310, header, text.encode()))


def query(broker: Broker, key: str, **fields: Any) -> Any:
    header = QueryMessage("T", key, **{"max_num": 32, **fields}, begin_timestamp=0,
                          end_timestamp=FOREVER)  # fmt: skip
    return ask(broker, call_with(Code.QUERY_MESSAGE, header))


def test_messages_are_found_by_key_and_by_unique_key(broker: Broker) -> None:
    store(broker, "KEYS\x01k1 k2\x02UNIQ_KEY\x01U1")
    store(broker, "KEYS\x01k2\x02UNIQ_KEY\x01U2")
    store(broker, "KEYS\x01k1", topic="Other")

    assert [decode_record(record).unique_key for record in query(broker, "k2").body] == ["U1", "U2"]
    assert len(query(broker, "k1").body) == 1
    assert len(query(broker, "U2", max_num=1, unique_key_query=True).body) == 1
    assert query(broker, "k2").header.index_last_update_phyoffset > 0


def test_an_unknown_key(broker: Broker) -> None:
    reply = query(broker, "nobody")
    assert (reply.code, reply.remark) == (
        ResponseCode.QUERY_NOT_FOUND,
        "can not find message, maybe time range not correct",
    )
    assert reply.header.index_last_update_timestamp == 0


def test_a_record_by_its_offset(broker: Broker) -> None:
    store(broker, "")
    store(broker, "KEYS\x01k")
    (stored,) = broker.store.reader.get_messages("T", 1, 1, 1).records
    offset = decode_record(stored).physical_offset

    reply = ask(broker, call_with(Code.VIEW_MESSAGE_BY_ID, ViewMessageById(offset)))
    assert reply.body == bytes(stored)


@pytest.mark.parametrize("offset", [-1, 1, 1 << 50, -(1 << 63), (1 << 63) - 1])
def test_an_offset_where_no_record_begins(broker: Broker, offset: int) -> None:
    store(broker, "")
    reply = ask(broker, call_with(Code.VIEW_MESSAGE_BY_ID, ViewMessageById(offset)))
    assert (reply.code, reply.remark) == (1, f"can not find message by the offset, {offset}")


@pytest.mark.parametrize(
    "exchange",
    [*load_exchanges(GOLDEN, "012-*"), *load_exchanges(GOLDEN, "033-*")],
    ids=lambda exchange: exchange.name,
)
async def test_captured_queries_without_messages(broker: Broker, exchange: Any) -> None:
    expected = expected_answer(exchange)
    call = call_of(exchange.request, call_with(0, None).peer)
    reply = ask(broker, call)
    assert reply is not None
    if expected.code:
        assert (reply.code, reply.remark) == (expected.code, expected.remark)
    else:  # the captured broker had the message, ours does not
        assert reply.code in {ResponseCode.QUERY_NOT_FOUND, ResponseCode.SYSTEM_ERROR}


def entries(broker: Broker, **fields: Any) -> Any:
    header = QueryConsumeQueue(**{"topic": "T", "queue_id": 1, "index": 0, "count": 5, **fields})
    return ask(broker, call_with(Code.QUERY_CONSUME_QUEUE, header))


def subscribe(broker: Broker, group: str, text: str) -> None:
    data = {"groupName": group, "subscriptionDataSet": [json.loads(text)]}
    client = Client(call_with(0, None).peer, "c", 0, 401, seen_ms=0)
    broker.clients.consumers.register(decode_json(ConsumerData, json.dumps(data).encode()), client)


@pytest.mark.parametrize(
    "exchange", list(load_exchanges(GOLDEN, "321-*")), ids=lambda exchange: exchange.name
)
async def test_captured_entries_of_queues(broker: Broker, exchange: Any) -> None:
    """The test registers the members and tags of the captured answer."""
    expected = expected_answer(exchange)
    ext = exchange.request.ext
    wanted = json.loads(expected.body) if expected.body else None
    broker.tables.topics.create(ext["topic"], queue_nums=10)
    if wanted is not None:
        tags = {3552231: "tagA", 3552232: "tagB", 3552233: "tagC"}
        codes = [entry["tagsCode"] for entry in wanted["queueData"]]
        codes += [0] * (wanted["maxQueueIndex"] - len(codes))
        for code in codes:
            text = f"TAGS\x01{tags[code]}" if code else ""
            header = SendMessageV2("P", ext["topic"], "TBW102", 4, 0, 0, 0, 0, text)
            ask(broker, call_with(310, header, b""))
        if "subscriptionData" in wanted:
            subscribe(broker, ext["consumerGroup"], json.dumps(wanted["subscriptionData"]))

    reply = ask(broker, call_of(exchange.request, call_with(0, None).peer))

    assert (reply.code, reply.remark) == (expected.code, expected.remark)
    found = json.loads(reply.body) if reply.body else None
    for body in (found, wanted):
        for entry in [] if body is None else body["queueData"]:
            del entry["physicOffset"], entry["physicSize"]
    assert found == wanted


def test_the_count_is_bounded(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "ENTRIES_MAX", 2)
    for _ in range(3):
        store(broker, "")

    indices = [len(json.loads(entries(broker, count=count).body)["queueData"])
               for count in (1, 1 << 30, 0, -5)]  # fmt: skip
    assert indices == [1, 2, 0, 0]


@pytest.mark.parametrize("index", [-1, 1, 1 << 60])
def test_an_index_that_the_queue_does_not_have(broker: Broker, index: int) -> None:
    store(broker, "")
    reply = entries(broker, index=index)
    assert (reply.code, reply.remark) == (0, f"Index {index} of 1@T is not exist!")
    assert not reply.body


@pytest.mark.parametrize(("topic", "queue_id"), [("T", 99), ("T", -1), ("U", 0)])
def test_a_queue_that_does_not_exist(broker: Broker, topic: str, queue_id: int) -> None:
    store(broker, "")
    reply = entries(broker, topic=topic, queue_id=queue_id)
    assert (reply.code, reply.remark) == (1, f"{queue_id}@{topic} is not exist!")


def test_a_group_that_is_not_online(broker: Broker) -> None:
    store(broker, "")
    body = json.loads(entries(broker, consumer_group="G").body)
    assert body["filterData"] == "G@T is not online!"
    assert "subscriptionData" not in body


def test_the_filter_of_a_group(broker: Broker) -> None:
    store(broker, "")
    subscription = {"topic": "T", "subString": "a > 1", "expressionType": "SQL92", "subVersion": 7}
    subscribe(broker, "G", json.dumps(subscription))
    group = broker.clients.consumers.group("G")
    assert group is not None
    broker.tables.filters.register("G", group.subscriptions.values())

    body = json.loads(entries(broker, consumer_group="G").body)

    assert body["subscriptionData"]["subString"] == "a > 1"
    data = json.loads(body["filterData"])
    assert (data["expression"], data["clientVersion"]) == ("a > 1", 7)
